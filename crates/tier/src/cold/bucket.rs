//! The far side: objects of one store's home in a bucket.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_store::{Away, Body, ErrorKind, Meta, Result, StoreError};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload,
};

use tokio::time::timeout;

use super::format::{Summing, trailer_bytes};

/// What goes in one request: also the memory of the pool that a value on its way out holds.
pub(super) const PART_BYTES: usize = 8 << 20;
/// As many parts as S3 takes.
const PARTS_MAX: u64 = 10_000;
/// Larger values stay where they are.
pub(super) const COPY_BYTES_MAX: u64 = PART_BYTES as u64 * (PARTS_MAX - 1);

/// A bucket, and the prefix in it that belongs to this store alone. Clones are the same.
#[derive(Debug, Clone)]
pub struct Bucket {
    objects: Arc<dyn ObjectStore>,
    home: Arc<str>,
}

/// How long a list may take to come to another name, however many answers without one there are.
const NAME: Duration = Duration::from_secs(600);

/// Ends the name of a mark.
const MARK: &str = ".orphan";

/// An object found in a home; when it was written is by the bucket's clock, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The bytes of a value, or of none. Of a copy in several parts it may be the time when the first was asked for.
    Copy { away: Away, modified: u64 },
    /// Says that a copy was nobody's then.
    Mark { away: Away, modified: u64 },
}

impl Found {
    pub fn away(&self) -> Away {
        match self {
            Found::Copy { away, .. } | Found::Mark { away, .. } => *away,
        }
    }
}

impl Bucket {
    /// `home` is a prefix of keys: no other store may use it, for what is not known there is deleted.
    pub fn new(objects: Arc<dyn ObjectStore>, home: &str) -> Bucket {
        Bucket {
            objects,
            home: home.trim_matches('/').into(),
        }
    }

    /// A name holds the number of its namespace, so that the copies of one lie together.
    pub(super) fn path(&self, away: Away) -> Path {
        let name = away.to_string();
        let (namespace, rest) = name.split_at(8);
        Path::from(format!("{}/{namespace}/{rest}", self.home))
    }

    /// A mark lies behind its copy.
    fn mark_path(&self, away: Away) -> Path {
        Path::from(format!("{}{MARK}", self.path(away)))
    }

    /// Copies the bytes of a value.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when the body is not what `meta` says; else of the body or the bucket. What was written then counts for
    /// nothing.
    pub(super) async fn put<B: Body>(&self, away: Away, meta: &Meta, body: &mut B) -> Result<()> {
        let path = self.path(away);
        let mut summing = Summing::new();
        if meta.size + trailer_bytes(meta.size) <= PART_BYTES as u64 {
            let mut part = Vec::new();
            while let Some(buf) = body.next().await? {
                summing.update(&buf);
                part.push(buf.into_bytes());
            }
            part.push(ended(summing, meta)?);
            let put = self.objects.put(&path, PutPayload::from_iter(part));
            put.await.map_err(failed)?;
            return Ok(());
        }
        let mut upload = self.objects.put_multipart(&path).await.map_err(failed)?;
        let sent = send(&mut *upload, summing, meta, body).await;
        let done = match sent {
            Ok(()) => upload.complete().await.map(|_| ()).map_err(unsent),
            Err(error) => Err(error),
        };
        if done.is_err() {
            // Best effort: a rule of the bucket that ends unfinished uploads does the rest.
            let _ = upload.abort().await;
        }
        done
    }

    /// Bytes of a copy, as they come.
    pub(super) async fn get(
        &self,
        away: Away,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let options = GetOptions::new().with_range(Some(GetRange::Bounded(range)));
        let found = self.objects.get_opts(&self.path(away), options).await;
        let stream = found.map_err(unread)?.into_stream();
        Ok(stream.map(|bytes| bytes.map_err(unread)).boxed())
    }

    /// A few bytes of a copy.
    pub(super) async fn get_all(&self, away: Away, range: Range<u64>) -> Result<Bytes> {
        let len = (range.end - range.start) as usize;
        let mut stream = self.get(away, range).await?;
        let mut all = BytesMut::new();
        while let Some(bytes) = stream.next().await {
            let bytes = bytes?;
            if all.is_empty() && bytes.len() == len {
                return Ok(bytes);
            }
            // However much the far side sends, no more than was asked for is held.
            if all.len() + bytes.len() > len {
                break;
            }
            all.extend_from_slice(&bytes);
        }
        match all.len() == len {
            true => Ok(all.freeze()),
            false => Err(StoreError::new(
                ErrorKind::Corrupt,
                "the cold copy of the value is not as long as it was",
            )),
        }
    }

