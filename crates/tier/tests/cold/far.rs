//! A far side that fails, waits, lies and counts as a test says.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_store::suite::TestClock;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, UploadPart,
};

/// What went through, and what is to happen to it.
#[derive(Debug, Default)]
pub struct Knobs {
    /// Nothing is answered.
    pub down: AtomicBool,
    /// Every call waits once before it does anything, and once after.
    pub slow: AtomicBool,
    /// How many milliseconds go by until something is written.
    pub takes_ms: AtomicU64,
    /// Calls so far.
    pub calls: AtomicUsize,
    /// Which call fails before it does anything; 0 for none.
    pub fails: AtomicUsize,
    /// Which call is done but not answered; 0 for none.
    pub lost: AtomicUsize,
    /// Whether what is written is damaged on its way.
    pub damages: AtomicBool,
    /// Whether lists begin again when they should end.
    pub circles: AtomicBool,
    /// Whether lists come to no end.
    pub dawdles: AtomicBool,
    /// Whether what is deleted is not answered.
    pub keeps: AtomicBool,
    /// Reads of copies.
    pub gets: AtomicUsize,
    /// Copies larger than this do not come until it changes; 0 for none.
    pub holds: AtomicUsize,
}

/// Objects in memory behind knobs. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Far {
    pub objects: Arc<InMemory>,
    pub knobs: Arc<Knobs>,
    clock: TestClock,
    /// When objects were written, in parts when the first was asked for, as S3 has it. What went past the knobs is from of old.
    written: Arc<Mutex<HashMap<Path, u64>>>,
}

impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("far")
    }
}

fn refused() -> Error {
    Error::Generic {
        store: "far",
        source: "as the test said".into(),
    }
}

impl Knobs {
    /// One call: an error when it fails before, and whether its answer gets lost.
    async fn enter(&self) -> Result<bool> {
        if self.slow.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        let call = self.calls.fetch_add(1, SeqCst) + 1;
        if self.down.load(SeqCst) || self.fails.load(SeqCst) == call {
            return Err(refused());
        }
        Ok(self.lost.load(SeqCst) == call)
    }

    async fn leave<T>(&self, lost: bool, answer: Result<T>) -> Result<T> {
        if self.slow.load(SeqCst) {
            tokio::task::yield_now().await;
        }
        match lost {
            true => Err(refused()),
            false => answer,
        }
    }

    fn damage(&self, payload: PutPayload) -> PutPayload {
        if !self.damages.load(SeqCst) {
            return payload;
        }
        let mut bytes = payload.iter().flatten().copied().collect::<Vec<u8>>();
        let at = bytes.len() / 3;
        bytes[at] ^= 1;
        bytes.into()
    }
}

impl Far {
    /// One that has the same time as the store.
    pub fn at(clock: &TestClock) -> Far {
        Far {
            clock: clock.clone(),
            ..Far::default()
        }
    }

    fn note_written(&self, path: &Path) {
        let mut written = self.written.lock().expect("whole");
        written.insert(path.clone(), self.clock.now());
    }

    /// An object as a list shows it.
    fn shown(&self, mut object: ObjectMeta) -> ObjectMeta {
        let written = self.written.lock().expect("whole");
        let since_1970 = Duration::from_millis(object.last_modified.timestamp_millis() as u64);
        let written = written.get(&object.location).copied().unwrap_or(0);
        object.last_modified = object.last_modified - since_1970 + Duration::from_millis(written);
        object
    }

    fn listed(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let far = self.clone();
        let listed = self.objects.list(prefix);
        let shown = listed.map(move |object| object.map(|object| far.shown(object)));
        shown.boxed()
    }

    /// The names of all objects.
    pub async fn names(&self) -> Vec<Path> {
        let listed = self.objects.list(None);
        let mut names: Vec<Path> = listed
            .map(|object| object.expect("list").location)
            .collect()
            .await;
        names.sort();
        names
    }

