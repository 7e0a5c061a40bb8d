//! `GetObject` into a client's memory.

use std::ops::Range;
use std::sync::Arc;

use forebay_fabric::{Access, Link};
use forebay_mem::{Buf, RegionSlice};
use forebay_proto::s3::checksum::{Algorithm, Checksum};
use forebay_proto::s3::error::ErrorCode;
use forebay_store::{Address, Body, ByteRange, ErrorKind, Meta, Object, Store, StoreError};
use http::StatusCode;
use http::header::{CONTENT_RANGE, HeaderMap};
use tokio::task::JoinError;

use super::lender::Serving;
use super::moved::{CHECKSUM, Moved};
use super::transfer::{Quiesce, Transfer, broken, failed, is_whole, late, parted, stopped};
use crate::call::Call;
use crate::headers;
use crate::object_get::{self, Found, cut_short};
use crate::reply::{self, Reply};
use crate::status::{Manner, Outcome};

/// How often an object that is being replaced is placed again.
const ATTEMPTS: usize = 8;

/// `GetObject`: as much as asked for and as the window holds. Returns how many bytes that were, too.
pub(super) async fn get<S: Store, L: Link>(
    call: &Call<'_, S>,
    mut transfer: Transfer<L>,
    serving: &mut Serving,
) -> Outcome<(Reply<S::Body>, u64)> {
    for _ in 0..ATTEMPTS {
        let found = transfer.lease.before(object_get::find(call)).await??;
        // The store was given a name. Numbers of buckets are never used again: what has this one still had it then.
        call.still_admitted()?;
        let Found { object, partial } = found;
        let Object { meta, range, body } = object;
        serving.found(&range)?;
        let length = (range.end - range.start).min(transfer.windows.total());
        let range = range.start..range.start + length;
        let partial = partial || length < meta.size;
        // Whatever can be refused is refused before a byte moves.
        let mut response = HeaderMap::new();
        // Clients compare `x-amz-checksum-*` with the body, and that is empty: what was placed has a checksum of its own.
        object_get::describe(call, &meta, false, &mut response)?;
        if partial {
            response.insert(CONTENT_RANGE, object_get::content_range(&range, meta.size));
        } else if let Some(crc) = Checksum::from_crc_value(Algorithm::Crc64Nvme, meta.crc64nvme) {
            let text = crc.to_base64();
            response.insert(CHECKSUM, headers::value(text.as_bytes()));
        }
        // What is placed is looked up once more, and is not taken back. Where a policy asks for tags, the bytes are those of the object
        // whose tags were judged.
        let mapped = match transfer.windows.together(length) {
            Some(window) if length > 0 && !call.asks_tags() => {
                transfer.link.mapped(window, Access::Write)
            }
            _ => None,
        };
        let moved = match mapped {
            Some(target) => {
                drop(body);
                match place(call, &transfer, &meta, range, target).await? {
                    Some(moved) => moved,
                    None => continue,
                }
            }
            None => stream(&mut transfer, body, length).await?,
        };
        let status = match partial {
            true => StatusCode::PARTIAL_CONTENT,
            false => StatusCode::OK,
        };
        let bytes = moved.tell(status, &mut response);
        let mut reply = reply::ok(response);
        *reply.status_mut() = status;
        return Ok((reply, bytes));
    }
    Err(ErrorCode::SlowDown.into())
}

/// Has the store read its device into the client's memory. `None` when the object was replaced meanwhile: what was placed
/// is then of no object that was asked for.
async fn place<S: Store, L: Link>(
    call: &Call<'_, S>,
    transfer: &Transfer<L>,
    meta: &Meta,
    range: Range<u64>,
    target: RegionSlice,
) -> Outcome<Option<Moved>> {
    let store = Arc::clone(&call.door.store);
    let (bucket, key) = (call.bucket.to_owned(), call.key.to_owned());
    let version = call.version()?;
    let bytes = ByteRange::Inclusive(range.start, range.end - 1);
    let admitted = call.namespace.as_ref().map(|info| info.id);
    let placing = async move {
        // As late as can be: bytes that are placed are not taken back.
        if Some(store.namespace(&bucket)?.id) != admitted {
            return Err(StoreError::new(
                ErrorKind::NoSuchNamespace,
                "another bucket",
            ));
        }
        let address = Address::object(&bucket, key.as_bytes());
        store.retrieve_into(address, version, bytes, target).await
    };
    let Some(ended) = landing(transfer, placing).await else {
        return Err(failed(0).manner(Manner::Unsaid));
    };
    let (placed_meta, placed_range) = match ended {
        Ok(Ok(placed)) => placed,
        Ok(Err(error)) if error.kind() == ErrorKind::RangeNotSatisfiable => return Ok(None),
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => return Err(ErrorCode::InternalError.into()),
    };
    if placed_meta != *meta || placed_range != range {
        return Ok(None);
    }
    let length = range.end - range.start;
    match transfer.lease.finish(transfer.link.fence()).await {
        Some(Ok(proof)) => Ok(Some(Moved::placed(length, proof))),
        Some(Err(error)) => Err(parted(&transfer.link, broken(&error, length))),
        None => Err(parted(&transfer.link, failed(length))),
    }
}

