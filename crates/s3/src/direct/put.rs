//! `PutObject` and `UploadPart` out of a client's memory.

use forebay_fabric::Link;
use forebay_mem::{Buf, BufMut};
use forebay_proto::s3::checksum::{Algorithm, Checksum, Hasher};
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::sigv4::Payload;
use forebay_proto::token::ort1::Promise;
use forebay_store::{Store, Upload};
use http::StatusCode;
use http::header::HeaderMap;

use super::moved::Moved;
use super::transfer::{Lease, Transfer, Windows, broken, failed, late, stopped};
use crate::call::Call;
use crate::claims::{Claims, Proof};
use crate::demand::Demand;
use crate::ingest::{Received, Source, check_crc64nvme};
use crate::lanes::Lane;
use crate::reply::Reply;
use crate::router::Operation;
use crate::status::{Manner, Outcome, Refusal};
use crate::{multipart, object_put};

/// `PutObject` or `UploadPart`: read once into our own buffers, compared with every claim, made current, and then told.
/// Returns how many bytes that were, too.
pub(super) async fn put<S: Store, L: Link>(
    op: Operation,
    call: &Call<'_, S>,
    transfer: Transfer<L>,
    promise: Option<Promise>,
) -> Outcome<(Reply<S::Body>, u64)> {
    let lease = transfer.lease;
    let mut pull = Pull::new(transfer, promise);
    let writing = async {
        match op {
            Operation::UploadPart => multipart::upload_part(call, &mut pull).await,
            _ => object_put::put(call, &mut pull).await,
        }
    };
    let written = lease.finish(writing).await;
    let mut reply = match (written, &pull.moved) {
        (Some(written), _) => written?,
        // The store may make current what it has, now or later: neither a success nor a failure would be true.
        (None, Some(moved)) => return Err(failed(moved.bytes()).manner(Manner::Unsaid)),
        (None, None) => return Err(late()),
    };
    let moved = pull.moved.ok_or(ErrorCode::InternalError)?;
    let bytes = moved.tell(StatusCode::OK, reply.headers_mut());
    Ok((reply, bytes))
}

/// The client's memory as the source of a write.
pub(super) struct Pull<L> {
    pub(super) transfer: Transfer<L>,
    promise: Option<Promise>,
    /// What the token promises beside what the headers claim.
    also: Option<Checksum>,
    /// Set when every byte was read.
    moved: Option<Moved>,
}

impl<L> Pull<L> {
    pub(super) fn new(transfer: Transfer<L>, promise: Option<Promise>) -> Pull<L> {
        Pull {
            transfer,
            promise,
            also: None,
            moved: None,
        }
    }
}

impl<L: Link> Source for Pull<L> {
    fn claims(&mut self, request: &HeaderMap) -> Outcome<Claims> {
        let unsigned = Proof {
            presigned: false,
            payload: Payload::Unsigned,
            chain: None,
        };
        let mut claims = Claims::read(request, unsigned)?;
        claims.length = self.transfer.windows.total();
        if let Some(promise) = self.promise {
            self.also = keep(promise, &mut claims)?;
        }
        Ok(claims)
    }

    async fn store_into<U: Upload>(
        &mut self,
        claims: Claims,
        upload: &mut U,
        md5: bool,
    ) -> Outcome<Received> {
        let Transfer {
            link,
            windows,
            lease,
            demand,
        } = &mut self.transfer;
        let own_crc = claims.algorithm == Some(Algorithm::Crc64Nvme);
        let also = self.also.as_ref().map(Checksum::algorithm);
        let mut made = Made {
            md5: md5.then(Lane::new),
            checksum: claims.algorithm.filter(|_| !own_crc).map(Hasher::new),
            also: also
                .filter(|also| *also != Algorithm::Crc64Nvme)
                .map(Hasher::new),
        };
        let mut left = claims.length;
        let room = buffer(lease, demand, upload, left, 0).await?;
        let mut filled = fill(link, windows, lease, room, 0).await?;
        let mut moved = filled.len() as u64;
        loop {
            left -= filled.len() as u64;
            let buf = filled.freeze();
            if left == 0 {
                made.absorb(lease, upload, buf, moved).await?;
                break;
            }
            let room = buffer(lease, demand, upload, left, moved).await?;
            // The next bytes are read while these are hashed and written.
            let (next, absorbed) = tokio::join!(
                fill(link, windows, lease, room, moved),
                made.absorb(lease, upload, buf, moved)
            );
            absorbed?;
            filled = next?;
            moved += filled.len() as u64;
        }
        let checksum = made.checksum.map(Hasher::finalize);
        if own_crc {
            check_crc64nvme(claims.value, upload)?;
        } else if let (Some(claimed), Some(made)) = (&claims.value, &checksum)
            && claimed != made
        {
            return Err(Refusal::checksum_mismatch(made.algorithm()));
        }
        match (&self.also, made.also.map(Hasher::finalize)) {
            (Some(promised), Some(made)) if *promised != made => {
                return Err(Refusal::checksum_mismatch(made.algorithm()));
            }
            (Some(promised), None) => check_crc64nvme(Some(*promised), upload)?,
            _ => {}
        }
        self.moved = Some(Moved::taken(moved));
        Ok(Received {
            md5: made.md5.map(Lane::finalize),
            checksum,
        })
    }
}