    /// Changes one byte of an object.
    pub async fn damage(&self, path: &Path, at: usize) {
        let read = self.objects.get(path).await.expect("there");
        let mut bytes = read.bytes().await.expect("read").to_vec();
        bytes[at] ^= 0x40;
        self.objects.put(path, bytes.into()).await.expect("write");
    }
}

#[async_trait]
impl ObjectStore for Far {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let lost = self.knobs.enter().await?;
        self.clock.advance(self.knobs.takes_ms.load(SeqCst));
        let payload = self.knobs.damage(payload);
        self.note_written(location);
        let answer = self.objects.put_opts(location, payload, options).await;
        self.knobs.leave(lost, answer).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let lost = self.knobs.enter().await?;
        self.note_written(location);
        let begun = self.objects.put_multipart_opts(location, options).await;
        let upload = self.knobs.leave(lost, begun).await?;
        Ok(Box::new(Parts {
            upload,
            knobs: self.knobs.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let lost = self.knobs.enter().await?;
        self.knobs.gets.fetch_add(1, SeqCst);
        let size = self.objects.head(location).await?.size as usize;
        while (1..size).contains(&self.knobs.holds.load(SeqCst)) {
            tokio::task::yield_now().await;
        }
        let mut found = self.objects.get_opts(location, options).await?;
        let bytes = found.range.clone();
        let stream = found.into_stream();
        let knobs = self.knobs.clone();
        found = self.objects.get_opts(location, GetOptions::new()).await?;
        found.range = bytes;
        // In pieces that fit no block, each of which may be the last before the line breaks.
        let pieces = stream.flat_map(move |bytes| {
            let pieces = bytes.map(|bytes| split(&bytes));
            let knobs = knobs.clone();
            let pieces = match pieces {
                Ok(pieces) => pieces.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            futures_util::stream::iter(pieces).then(move |piece: Result<Bytes>| {
                let knobs = knobs.clone();
                async move {
                    match knobs.down.load(SeqCst) {
                        true => Err(refused()),
                        false => piece,
                    }
                }
            })
        });
        found.payload = GetResultPayload::Stream(pieces.boxed());
        self.knobs.leave(lost, Ok(found)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let far = self.clone();
        locations
            .then(move |path| {
                let far = far.clone();
                async move {
                    let path = path?;
                    let lost = far.knobs.enter().await?;
                    if far.knobs.keeps.load(SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    let done = far.objects.delete(&path).await.map(|()| path);
                    far.knobs.leave(lost, done).await
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.knobs.down.load(SeqCst) {
            return futures_util::stream::once(async { Err(refused()) }).boxed();
        }
        let once = self.listed(prefix);
        let (far, prefix) = (self.clone(), prefix.cloned());
        if self.knobs.circles.load(SeqCst) {
            let again = futures_util::stream::repeat_with(move || far.listed(prefix.as_ref()));
            return again.flatten().boxed();
        }
        match self.knobs.dawdles.load(SeqCst) {
            true => once.chain(futures_util::stream::pending()).boxed(),
            false => once,
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.objects.get_ranges(location, ranges).await
    }
}

fn split(bytes: &Bytes) -> Vec<Bytes> {
    const PIECE: usize = 100_003;
    (0..bytes.len())
        .step_by(PIECE)
        .map(|at| bytes.slice(at..bytes.len().min(at + PIECE)))
        .collect()
}

#[derive(Debug)]
struct Parts {
    upload: Box<dyn MultipartUpload>,
    knobs: Arc<Knobs>,
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let knobs = self.knobs.clone();
        let put = self.upload.put_part(knobs.damage(payload));
        async move {
            let lost = knobs.enter().await?;
            let answer = put.await;
            knobs.leave(lost, answer).await
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let lost = self.knobs.enter().await?;
        let answer = self.upload.complete().await;
        self.knobs.leave(lost, answer).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}
