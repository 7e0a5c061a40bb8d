//! What a download fills: a file that is beside its place until it is whole.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Known;
use crate::{Crc64, Error, Result};

const PARTIAL: &str = ".forebay-partial";
const PROGRESS: &str = ".forebay-progress";
/// Links that are followed before they are taken for a circle, as Linux does.
const LINKS_MAX: usize = 40;

/// Whether a file of this name is one that a download fills until it is whole, and that stays when it is cut off. No object is
/// retrieved into such a file.
pub fn is_partial(name: &str) -> bool {
    name.ends_with(PARTIAL) || name.ends_with(PROGRESS)
}

/// Writes a value that is here already to the file at `path`, as [`download_file`](super::download_file) does; blocking.
///
/// # Errors
/// [`Error::Local`]: nothing of the file has changed then, if it is one.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    match Place::of(path)? {
        Place::File(path) => {
            let target = Target::fresh(&path)?;
            target.write(0, bytes)?;
            target.finish(bytes.len() as u64, true)
        }
        Place::Stream => {
            let opened = OpenOptions::new().write(true).open(path);
            opened
                .and_then(|mut into| into.write_all(bytes))
                .map_err(Error::local(path.display()))
        }
    }
}

/// What there is at the path of a target.
pub(super) enum Place {
    /// A file, or nothing yet; where links lead to, so that they stay.
    File(PathBuf),
    /// A pipe or a device, which is written to.
    Stream,
}

impl Place {
    pub(super) fn of(path: &Path) -> Result<Place> {
        let local = || Error::local(path.display());
        match fs::metadata(path) {
            Ok(there) if !there.is_file() && !there.is_dir() => return Ok(Place::Stream),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(local()(error)),
            Ok(_) | Err(_) => {}
        }
        let file = followed(path).map_err(local())?;
        let name = file.file_name().unwrap_or_default();
        if is_partial(&name.to_string_lossy()) {
            return Err(refused(
                path,
                "files whose names end so are those of copies that are not done: copy it by itself to another name",
            ));
        }
        Ok(Place::File(file))
    }
}

/// Where links lead to, whether anything is there or not.
fn followed(path: &Path) -> io::Result<PathBuf> {
    use io::ErrorKind::{InvalidInput, NotFound};
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            // It is no link.
            Err(error) if matches!(error.kind(), InvalidInput | NotFound) => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many links"))
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Local {
        what: path.display().to_string(),
        source: io::Error::other(why.to_owned()),
    }
}

/// The file being filled.
pub(super) struct Target {
    /// Its place.
    path: PathBuf,
    /// Where it is until it is whole.
    partial: PathBuf,
    file: File,
    /// What it takes the place of.
    replaced: Option<Replaced>,
    /// Of a file that stays when the copy is cut off, and has its lock; any other goes.
    log: Option<Log>,
    whole: bool,
}

/// What is there. The file of it begins with a line that names the value (so that another value's bytes are never taken for this one's),
/// then has a line for each part that is on disk.
struct Log {
    path: PathBuf,
    file: Mutex<File>,
    there: Vec<(u64, u64)>,
}