    /// Deletes a copy, which need not exist.
    pub(super) async fn delete(&self, away: Away) -> Result<()> {
        self.delete_at(&self.path(away)).await
    }

    async fn delete_at(&self, path: &Path) -> Result<()> {
        match self.objects.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Marks a copy as nobody's from now on.
    pub(super) async fn mark(&self, away: Away) -> Result<()> {
        let path = self.mark_path(away);
        let put = self.objects.put(&path, PutPayload::new()).await;
        put.map(drop).map_err(failed)
    }

    /// Takes the mark of a copy away.
    pub(super) async fn unmark(&self, away: Away) -> Result<()> {
        self.delete_at(&self.mark_path(away)).await
    }

    /// Everything in the home that may be a copy, or the mark of one. It ends: a far side that has nothing new to say is an error.
    pub(super) fn list(&self) -> BoxStream<'static, Result<Found>> {
        let home = Path::from(&*self.home);
        let listing = Listing {
            objects: self.objects.list(Some(&home)),
            prefix: format!("{home}/"),
            circle: Circle::default(),
        };
        let next = async |mut listing: Listing| {
            let found = listing.next().await?;
            Ok(found.map(|found| (found, listing)))
        };
        futures_util::stream::try_unfold(listing, next).boxed()
    }
}

/// A list of a home, while it comes.
struct Listing {
    objects: BoxStream<'static, object_store::Result<ObjectMeta>>,
    prefix: String,
    circle: Circle,
}

impl Listing {
    async fn next(&mut self) -> Result<Option<Found>> {
        loop {
            let object = timeout(NAME, self.objects.next()).await.map_err(|_| {
                StoreError::new(
                    ErrorKind::Busy,
                    "the cold tier's list does not go on; try again later",
                )
            })?;
            let Some(object) = object else {
                return Ok(None);
            };
            let object = object.map_err(failed)?;
            if self.circle.closes_at(&object.location) {
                return Err(StoreError::new(
                    ErrorKind::Io,
                    "the cold tier lists the same names again and again",
                ));
            }
            let modified = object.last_modified.timestamp_millis().max(0) as u64;
            let path = object.location.as_ref();
            if let Some(away) = named(path, &self.prefix) {
                return Ok(Some(Found::Copy { away, modified }));
            }
            let marked = path.strip_suffix(MARK);
            if let Some(away) = marked.and_then(|path| named(path, &self.prefix)) {
                return Ok(Some(Found::Mark { away, modified }));
            }
        }
    }
}

/// Finds out that a list goes in a circle, by one name of it: that comes again before twice as many came (Brent).
#[derive(Debug, Default)]
struct Circle {
    mark: Option<Path>,
    names: u64,
}

impl Circle {
    /// Whether `name`, the next one, came before. That it is new is not said: another one will tell.
    fn closes_at(&mut self, name: &Path) -> bool {
        self.names += 1;
        if self.mark.as_ref() == Some(name) {
            return true;
        }
        if self.names.is_power_of_two() {
            self.mark = Some(name.clone());
        }
        false
    }
}

/// The name of the copy at a path.
pub(super) fn named(path: &str, prefix: &str) -> Option<Away> {
    let (namespace, rest) = path.strip_prefix(prefix)?.split_once('/')?;
    let digits = |text: &str, len| {
        text.len() == len
            && text
                .bytes()
                .all(|digit| digit.is_ascii_hexdigit() && !digit.is_ascii_uppercase())
    };
    (digits(namespace, 8) && digits(rest, 24))
        .then(|| u128::from_str_radix(&format!("{namespace}{rest}"), 16).ok())?
        .map(Away)
}

fn ended(summing: Summing, meta: &Meta) -> Result<Bytes> {
    let (size, crc64nvme, trailer) = summing.finish();
    match (size, crc64nvme) == (meta.size, meta.crc64nvme) {
        true => Ok(trailer.into()),
        false => Err(StoreError::new(
            ErrorKind::Corrupt,
            "the value does not match its checksum",
        )),
    }
}