/// Waits for a device that writes to the client's memory; `None` when that takes too long. It cannot be called back, and must not be
/// forgotten either: so it is on a task of its own, which ends whatever becomes of the request, and a request that does not see that
/// end takes its link along.
pub(super) async fn landing<L: Link, T: Send + 'static>(
    transfer: &Transfer<L>,
    placing: impl Future<Output = T> + Send + 'static,
) -> Option<Result<T, JoinError>> {
    let mut quiesce = Quiesce::new(&transfer.link);
    quiesce.arm();
    let ended = transfer.lease.finish(tokio::spawn(placing)).await?;
    quiesce.disarm();
    Some(ended)
}

/// Writes what the store yields, the next buffer being read while one is written.
pub(super) async fn stream<L: Link, B: Body>(
    transfer: &mut Transfer<L>,
    mut body: B,
    length: u64,
) -> Outcome<Moved> {
    let Transfer {
        link,
        windows,
        lease,
        demand,
    } = transfer;
    let mut quiesce = Quiesce::new(&*link);
    let mut moved = 0;
    let failure = 'moving: {
        let mut next: Outcome<Result<Option<Buf>, StoreError>> = match length {
            0 => Ok(Ok(None)),
            _ => lease.before(demand.wait(body.next())).await,
        };
        while moved < length {
            let mut buf = match next {
                Ok(Ok(Some(buf))) => buf,
                Ok(Ok(None)) => break 'moving Some(stopped(cut_short(), moved)),
                Ok(Err(error)) => break 'moving Some(stopped(error, moved)),
                Err(_) if quiesce.is_armed() => break 'moving Some(failed(moved)),
                Err(late) => break 'moving Some(late),
            };
            let left = length - moved;
            if buf.len() as u64 > left {
                // It fits: it is shorter than the buffer.
                buf = buf.slice(0..left as usize);
            }
            let count = buf.len() as u64;
            if !lease.is_running() {
                break 'moving Some(match quiesce.is_armed() {
                    true => failed(moved),
                    false => late(),
                });
            }
            quiesce.arm();
            let following = async {
                match count < left {
                    true => lease.before(demand.wait(body.next())).await,
                    false => Ok(Ok(None)),
                }
            };
            let (wrote, following) =
                tokio::join!(lease.finish(write(link, windows, buf)), following);
            match wrote {
                Some(Ok(())) => moved += count,
                Some(Err(error)) if is_whole(&error) => break 'moving Some(broken(&error, moved)),
                // Whether the bytes still land is not known.
                Some(Err(error)) => return Err(parted(link, broken(&error, moved))),
                None => return Err(parted(link, failed(moved))),
            }
            next = following;
        }
        None
    };
    if failure.is_some() && !quiesce.is_armed() {
        return Err(failure.unwrap_or_else(late));
    }
    match lease.finish(link.fence()).await {
        Some(Ok(proof)) => {
            quiesce.disarm();
            match failure {
                Some(failure) => Err(failure),
                None => Ok(Moved::placed(moved, proof)),
            }
        }
        Some(Err(error)) => Err(parted(link, broken(&error, moved))),
        None => Err(parted(link, failed(moved))),
    }
}

async fn write<L: Link>(
    link: &L,
    windows: &mut super::transfer::Windows,
    buf: Buf,
) -> forebay_fabric::Result<()> {
    let mut at = 0;
    while at < buf.len() {
        let Some(piece) = windows.next((buf.len() - at) as u64) else {
            return Err(forebay_fabric::Error::new(
                forebay_fabric::ErrorKind::Invalid,
                "the window is full",
            ));
        };
        // A piece is no longer than what is left of the buffer.
        let end = at + piece.len as usize;
        link.write(piece, vec![buf.slice(at..end)]).await?;
        at = end;
    }
    Ok(())
}