impl Target {
    /// One that no other copy knows.
    pub(super) fn fresh(path: &Path) -> Result<Target> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let folder = path.parent().unwrap_or(Path::new(""));
        let replaced = Replaced::at(path);
        loop {
            let number = COUNT.fetch_add(1, Relaxed);
            let partial = folder.join(format!(".{}-{number}{PARTIAL}", process::id()));
            let made = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(Replaced::mode_until_whole(replaced.as_ref()))
                .open(&partial);
            match made {
                // Of another host, or left by a process that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    return Ok(Target {
                        path: path.to_owned(),
                        partial,
                        file: made.map_err(Error::local(path.display()))?,
                        replaced,
                        log: None,
                        whole: false,
                    });
                }
            }
        }
    }

    /// One that goes on where an earlier copy of the same value ended, and can be gone on with. Where files of such names are none of
    /// ours, or cannot be locked, it is a fresh one.
    pub(super) fn resumed(path: &Path, info: &Known, part_bytes: u64) -> Result<Target> {
        let (partial, progress) = (beside(path, PARTIAL), beside(path, PROGRESS));
        if [&partial, &progress].into_iter().any(is_no_file) {
            return Target::fresh(path);
        }
        let replaced = Replaced::at(path);
        let mode = Replaced::mode_until_whole(replaced.as_ref());
        let Some(file) = locked(path, &partial, mode)? else {
            return Target::fresh(path);
        };
        let local = Error::local(partial.display());
        let begun = file.metadata().map_err(local)?.len() > 0;
        let title = format!("{} {} {part_bytes}", info.etag, info.size);
        let told = Title::in_file(&progress).map_err(Error::local(progress.display()))?;
        if told == Title::Foreign || (told == Title::Missing && begun) {
            if !begun {
                // It was made just now.
                fs::remove_file(&partial).map_err(Error::local(partial.display()))?;
            }
            return Target::fresh(path);
        }
        if replaced.is_some() {
            // It may have been there before what it is to replace.
            let private = Permissions::from_mode(mode);
            file.set_permissions(private)
                .map_err(Error::local(partial.display()))?;
        }
        let there = read_progress(&file, &progress, &title).unwrap_or_default();
        let begin = || -> io::Result<File> {
            let mut log = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(there.is_empty())
                .open(&progress)?;
            match there.is_empty() {
                true => {
                    file.set_len(0)?;
                    log.write_all(format!("{title}\n").as_bytes())?;
                }
                false => drop(log.seek(io::SeekFrom::End(0))?),
            }
            Ok(log)
        };
        let log = begin().map_err(Error::local(progress.display()))?;
        Ok(Target {
            path: path.to_owned(),
            partial,
            file,
            replaced,
            log: Some(Log {
                path: progress,
                file: Mutex::new(log),
                there,
            }),
            whole: false,
        })
    }

    pub(super) fn there(&self, index: u64) -> Option<u64> {
        let there = &self.log.as_ref()?.there;
        let found = there.iter().find(|(there, _)| *there == index);
        found.map(|(_, crc)| *crc)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(Error::local(self.path.display()))
    }

    pub(super) fn arrived(&self, index: u64, crc: Crc64) -> Result<()> {
        let Some(log) = &self.log else {
            return Ok(());
        };
        writeln!(log.file.lock(), "{index} {:016x}", crc.value())
            .map_err(Error::local(log.path.display()))
    }

    /// Nothing of it is worth going on with.
    pub(super) fn discard(self) {
        // Best effort: the error that led here is the one to report.
        let _ = fs::remove_file(&self.partial);
        if let Some(log) = &self.log {
            let _ = fs::remove_file(&log.path);
        }
    }

    /// It takes its place, with all its bytes; `synced`, they are on disk before.
    pub(super) fn finish(mut self, size: u64, synced: bool) -> Result<()> {
        let what = self.path.display().to_string();
        self.place(size, synced).map_err(Error::local(what))
    }

    fn place(&mut self, size: u64, synced: bool) -> io::Result<()> {
        self.file.set_len(size)?;
        if synced {
            self.file.sync_data()?;
        }
        if let Some(replaced) = &self.replaced {
            replaced.give_access(&self.file)?;
        }
        fs::rename(&self.partial, &self.path)?;
        self.whole = true;
        match &self.log {
            Some(log) => fs::remove_file(&log.path),
            None => Ok(()),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.log.is_none() && !self.whole {
            // Best effort: an error led here.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// A file whose place is taken by another one: whoever may read and write it may do so with that, and nobody else, at any time.
struct Replaced {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Replaced {
    fn at(path: &Path) -> Option<Replaced> {
        let there = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Replaced {
            mode: there.mode() & 0o777,
            uid: there.uid(),
            gid: there.gid(),
        })
    }

    /// How a file that is to take the place is made.
    fn mode_until_whole(replaced: Option<&Replaced>) -> u32 {
        replaced.map_or(0o666, |_| 0o600)
    }

    fn give_access(&self, file: &File) -> io::Result<()> {
        let now = file.metadata()?;
        if (now.uid(), now.gid()) != (self.uid, self.gid) {
            // Only root may give a file away; a group is given by its members.
            let given = fchown(file, Some(self.uid), Some(self.gid));
            let _ = given.or_else(|_| fchown(file, None, Some(self.gid)));
        }
        let now = file.metadata()?;
        let mode = self.mode_in(now.gid());
        match now.mode() & 0o777 == mode {
            true => Ok(()),
            false => file.set_permissions(Permissions::from_mode(mode)),
        }
    }

    /// The mode of a file that has this group. Where that is another one, its members were among all others, and those of the group that
    /// was there are now: either get what both had. Who owns the file may do with it as they like, whatever the mode says.
    fn mode_in(&self, gid: u32) -> u32 {
        if gid == self.gid {
            return self.mode;
        }
        let both = (self.mode >> 3) & self.mode & 0o7;
        (self.mode & 0o700) | (both << 3) | both
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Whether something is there that is no file; a link is none.
fn is_no_file(path: &PathBuf) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| !there.is_file())
}

/// The partial file with its lock; `None` where files cannot be locked.
fn locked(path: &Path, partial: &Path, mode: u32) -> Result<Option<File>> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(mode)
            .open(partial)
            .map_err(Error::local(partial.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(refused(path, "another copy to it is under way"));
            }
            Err(TryLockError::Error(_)) => return Ok(None),
        }
        // Whoever had the lock may have given the file its place, or removed it, since it was opened here.
        let mine = file.metadata().map_err(Error::local(partial.display()))?;
        let is_mine = |there: fs::Metadata| (there.dev(), there.ino()) == (mine.dev(), mine.ino());
        if fs::symlink_metadata(partial).is_ok_and(is_mine) {
            return Ok(Some(file));
        }
    }
}

/// What the first line of a progress file is.
#[derive(PartialEq, Eq)]
enum Title {
    /// There is none, or nothing in it.
    Missing,
    /// It names a value.
    Ours,
    /// Anything else.
    Foreign,
}

impl Title {
    fn in_file(progress: &Path) -> io::Result<Title> {
        let file = match File::open(progress) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Title::Missing),
            file => file?,
        };
        // Longer than any tag with two numbers.
        let mut lines = BufReader::new(io::Read::take(file, 4096)).split(b'\n');
        let Some(line) = lines.next().transpose()? else {
            return Ok(Title::Missing);
        };
        let line = str::from_utf8(&line).ok();
        Ok(match line.and_then(Title::numbers) {
            Some(_) => Title::Ours,
            None => Title::Foreign,
        })
    }

    /// Tag, size and part size.
    fn numbers(title: &str) -> Option<(&str, u64, u64)> {
        let mut fields = title.rsplitn(3, ' ');
        let part_bytes = fields.next()?.parse().ok()?;
        let size = fields.next()?.parse().ok()?;
        Some((fields.next()?, size, part_bytes))
    }
}

