//! A request's body on its way in: unframed, hashed, checked, and copied once into registered buffers.
//!
//! Only what is asked for is hashed. Nothing is committed before every claim about the body was compared with what came:
//! its length, its SHA-256, its chunk and trailer signatures, its checksum and its MD5.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_mem::{BufMut, CopySite, copy};
use forebay_proto::md5::Md5;
use forebay_proto::s3::checksum::{Algorithm, Checksum, Hasher};
use forebay_proto::s3::chunked::Event;
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::xml::{MAX_BODY, MAX_COMPLETE_BODY};
use forebay_store::limits::at_most;
use forebay_store::{Caps, Upload, waiting};
use http::header::{CONTENT_LENGTH, EXPECT, HeaderMap};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use crate::claims::{Claims, Framing, Proof, trailing};
use crate::demand::Demand;
use crate::lanes::Lane;
use crate::live::{Held, Served};
use crate::metrics::Metrics;
use crate::pace::HURRIED_BYTES;
use crate::status::{Outcome, Refusal};

/// A client that sends less than this in `body_timeout` is too slow.
const PROGRESS_BYTES: usize = 4096;
/// How much of an unwanted body is read so that the client hears why it is unwanted.
const DRAIN_BYTES: usize = 16 << 20;
/// For how long, however it comes: anybody may send bodies that nobody wants.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// What one body holds at most of the store's buffers, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    caps: Caps,
    /// One that goes: the rest of one buffer is sent while the next one waits, or is read, and those that the store reads with it.
    leaving: usize,
    /// Of one that goes in slices, each a buffer of the store's: the rest of one is sent while the next one waits.
    slice: usize,
}

impl Room {
    pub(crate) fn of(caps: &Caps) -> Room {
        Room {
            caps: *caps,
            leaving: (caps.read_ahead.max(1) + 1) * caps.chunk_bytes,
            slice: caps.chunk_bytes,
        }
    }

    /// Of what lies in buffers of so many bytes and goes with few of them: those of slices, or all where these are less.
    fn few(&self, around: u64) -> usize {
        at_most(around, 2 * self.slice)
    }
}

/// How an object goes to its client.
pub(crate) enum Sending {
    /// As the store's body comes.
    Whole,
    /// In slices of so many bytes.
    Slices(u64),
}

/// A body that has not been read yet.
pub(crate) struct Inbound {
    body: Incoming,
    metrics: Arc<Metrics>,
    /// The request among those of its sender, once that is known, until its answer is.
    pub(crate) served: Option<Served>,
    /// The document that was read.
    held: Option<Held>,
    demand: Arc<Demand>,
    room: Room,
    patience: Duration,
    /// What came, and for how long it was waited for, since enough came last.
    progress: usize,
    waited: Duration,
    touched: bool,
    ended: bool,
    /// What the signature says about it; used up by [`Inbound::claims`].
    proof: Option<Proof>,
}

/// What was made of a body on its way.
pub(crate) struct Received {
    /// When it was asked for.
    pub(crate) md5: Option<[u8; 16]>,
    /// When an algorithm was asked for, except CRC-64/NVME, which an upload makes itself.
    pub(crate) checksum: Option<Checksum>,
}

/// Where payload goes.
trait Sink: Send {
    fn take(&mut self, data: &[u8]) -> impl Future<Output = Outcome<()>> + Send;

    /// Whether it keeps a buffer that is not full.
    fn holds(&self) -> bool;
}

/// Where the payload of a write comes from: the request's body, or the client's memory.
pub(crate) trait Source: Send {
    /// What the headers claim about the payload. To be asked once.
    ///
    /// # Errors
    /// `MissingContentLength`, `InvalidDigest`, `InvalidRequest`, `InvalidArgument`.
    fn claims(&mut self, request: &HeaderMap) -> Outcome<Claims>;

    /// Moves the payload into `upload` and compares it with the claims. With `md5` its MD5 is made in any case. The
    /// CRC-64/NVME that a client claims is compared with the upload's own.
    ///
    /// # Errors
    /// Whatever does not fit the claims; the upload is then to be dropped.
    fn store_into<U: Upload>(
        &mut self,
        claims: Claims,
        upload: &mut U,
        md5: bool,
    ) -> impl Future<Output = Outcome<Received>> + Send;
}

/// Into registered buffers, and from those into the store.
struct UploadSink<'u, U> {
    upload: &'u mut U,
    demand: Arc<Demand>,
    filling: Option<BufMut>,
    /// Bytes still to come.
    left: u64,
    md5: Option<Lane>,
}