/// What is made of the bytes on their way.
struct Made {
    md5: Option<Lane>,
    checksum: Option<Hasher>,
    also: Option<Hasher>,
}

impl Made {
    async fn absorb<U: Upload>(
        &mut self,
        lease: &Lease,
        upload: &mut U,
        buf: Buf,
        moved: u64,
    ) -> Outcome<()> {
        for hasher in [&mut self.checksum, &mut self.also].into_iter().flatten() {
            hasher.update(&buf);
        }
        let taken = lease.finish(async {
            let written = upload.write(buf.clone()).await;
            written.map_err(|error| stopped(error, moved))?;
            if let Some(md5) = &mut self.md5 {
                md5.update(buf).await;
            }
            Ok::<(), Refusal>(())
        });
        taken.await.ok_or_else(|| failed(moved))?
    }
}

/// A buffer for what comes next. `moved` bytes were read before.
async fn buffer<U: Upload>(
    lease: &Lease,
    demand: &Demand,
    upload: &mut U,
    left: u64,
    moved: u64,
) -> Outcome<BufMut> {
    let want = usize::try_from(left).unwrap_or(usize::MAX);
    match lease.before(demand.wait(upload.buffer(want))).await {
        Ok(buf) => buf.map_err(|error| stopped(error, moved)),
        Err(_) if moved > 0 => Err(failed(moved)),
        Err(late) => Err(late),
    }
}

/// Reads the client's memory until the buffer is full or the memory is at its end. A link that brings back another number
/// of bytes than it was asked for has failed, whatever it says.
async fn fill<L: Link>(
    link: &L,
    windows: &mut Windows,
    lease: &Lease,
    mut buf: BufMut,
    moved: u64,
) -> Outcome<BufMut> {
    while buf.room() > 0 {
        let Some(piece) = windows.next(buf.room() as u64) else {
            break;
        };
        if !lease.is_running() {
            return Err(match moved {
                0 => late(),
                _ => failed(moved),
            });
        }
        let expected = buf.len() as u64 + piece.len;
        match lease.finish(link.read(piece, buf)).await {
            Some(Ok(back)) => buf = back,
            Some(Err(error)) => return Err(broken(&error, moved)),
            None => {
                link.close(forebay_fabric::CloseReason::Lost);
                return Err(failed(moved));
            }
        }
        if buf.len() as u64 != expected {
            return Err(failed(moved));
        }
    }
    Ok(buf)
}

/// Makes the token's promise the request's claim, which it must not contradict; or gives it back when the headers claim a
/// checksum of another kind, so that both are compared.
fn keep(promise: Promise, claims: &mut Claims) -> Outcome<Option<Checksum>> {
    let (algorithm, bytes) = match &promise {
        Promise::Crc64Nvme(value) => (Algorithm::Crc64Nvme, &value[..]),
        Promise::Crc32C(value) => (Algorithm::Crc32C, &value[..]),
        Promise::Sha256(value) => (Algorithm::Sha256, &value[..]),
    };
    let promised = Checksum::from_bytes(algorithm, bytes).ok_or(ErrorCode::InternalError)?;
    if claims.algorithm.is_some_and(|claimed| claimed != algorithm) {
        return Ok(Some(promised));
    }
    match &claims.value {
        Some(claimed) if *claimed != promised => Err(Refusal::checksum_mismatch(algorithm)),
        _ => {
            (claims.algorithm, claims.value) = (Some(algorithm), Some(promised));
            Ok(None)
        }
    }
}
