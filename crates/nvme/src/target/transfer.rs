//! Values between a store and a payload.

use forebay_mem::{CopySite, RegionSlice, count_copy};
use forebay_proto::nvme::Status;
use forebay_store::{Body, ByteRange, ErrorKind, Object, Store, Upload};

use super::Payload;
use super::entered::Named;
use super::status::of_store;

/// Places in the host's memory at least this long are read into one by one; shorter ones are filled from one body.
const PIECE_BYTES_MIN: usize = 64 << 10;
/// A value that is replaced while it is read in pieces is read again so often; then from one body.
const ATTEMPTS: usize = 3;

/// Moves the next `len` bytes of the payload to the upload.
pub(super) async fn fill<U: Upload>(
    upload: &mut U,
    payload: &mut impl Payload,
    len: u64,
) -> Result<(), Status> {
    let mut left = len;
    while left > 0 {
        if let Some(source) = payload.source(left) {
            left = left.saturating_sub(source.len() as u64);
            upload
                .read_from(source)
                .await
                .map_err(|error| of_store(&error))?;
            continue;
        }
        payload.ready().await?;
        let want = usize::try_from(left).unwrap_or(usize::MAX);
        let mut buf = upload
            .buffer(want)
            .await
            .map_err(|error| of_store(&error))?;
        let take = want.min(buf.room());
        payload.receive(&mut buf, take).await?;
        upload
            .write(buf.freeze())
            .await
            .map_err(|error| of_store(&error))?;
        left -= take as u64;
    }
    Ok(())
}

/// Moves the value's bytes from `offset` on to the host, as many as there are and fit into `room`; tells how long the value is.
pub(super) async fn place<S: Store>(
    value: &Named<'_, S>,
    offset: u64,
    room: u64,
    payload: &mut impl Payload,
) -> Result<u64, Status> {
    let Some(last) = room.checked_sub(1) else {
        return size(value).await;
    };
    let placed = match payload.target(room) {
        Some(first) if first.len() as u64 >= room => {
            let range = ByteRange::Inclusive(offset, offset.saturating_add(last));
            let read = value
                .store()
                .retrieve_into(value.address()?, None, range, first)
                .await;
            read.map(|(meta, _)| meta.size)
        }
        Some(first) => {
            let mut pieces = vec![first];
            let mut left = room - pieces[0].len() as u64;
            while left > 0 {
                let Some(piece) = payload.target(left) else {
                    return Err(Status::DATA_TRANSFER_ERROR);
                };
                left = left.saturating_sub(piece.len() as u64);
                pieces.push(piece);
            }
            return Box::pin(place_scattered(value, offset, &pieces)).await;
        }
        None => {
            let range = ByteRange::Inclusive(offset, offset.saturating_add(last));
            match value.store().retrieve(value.address()?, None, range).await {
                Ok(object) => return send(object, payload).await,
                Err(error) => Err(error),
            }
        }
    };
    match placed {
        Ok(size) => Ok(size),
        // It ends before the offset, or is empty.
        Err(error) if error.kind() == ErrorKind::RangeNotSatisfiable => size(value).await,
        Err(error) => Err(of_store(&error)),
    }
}

async fn size<S: Store>(value: &Named<'_, S>) -> Result<u64, Status> {
    let meta = value.store().stat(value.address()?, None).await;
    meta.map(|meta| meta.size).map_err(|error| of_store(&error))
}

async fn send<B: Body>(object: Object<B>, payload: &mut impl Payload) -> Result<u64, Status> {
    let Object { meta, mut body, .. } = object;
    while let Some(buf) = body.next().await.map_err(|error| of_store(&error))? {
        payload.send(buf).await?;
    }
    Ok(meta.size)
}

/// Into memory that is not contiguous.
async fn place_scattered<S: Store>(
    value: &Named<'_, S>,
    offset: u64,
    pieces: &[RegionSlice],
) -> Result<u64, Status> {
    let long = pieces
        .iter()
        .rev()
        .skip(1)
        .all(|piece| piece.len() >= PIECE_BYTES_MIN);
    if long {
        for _ in 0..ATTEMPTS {
            match place_pieces(value, offset, pieces).await? {
                Some(size) => return Ok(size),
                None => continue,
            }
        }
    }
    copy_pieces(value, offset, pieces).await
}

/// Piece by piece; `None` when the value was replaced meanwhile.
async fn place_pieces<S: Store>(
    value: &Named<'_, S>,
    offset: u64,
    pieces: &[RegionSlice],
) -> Result<Option<u64>, Status> {
    let mut at = offset;
    let mut seen = None;
    for piece in pieces {
        let range = ByteRange::Inclusive(at, at.saturating_add(piece.len() as u64 - 1));
        let read = value
            .store()
            .retrieve_into(value.address()?, None, range, piece.clone())
            .await;
        let (meta, _) = match read {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::RangeNotSatisfiable && seen.is_none() => {
                return size(value).await.map(Some);
            }
            // Shorter, or gone: it was there a moment ago.
            Err(_) if seen.is_some() => return Ok(None),
            Err(error) => return Err(of_store(&error)),
        };
        at = at.saturating_add(piece.len() as u64);
        let size = meta.size;
        if seen.get_or_insert_with(|| meta.clone()) != &meta {
            return Ok(None);
        }
        if at >= size {
            return Ok(Some(size));
        }
    }
    Ok(seen.map(|meta| meta.size))
}

/// From one body, which stays what it was when it was begun.
async fn copy_pieces<S: Store>(
    value: &Named<'_, S>,
    offset: u64,
    pieces: &[RegionSlice],
) -> Result<u64, Status> {
    let room: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    let range = ByteRange::Inclusive(offset, offset.saturating_add(room - 1));
    let Object { meta, mut body, .. } =
        match value.store().retrieve(value.address()?, None, range).await {
            Ok(object) => object,
            Err(error) if error.kind() == ErrorKind::RangeNotSatisfiable => {
                return size(value).await;
            }
            Err(error) => return Err(of_store(&error)),
        };
    let mut pieces = pieces.iter();
    let mut piece = pieces.next();
    let mut at = 0;
    while let Some(buf) = body.next().await.map_err(|error| of_store(&error))? {
        let mut rest = &buf[..];
        while !rest.is_empty() {
            let Some(into) = piece else {
                return Err(Status::INTERNAL_ERROR);
            };
            let len = rest.len().min(into.len() - at);
            if !into.write(at, &rest[..len]) {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            count_copy(CopySite::RetrieveInto, len);
            rest = &rest[len..];
            at += len;
            if at == into.len() {
                (piece, at) = (pieces.next(), 0);
            }
        }
    }
    Ok(meta.size)
}