/// Sends a body and its trailer in parts of equal length.
async fn send<B: Body>(
    upload: &mut dyn MultipartUpload,
    mut summing: Summing,
    meta: &Meta,
    body: &mut B,
) -> Result<()> {
    let mut part: Vec<Bytes> = Vec::new();
    let mut held = 0;
    let mut last = false;
    while !last {
        let mut bytes = match body.next().await? {
            Some(buf) => {
                summing.update(&buf);
                buf.into_bytes()
            }
            None => {
                last = true;
                let summing = std::mem::replace(&mut summing, Summing::new());
                ended(summing, meta)?
            }
        };
        while !bytes.is_empty() {
            let taken = bytes.split_to(bytes.len().min(PART_BYTES - held));
            held += taken.len();
            part.push(taken);
            if held == PART_BYTES {
                let full = PutPayload::from_iter(std::mem::take(&mut part));
                upload.put_part(full).await.map_err(unsent)?;
                held = 0;
            }
        }
    }
    if held > 0 {
        let rest = PutPayload::from_iter(part);
        upload.put_part(rest).await.map_err(unsent)?;
    }
    Ok(())
}

/// What the answer to a read of a copy means: one that is missing is lost, anything else may be better later.
fn unread(error: object_store::Error) -> StoreError {
    missing(error, "the cold copy of the value is missing")
}

/// What the answer to a part means: an upload that somebody has ended there is that value's affair alone.
fn unsent(error: object_store::Error) -> StoreError {
    missing(error, "the upload of the cold copy is gone")
}

/// The error for what is missing in a bucket that is there, in these words.
fn missing(error: object_store::Error, words: &'static str) -> StoreError {
    match error {
        object_store::Error::NotFound { .. } if !has_no_bucket(&error.to_string()) => {
            StoreError::new(ErrorKind::Io, words).with_source(error)
        }
        error => failed(error),
    }
}

/// What any other failure of the far side means: whatever it is, it may be better later.
fn failed(error: object_store::Error) -> StoreError {
    let text = error.to_string();
    let message = match has_no_bucket(&text) {
        true => "the cold tier's bucket is not there",
        false if is_refusal(&error, &text) => "the cold tier's bucket refuses the keys for it",
        false => "the cold tier cannot be reached; try again later",
    };
    StoreError::new(ErrorKind::Busy, message).with_source(error)
}

/// A copy that is missing has the same status: the answer's code alone tells.
fn has_no_bucket(text: &str) -> bool {
    text.contains("NoSuchBucket")
}

/// Of lists and the beginning of uploads in parts the client gives the status as text alone.
fn is_refusal(error: &object_store::Error, text: &str) -> bool {
    use object_store::Error::{PermissionDenied, Unauthenticated};
    matches!(error, PermissionDenied { .. } | Unauthenticated { .. })
        || ["code: 401", "code: 403"]
            .iter()
            .any(|code| text.contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_wherever_it_begins() {
        for (before, around) in [(0, 1), (0, 1000), (1, 1), (7, 3), (1000, 1), (999, 1001)] {
            let name = |at: usize| {
                let at = match at < before {
                    true => at,
                    false => before + (at - before) % around,
                };
                Path::from(at.to_string())
            };
            let mut circle = Circle::default();
            let closed = (0..).find(|at| circle.closes_at(&name(*at)));
            let closed = closed.expect("it goes on for ever");
            assert!(closed >= before + around, "{before} {around}");
            assert!(closed <= 4 * (before + around), "{before} {around}");
        }
        let mut circle = Circle::default();
        assert!(!(0..10_000).any(|at| circle.closes_at(&Path::from(at.to_string()))));
    }

    #[test]
    fn names_are_read_as_they_are_made() {
        let bucket = Bucket::new(Arc::new(object_store::memory::InMemory::new()), "/at/home/");
        let away = Away(u128::MAX / 3);
        let path = bucket.path(away);
        assert_eq!(path.as_ref(), "at/home/55555555/555555555555555555555555");
        assert_eq!(named(path.as_ref(), "at/home/"), Some(away));
        let mark = bucket.mark_path(away);
        assert_eq!(mark.as_ref(), format!("{path}.orphan"));
        assert_eq!(
            named(mark.as_ref(), "at/home/"),
            None,
            "a mark is not a copy"
        );
        for other in [
            "at/home/55555555",
            "at/home/5555555/5555555555555555555555555",
            "at/home/55555555/55555555555555555555555g",
            "at/home/55555555/+55555555555555555555555",
            "at/other/55555555/555555555555555555555555",
        ] {
            assert_eq!(named(other, "at/home/"), None, "{other}");
        }
    }
}