impl<U: Upload> Sink for UploadSink<'_, U> {
    async fn take(&mut self, mut data: &[u8]) -> Outcome<()> {
        while !data.is_empty() {
            let buf = match &mut self.filling {
                Some(buf) => buf,
                None => {
                    let want = usize::try_from(self.left).unwrap_or(usize::MAX);
                    let buf = self.demand.wait(self.upload.buffer(want)).await?;
                    self.filling.insert(buf)
                }
            };
            let (now, later) = data.split_at(data.len().min(buf.room()));
            let filled = buf.len();
            copy(CopySite::HttpBody, &mut buf.spare()[..now.len()], now);
            buf.set_len(filled + now.len());
            self.left = self.left.saturating_sub(now.len() as u64);
            data = later;
            if buf.room() == 0 || self.left == 0 {
                self.flush().await?;
            }
        }
        Ok(())
    }

    fn holds(&self) -> bool {
        self.filling.is_some()
    }
}

impl<U: Upload> UploadSink<'_, U> {
    async fn flush(&mut self) -> Outcome<()> {
        let Some(buf) = self.filling.take() else {
            return Ok(());
        };
        let buf = buf.freeze();
        match &mut self.md5 {
            // Hashed while the device writes.
            Some(md5) => {
                self.upload.write(buf.clone()).await?;
                md5.update(buf).await;
            }
            None => self.upload.write(buf).await?,
        }
        Ok(())
    }
}

impl Source for Inbound {
    fn claims(&mut self, request: &HeaderMap) -> Outcome<Claims> {
        let proof = self.proof.take().ok_or(ErrorCode::InternalError)?;
        Claims::read(request, proof)
    }

    async fn store_into<U: Upload>(
        &mut self,
        mut claims: Claims,
        upload: &mut U,
        md5: bool,
    ) -> Outcome<Received> {
        self.hold(waiting::arriving(&self.room.caps, claims.length))
            .await?;
        let own_crc = claims.algorithm == Some(Algorithm::Crc64Nvme);
        let mut sink = UploadSink {
            upload,
            demand: Arc::clone(&self.demand),
            filling: None,
            left: claims.length,
            md5: (md5 || claims.md5.is_some()).then(Lane::new),
        };
        let claimed_md5 = claims.md5.take();
        let (mut received, claimed) = self.read(claims, &mut sink, own_crc).await?;
        sink.flush().await?;
        received.md5 = sink.md5.map(Lane::finalize);
        if claimed_md5.is_some() && claimed_md5 != received.md5 {
            return Err(ErrorCode::BadDigest.into());
        }
        if own_crc {
            check_crc64nvme(claimed, upload)?;
        }
        Ok(received)
    }
}

/// Compares the CRC-64/NVME that was claimed, if one was, with the one that the upload made.
pub(crate) fn check_crc64nvme<U: Upload>(claimed: Option<Checksum>, upload: &U) -> Outcome<()> {
    let made = Checksum::from_crc_value(Algorithm::Crc64Nvme, upload.crc64nvme());
    match claimed.is_none() || made == claimed {
        true => Ok(()),
        false => Err(Refusal::checksum_mismatch(Algorithm::Crc64Nvme)),
    }
}

/// Into memory, for documents.
struct DocumentSink {
    bytes: Vec<u8>,
    limit: usize,
    held: Option<Held>,
}

