//! From the server to a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::{Moved, Options};
use crate::client::pause;
use crate::{Client, Crc64, Error, ObjectInfo, Result};

const PARTIAL: &str = ".forebay-partial";
const PROGRESS: &str = ".forebay-progress";

/// Retrieves an object into the file at `path`, which appears (or changes) only when all of it is there. With a `size` from a
/// list, an object of one part costs one request; such a file is not synced to disk.
///
/// # Errors
/// As every call; [`Error::Local`] when the file cannot be written; [`Error::Corrupt`].
pub async fn download_file(
    client: &Client,
    namespace: &str,
    key: &str,
    path: &Path,
    size: Option<u64>,
    options: &Options,
) -> Result<Moved> {
    if size.is_some_and(|size| size <= options.part_bytes(size)) {
        return download_small(client, namespace, key, path, options).await;
    }
    let info = client.head(namespace, key).await?;
    let part_bytes = options.part_bytes(info.size);
    let target = Target::open(path, &info, part_bytes, options.resume)?;
    let count = info.size.div_ceil(part_bytes);
    let (target_ref, info_ref) = (&target, &info);
    let parts: Vec<(Crc64, u64)> = stream::iter(0..count)
        .map(|index| async move {
            let range = index * part_bytes..((index + 1) * part_bytes).min(info_ref.size);
            let len = range.end - range.start;
            if let Some(crc) = target_ref.there(index) {
                (options.progress)(len);
                return Ok((Crc64::known(crc, len), len));
            }
            let crc = client
                .fetch(namespace, key, &info_ref.etag, range, |offset, bytes| {
                    target_ref.write(offset, bytes)?;
                    (options.progress)(bytes.len() as u64);
                    Ok(())
                })
                .await?;
            target_ref.arrived(index, crc)?;
            Ok::<_, Error>((crc, 0))
        })
        .buffered(options.parallel.max(1))
        .try_collect()
        .await?;
    let whole = parts
        .iter()
        .fold(Crc64::default(), |whole, (crc, _)| whole.then(*crc));
    if let Some(stated) = info.crc64nvme
        && stated != whole.value()
    {
        target.discard();
        return Err(Error::Corrupt(format!(
            "{namespace}/{key}: the bytes' CRC-64/NVME is {:016x}, the server states {stated:016x}",
            whole.value()
        )));
    }
    target.finish(info.size)?;
    Ok(Moved {
        bytes: info.size,
        resumed: parts.iter().map(|(_, resumed)| resumed).sum(),
        verified: info.crc64nvme.is_some(),
    })
}

async fn download_small(
    client: &Client,
    namespace: &str,
    key: &str,
    path: &Path,
    options: &Options,
) -> Result<Moved> {
    let mut attempt = 1;
    loop {
        match download_whole(client, namespace, key, path, options).await {
            Err(error) if error.is_transient() && attempt < client.attempts() => {
                pause(attempt).await;
                attempt += 1;
            }
            moved => return moved,
        }
    }
}

async fn download_whole(
    client: &Client,
    namespace: &str,
    key: &str,
    path: &Path,
    options: &Options,
) -> Result<Moved> {
    let mut download = client.get(namespace, key, None, None).await?;
    let partial = beside(path, PARTIAL);
    let file = File::create(&partial).map_err(Error::local(partial.display()))?;
    while let Some(bytes) = download.next().await? {
        (&file)
            .write_all(&bytes)
            .map_err(Error::local(partial.display()))?;
    }
    fs::rename(&partial, path).map_err(Error::local(path.display()))?;
    (options.progress)(download.info().size);
    Ok(Moved {
        bytes: download.info().size,
        resumed: 0,
        verified: download.info().crc64nvme.is_some(),
    })
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The file being filled. Its progress file begins with a line that names the value (so that another value's bytes are never
/// taken for this one's), then holds a line for each part that is on disk.
struct Target {
    path: PathBuf,
    partial: PathBuf,
    progress: PathBuf,
    file: File,
    log: Mutex<File>,
    there: Vec<(u64, u64)>,
}

impl Target {
    fn open(path: &Path, info: &ObjectInfo, part_bytes: u64, resume: bool) -> Result<Target> {
        let (partial, progress) = (beside(path, PARTIAL), beside(path, PROGRESS));
        let title = format!("{} {} {part_bytes}", info.etag, info.size);
        let there = match resume {
            true => read_progress(&partial, &progress, &title).unwrap_or_default(),
            false => Vec::new(),
        };
        let open = |path: &Path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(there.is_empty())
                .open(path)
                .map_err(Error::local(path.display()))
        };
        let file = open(&partial)?;
        let mut log = open(&progress)?;
        let started = match there.is_empty() {
            true => writeln!(log, "{title}"),
            false => io::Seek::seek(&mut log, io::SeekFrom::End(0)).map(|_| ()),
        };
        started.map_err(Error::local(progress.display()))?;
        Ok(Target {
            path: path.to_owned(),
            partial,
            progress,
            file,
            log: Mutex::new(log),
            there,
        })
    }

    fn there(&self, index: u64) -> Option<u64> {
        let found = self.there.iter().find(|(there, _)| *there == index);
        found.map(|(_, crc)| *crc)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(Error::local(self.partial.display()))
    }

    fn arrived(&self, index: u64, crc: Crc64) -> Result<()> {
        writeln!(self.log.lock(), "{index} {:016x}", crc.value())
            .map_err(Error::local(self.progress.display()))
    }

    fn discard(&self) {
        // Best effort: the error that led here is the one to report.
        let _ = fs::remove_file(&self.partial);
        let _ = fs::remove_file(&self.progress);
    }

    fn finish(self, size: u64) -> Result<()> {
        let done = || -> io::Result<()> {
            self.file.set_len(size)?;
            self.file.sync_data()?;
            fs::rename(&self.partial, &self.path)?;
            fs::remove_file(&self.progress)
        };
        done().map_err(Error::local(self.path.display()))
    }
}

/// The parts that are there, each checked again: after a crash of the machine the file may hold less than its progress says.
fn read_progress(partial: &Path, progress: &Path, title: &str) -> io::Result<Vec<(u64, u64)>> {
    let mut lines = BufReader::new(File::open(progress)?).lines();
    let (etag, part_bytes, size) = {
        let mut fields = title.rsplitn(3, ' ');
        let part: u64 = number(fields.next())?;
        let size: u64 = number(fields.next())?;
        (fields.next().unwrap_or_default(), part, size)
    };
    if etag.is_empty() || lines.next().transpose()?.as_deref() != Some(title) {
        return Ok(Vec::new());
    }
    let file = File::open(partial)?;
    let mut there = Vec::new();
    for line in lines {
        let line = line?;
        let Some((index, crc)) = line.split_once(' ') else {
            continue;
        };
        let (Ok(index), Ok(crc)) = (index.parse::<u64>(), u64::from_str_radix(crc, 16)) else {
            continue;
        };
        let Some(start) = index.checked_mul(part_bytes).filter(|start| *start < size) else {
            continue;
        };
        if holds(&file, start..(start + part_bytes).min(size), crc) {
            there.push((index, crc));
        }
    }
    Ok(there)
}

fn number(field: Option<&str>) -> io::Result<u64> {
    field
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn holds(file: &File, range: Range<u64>, crc: u64) -> bool {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start).is_ok() && Crc64::of(&bytes).value() == crc
}
