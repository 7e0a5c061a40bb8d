//! Files on their way to the server.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::mark::Mark;
use super::pieces::Piece;
use super::{Moved, Moving, Options, Staging};
use crate::calls::kept;
use crate::direct::{Condition, Path as Way};
use crate::{Attributes, Client, Crc64, Error, Kind, Part, PutOptions, Result};

/// Why a file is not sent.
const NO_FILE: &str = "it is no regular file, and is sent as a stream or not at all";
const SHORT: &str = "it has fewer bytes than it said: it changed while it was sent, or is sent as a stream or not at all";

/// Stores the file at `path`.
///
/// # Errors
/// As every call; [`Error::Local`] when it cannot be read, is no regular file, changes meanwhile, or has not as many bytes as it says.
pub async fn upload_file(
    client: &Client,
    namespace: &str,
    key: &str,
    path: &Path,
    put: &PutOptions,
    options: &Options,
) -> Result<Moved> {
    let value = Moving {
        client,
        namespace,
        key,
        options,
    };
    let source = Source::open(path, options).await?;
    if source.size > source.part_bytes {
        return value.put_parts(&source, put).await;
    }
    let (piece, crc) = source.part(1).await?;
    source.settled().await?;
    value.put(piece, crc, put).await
}

struct Source {
    file: Arc<File>,
    path: PathBuf,
    /// What the file was when it was opened.
    metadata: Metadata,
    part_bytes: u64,
    size: u64,
    staging: Option<Arc<Staging>>,
}

impl Source {
    async fn open(path: &Path, options: &Options) -> Result<Source> {
        let name = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            // Opening a pipe would wait for who writes to it.
            if !fs::metadata(&name)?.is_file() {
                return Err(io::Error::other(NO_FILE));
            }
            let file = File::open(&name)?;
            let metadata = file.metadata()?;
            match metadata.is_file() {
                true => Ok((file, metadata)),
                false => Err(io::Error::other(NO_FILE)),
            }
        });
        let opened = joined(opened.await)?;
        let (file, metadata) = opened.map_err(Error::local(path.display()))?;
        let size = metadata.len();
        let part_bytes = options.part_bytes(size);
        Ok(Source {
            file: Arc::new(file),
            path: path.to_owned(),
            metadata,
            part_bytes,
            size,
            staging: options.staging(part_bytes.min(size))?.cloned(),
        })
    }

    /// Fails unless what was read is all of the file, as it was all the time.
    async fn settled(&self) -> Result<()> {
        let (file, size) = (self.file.clone(), self.size);
        let look = move || Ok((file.metadata()?, file.read_at(&mut [0], size)?));
        let looked = joined(tokio::task::spawn_blocking(look).await)?;
        let (now, more) = looked.map_err(Error::local(self.path.display()))?;
        let wrong = if now.len() != size || now.modified().ok() != self.metadata.modified().ok() {
            "the file changed while it was sent"
        } else if more > 0 {
            "it has more bytes than it says, and is sent as a stream or not at all"
        } else {
            return Ok(());
        };
        Err(Error::local(self.path.display())(io::Error::other(wrong)))
    }

    fn parts(&self) -> u32 {
        self.size.div_ceil(self.part_bytes) as u32
    }

    /// Part `number`, from 1, and its checksum.
    async fn part(&self, number: u32) -> Result<(Piece, Crc64)> {
        let offset = u64::from(number - 1) * self.part_bytes;
        let len = self.part_bytes.min(self.size - offset) as usize;
        let file = self.file.clone();
        let staged = match &self.staging {
            Some(staging) => Some(staging.take(len).await?),
            None => None,
        };
        let name = self.path.display().to_string();
        let read = tokio::task::spawn_blocking(move || match staged {
            Some(staged) => {
                staged.load(&file, offset).map_err(unread(&name))?;
                let crc = staged.crc()?;
                Ok((Piece::Staged(staged), crc))
            }
            None => {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, offset)
                    .map_err(unread(&name))?;
                let crc = Crc64::of(&bytes);
                Ok((Piece::Heap(Bytes::from(bytes)), crc))
            }
        });
        joined(read.await)?
    }
}

/// As an error the end of a file where it should go on is none that anybody understands.
fn unread(name: &str) -> impl FnOnce(io::Error) -> Error {
    move |error| {
        Error::local(name)(match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other(SHORT),
            _ => error,
        })
    }
}