/// The parts that are there, each checked again: after a crash of the machine the file may hold less than its progress says.
fn read_progress(file: &File, progress: &Path, title: &str) -> io::Result<Vec<(u64, u64)>> {
    let mut lines = BufReader::new(File::open(progress)?).lines();
    let (etag, size, part_bytes) = Title::numbers(title).ok_or(io::ErrorKind::InvalidData)?;
    if etag.is_empty() || lines.next().transpose()?.as_deref() != Some(title) {
        return Ok(Vec::new());
    }
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
        if holds(file, start..(start + part_bytes).min(size), crc) {
            there.push((index, crc));
        }
    }
    Ok(there)
}

fn holds(file: &File, range: Range<u64>, crc: u64) -> bool {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start).is_ok() && Crc64::of(&bytes).value() == crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_gets_another_group_is_open_to_nobody_else() {
        for (mode, kept) in [
            (0o600, 0o600),
            (0o660, 0o600),
            (0o640, 0o600),
            (0o664, 0o644),
            (0o666, 0o666),
            (0o750, 0o700),
            (0o755, 0o755),
            // A group that may do less than all others.
            (0o604, 0o600),
            (0o646, 0o644),
        ] {
            let replaced = Replaced {
                mode,
                uid: 1,
                gid: 2,
            };
            assert_eq!(replaced.mode_in(2), mode);
            assert_eq!(replaced.mode_in(3), kept, "{mode:o}");
        }
    }
}