impl Sink for DocumentSink {
    async fn take(&mut self, data: &[u8]) -> Outcome<()> {
        if self.bytes.len() + data.len() > self.limit {
            return Err(ErrorCode::MaxMessageLengthExceeded.into());
        }
        if let Some(held) = &mut self.held
            && !held.take(data.len())
        {
            return Err(ErrorCode::SlowDown.into());
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    fn holds(&self) -> bool {
        false
    }
}

struct Digests {
    md5: Option<Md5>,
    sha256: Option<Hasher>,
    checksum: Option<Hasher>,
}

impl Digests {
    fn update(&mut self, data: &[u8]) {
        if let Some(md5) = &mut self.md5 {
            md5.update(data);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(data);
        }
        if let Some(checksum) = &mut self.checksum {
            checksum.update(data);
        }
    }
}

impl Inbound {
    pub(crate) fn new(
        body: Incoming,
        metrics: Arc<Metrics>,
        demand: Arc<Demand>,
        room: Room,
        patience: Duration,
    ) -> Inbound {
        Inbound {
            body,
            metrics,
            served: None,
            held: None,
            demand,
            room,
            patience,
            progress: 0,
            waited: Duration::ZERO,
            touched: false,
            ended: false,
            proof: None,
        }
    }

    /// How what lies in buffers of so many bytes may go to the client: as far ahead as the store reads; beyond what bodies may have by that,
    /// with few buffers. `None` when there is no room for those.
    pub(crate) fn may_send(&mut self, around: u64) -> Option<Sending> {
        let few = self.room.few(around);
        let Some(served) = &mut self.served else {
            return Some(Sending::Whole);
        };
        if !served.holds(few) {
            // They were of an object that had less.
            served.let_go();
            if served.try_hold_amply(at_most(around, self.room.leaving)) {
                return Some(Sending::Whole);
            }
            if !served.try_hold(few) {
                return None;
            }
        }
        Some(match around <= 2 * self.room.slice as u64 {
            true => Sending::Whole,
            false => Sending::Slices(self.room.slice as u64),
        })
    }

    /// Waits until what lies in buffers of so many bytes may go with few of them.
    ///
    /// # Errors
    /// As [`Inbound::hold`].
    pub(crate) async fn wait_to_send(&mut self, around: u64) -> Outcome<()> {
        self.hold(self.room.few(around)).await
    }

    /// Waits until the buffers of a body are no more than its sender may have beside those of the other bodies that are on their way.
    ///
    /// # Errors
    /// `SlowDown` when the others keep theirs for too long.
    async fn hold(&mut self, bytes: usize) -> Outcome<()> {
        let Some(served) = &mut self.served else {
            return Ok(());
        };
        if served.try_hold(bytes) {
            return Ok(());
        }
        // So long that whoever is hurried meanwhile, and takes or sends too little, is given up before.
        let limit = self.patience + 2 * self.demand.grace;
        let held = timeout(limit, served.hold(bytes)).await;
        held.map_err(|_| ErrorCode::SlowDown.into())
    }

    /// Takes what the signature says about the body.
    pub(crate) fn prove(&mut self, proof: Proof) {
        self.proof = Some(proof);
    }

    /// Reads a document of at most [`MAX_BODY`] bytes; no body is an empty one.
    pub(crate) async fn document(&mut self, request: &HeaderMap) -> Outcome<Vec<u8>> {
        self.read_document(request, Claims::read, MAX_BODY).await
    }

    /// As [`Inbound::document`], for a list of parts, of at most [`MAX_COMPLETE_BODY`] bytes, whose request's checksum
    /// headers are about the object that it makes.
    pub(crate) async fn list_of_parts(&mut self, request: &HeaderMap) -> Outcome<Vec<u8>> {
        self.read_document(request, Claims::read_but_checksums, MAX_COMPLETE_BODY)
            .await
    }

    async fn read_document(
        &mut self,
        request: &HeaderMap,
        claims: impl FnOnce(&HeaderMap, Proof) -> Outcome<Claims>,
        limit: usize,
    ) -> Outcome<Vec<u8>> {
        use hyper::body::Body;
        if self.body.is_end_stream() && !request.contains_key(CONTENT_LENGTH) {
            return Ok(Vec::new());
        }
        let proof = self.proof.take().ok_or(ErrorCode::InternalError)?;
        let claims = claims(request, proof)?;
        if claims.length > limit as u64 {
            return Err(ErrorCode::MaxMessageLengthExceeded.into());
        }
        let mut sink = DocumentSink {
            bytes: Vec::new(),
            limit,
            held: self.served.as_ref().map(Served::document),
        };
        self.read(claims, &mut sink, false).await?;
        self.held = sink.held;
        Ok(sink.bytes)
    }

    /// The pump: frames, framing, hashes, sink, and then the comparisons. Returns what was made, and the claimed
    /// checksum where the caller compares it.
    async fn read<S: Sink>(
        &mut self,
        claims: Claims,
        sink: &mut S,
        skip_checksum: bool,
    ) -> Outcome<(Received, Option<Checksum>)> {
        let sha256_is_checksum = claims.algorithm == Some(Algorithm::Sha256);
        let mut digests = Digests {
            md5: claims.md5.map(|_| Md5::default()),
            sha256: (claims.sha256.is_some() && !sha256_is_checksum)
                .then(|| Hasher::new(Algorithm::Sha256)),
            checksum: claims.algorithm.filter(|_| !skip_checksum).map(Hasher::new),
        };
        let trailers = match claims.framing {
            Framing::Plain => {
                let mut left = claims.length;
                while let Some(frame) = self.frame(sink.holds()).await? {
                    left = left
                        .checked_sub(frame.len() as u64)
                        .ok_or(ErrorCode::IncompleteBody)?;
                    digests.update(&frame);
                    sink.take(&frame).await?;
                }
                if left > 0 {
                    return Err(ErrorCode::IncompleteBody.into());
                }
                Vec::new()
            }
            Framing::Chunked(mut decoder) => {
                while let Some(frame) = self.frame(sink.holds()).await? {
                    let mut input = &frame[..];
                    while let Some(event) = decoder.next(&mut input)? {
                        match event {
                            Event::Data(data) => {
                                digests.update(data);
                                sink.take(data).await?;
                            }
                            Event::End => break,
                        }
                    }
                }
                decoder.finish()?
            }
        };
        let made_md5 = digests.md5.map(Md5::finalize);
        if claims.md5.is_some() && claims.md5 != made_md5 {
            return Err(ErrorCode::BadDigest.into());
        }
        let made = digests.checksum.map(Hasher::finalize);
        if let Some(expected) = claims.sha256 {
            let sha256 = digests.sha256.map(Hasher::finalize).or(made);
            if sha256.is_none_or(|sha256| sha256.as_bytes() != expected) {
                return Err(ErrorCode::XAmzContentSHA256Mismatch.into());
            }
        }
        let claimed = match claims.algorithm.filter(|_| claims.in_trailer) {
            Some(algorithm) => Some(trailing(&trailers, algorithm)?),
            None => claims.value,
        };
        if let (Some(claimed), Some(made)) = (claimed, made)
            && claimed != made
        {
            return Err(Refusal::checksum_mismatch(made.algorithm()));
        }
        let received = Received {
            md5: made_md5,
            checksum: made,
        };
        Ok((received, claimed))
    }

    /// The next bytes of the body as they came. Whoever `holds` a buffer meanwhile is hurried while others wait for some, and whoever
    /// has some of its tenant's share while others wait for that.
    async fn frame(&mut self, holds: bool) -> Outcome<Option<Bytes>> {
        self.touched = true;
        loop {
            let begun = Instant::now();
            let left = self.patience.saturating_sub(self.waited);
            let frame = timeout(left, self.body.frame()).await;
            self.waited += begun.elapsed();
            let Ok(frame) = frame else {
                // Nobody may be waiting any more.
                match self.count(0, holds) {
                    true => continue,
                    false => return Err(ErrorCode::RequestTimeout.into()),
                }
            };
            let Some(frame) = frame else {
                self.ended = true;
                return Ok(None);
            };
            let frame = frame.map_err(|_| ErrorCode::IncompleteBody)?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            self.count(data.len(), holds);
            self.metrics.received(data.len());
            if let Some(served) = &self.served {
                served.received(data.len());
            }
            return Ok(Some(data));
        }
    }

    /// Counts what came. Whether it is enough, so that the time begins anew.
    fn count(&mut self, bytes: usize, holds: bool) -> bool {
        self.progress += bytes;
        let own = self.served.as_ref().and_then(Served::demand);
        let is_hurried = (holds && self.demand.is_there()) || own.is_some_and(|own| own.is_there());
        let enough = match is_hurried {
            true => HURRIED_BYTES,
            false => PROGRESS_BYTES,
        };
        let going = self.progress >= enough;
        if going {
            self.progress = 0;
            self.waited = Duration::ZERO;
        }
        going
    }

    /// After a refusal: reads what the client is sending anyway, within a bound, so that it hears the answer instead of
    /// a reset. Returns whether the connection can go on.
    pub(crate) async fn drain(&mut self, request: &HeaderMap) -> bool {
        use hyper::body::Body;
        if self.ended || self.body.is_end_stream() {
            return true;
        }
        if !self.touched && request.contains_key(EXPECT) {
            // The client waits for our word; reading would ask it to send.
            return false;
        }
        let limit = DRAIN_TIME.min(self.patience);
        let skipping = async {
            let mut room = DRAIN_BYTES;
            while let Ok(Some(frame)) = self.frame(false).await {
                match room.checked_sub(frame.len()) {
                    Some(left) => room = left,
                    None => break,
                }
            }
        };
        // Whether it came to an end is known either way.
        let _ = timeout(limit, skipping).await;
        self.ended
    }
}