impl Moving<'_> {
    async fn put_parts(self, source: &Source, put: &PutOptions) -> Result<Moved> {
        // What an upload keeps was said when it was begun, and cannot be asked for.
        let resume = self.options.resume && put.attributes == Attributes::default();
        let mut mark = resume.then(|| Mark::of(&source.path, &source.metadata, source.part_bytes));
        let mut found = None;
        if let Some(wanted) = &mark {
            match self.unfinished(wanted).await {
                // Whoever may store need not be allowed to list: what would not be found again is not left.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Denied) => mark = None,
                unfinished => found = unfinished?,
            }
        }
        // Another copy of the same file may go on with the same upload, and end it.
        let mut again = resume;
        loop {
            let adopted = found.is_some();
            let (upload, there) = match found.take() {
                Some(found) => found,
                None => (self.begin(put, mark.as_ref()).await?, Vec::new()),
            };
            let condition = put.condition();
            let sent = self.send_parts(source, &upload, &there, condition).await;
            let Err(error) = &sent else {
                return sent;
            };
            let anew = again && has_ended(error, adopted);
            // Of a file that has changed the mark is another one, and what is there already does not become absent.
            if anew || mark.is_none() || is_there(error) || source.settled().await.is_err() {
                // Nobody will go on with it.
                self.abort(&upload).await;
            }
            if !anew {
                return sent;
            }
            again = false;
        }
    }

    /// A new upload, with its mark if it is to have one.
    async fn begin(self, put: &PutOptions, mark: Option<&Mark>) -> Result<String> {
        let kept = kept(&put.attributes)?;
        let upload = self.options.unfinished.begin(self, kept).await?;
        if let Some(mark) = mark {
            if let Err(error) = mark.put(self, &upload).await {
                self.abort(&upload).await;
                return Err(error);
            }
            self.options.unfinished.remove(&upload);
        }
        Ok(upload)
    }

    /// Gives an upload up that has failed.
    pub(super) async fn abort(self, upload: &str) {
        // The first error is the one to report.
        let _ = self
            .client
            .abort_upload(self.namespace, self.key, upload)
            .await;
        self.options.unfinished.remove(upload);
    }

    /// Sends the parts that are not `there`, and has the upload completed.
    async fn send_parts(
        self,
        source: &Source,
        upload: &str,
        there: &[Part],
        condition: Condition<'_>,
    ) -> Result<Moved> {
        let results: Vec<(Part, Crc64, u64, Option<Way>)> = stream::iter(1..=source.parts())
            .map(|number| async move {
                let (piece, crc) = source.part(number).await?;
                let size = piece.len();
                let kept = there.iter().find(|part| {
                    part.number == number
                        && part.size == size
                        && part.crc64nvme == Some(crc.value())
                });
                let (part, resumed, path) = match kept {
                    Some(part) => (part.clone(), size, None),
                    None => {
                        let (part, path) = self.put_part(upload, number, piece, crc).await?;
                        (part, 0, Some(path))
                    }
                };
                (self.options.progress)(size);
                Ok::<_, Error>((part, crc, resumed, path))
            })
            .buffered(self.options.parallel(source.part_bytes))
            .try_collect()
            .await?;
        source.settled().await?;
        let whole = results
            .iter()
            .fold(Crc64::default(), |whole, (_, crc, _, _)| whole.then(*crc));
        let resumed = results.iter().map(|(_, _, resumed, _)| resumed).sum();
        let path = Moved::worst(results.iter().filter_map(|(_, _, _, path)| *path));
        let parts: Vec<Part> = results.into_iter().map(|(part, _, _, _)| part).collect();
        self.complete(upload, &parts, Some(whole), condition)
            .await?;
        Ok(Moved {
            bytes: source.size,
            resumed,
            verified: true,
            path,
        })
    }

    /// Puts the parts of an upload together.
    pub(super) async fn complete(
        self,
        upload: &str,
        parts: &[Part],
        whole: Option<Crc64>,
        condition: Condition<'_>,
    ) -> Result<()> {
        let (namespace, key) = (self.namespace, self.key);
        let completed = self
            .client
            .complete_upload(namespace, key, upload, parts, whole, condition);
        completed.await?;
        self.options.unfinished.remove(upload);
        Ok(())
    }

    /// The newest upload of this key that has the mark, and its parts.
    async fn unfinished(self, mark: &Mark) -> Result<Option<(String, Vec<Part>)>> {
        let Moving {
            client,
            namespace,
            key,
            ..
        } = self;
        let mut uploads = client.uploads_of(namespace, key).await?;
        uploads.sort_by_key(|upload| std::cmp::Reverse(upload.initiated));
        for upload in uploads {
            match client.parts(namespace, key, &upload.id).await {
                Ok(parts) if mark.is_among(&parts) => return Ok(Some((upload.id, parts))),
                Ok(_) => {}
                Err(error) if has_ended(&error, false) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Whether an upload came to nothing because there is an object of its key.
fn is_there(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.status == 412)
}

/// Whether an upload has ended; or, of one that was `adopted`, is not what it was taken for.
fn has_ended(error: &Error, adopted: bool) -> bool {
    let Error::Refused(refusal) = error else {
        return false;
    };
    refusal.code == "NoSuchUpload"
        || (adopted && (refusal.status == 400 || refusal.code == "InvalidPart"))
}

pub(super) fn joined<T>(result: std::result::Result<T, tokio::task::JoinError>) -> Result<T> {
    result.map_err(|error| Error::Local {
        what: "a worker thread".to_owned(),
        source: std::io::Error::other(error),
    })
}
