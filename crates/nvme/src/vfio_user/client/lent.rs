//! Memory of ours that the device has no file of: it asks, and is told, or tells us what to put there.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_mem::{CopySite, PAGE_BYTES, Region, count_copy};
use forebay_proto::vfio_user::reply::{put_dma_read, put_dma_written};
use forebay_proto::vfio_user::{DmaAccess, DmaRequest, HEADER_BYTES, Kind, message};
use parking_lot::Mutex;

use crate::vfio_user::asking::QUESTION_BYTES_MAX;
use crate::vfio_user::channel::Message;
use crate::vfio_user::errno::Errno;

/// The most data that the server may ask for or tell at once: what the system keeps in one piece, since doorbells are rung from any
/// thread, by messages that must not come between the parts of another.
pub(super) const DATA_BYTES_MAX: usize = QUESTION_BYTES_MAX;

/// What a device may do with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceMay {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Both.
    ReadAndWrite,
}

impl DeviceMay {
    pub(super) fn read(self) -> bool {
        self != DeviceMay::Write
    }

    pub(super) fn write(self) -> bool {
        self != DeviceMay::Read
    }
}

/// What was lent, by the address that the device knows it by.
#[derive(Default)]
pub(super) struct Lent {
    by_address: Mutex<BTreeMap<u64, (Arc<Region>, DeviceMay)>>,
}

impl Lent {
    /// The device may ask for this from now on.
    pub(super) fn lend(&self, address: u64, region: Arc<Region>, may: DeviceMay) {
        self.by_address.lock().insert(address, (region, may));
    }

    /// No more.
    pub(super) fn take_back(&self, address: u64) {
        self.by_address.lock().remove(&address);
    }

    /// Does what the server asks; the answer, unless it wants none.
    pub(super) fn answer(&self, asked: &Message) -> Option<Vec<u8>> {
        let header = &asked.header;
        let mut whole = Vec::new();
        let done = match header.command() {
            Some(command) => DmaRequest::parse(command, &asked.payload).map_err(Errno::from),
            None => Err(Errno::UNSUPPORTED),
        }
        .and_then(|request| self.serve(&request, &mut whole));
        let kind = match (header.kind, done) {
            (Kind::Command { no_reply: true }, _) => return None,
            (_, Ok(())) => Kind::Reply { error: None },
            (_, Err(Errno(number))) => {
                whole.clear();
                Kind::Reply {
                    error: Some(number),
                }
            }
        };
        let mut out = Vec::with_capacity(HEADER_BYTES + whole.len());
        message(&mut out, header.id, header.number, kind, |out| {
            out.extend_from_slice(&whole);
        });
        Some(out)
    }

    fn serve(&self, request: &DmaRequest<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let DmaAccess { address, count } = request.access();
        let lent = self.by_address.lock();
        let (begin, (region, may)) = lent.range(..=address).next_back().ok_or(Errno::INVALID)?;
        let count = usize::try_from(count).map_err(|_| Errno::INVALID)?;
        let at = usize::try_from(address - begin).map_err(|_| Errno::INVALID)?;
        let end = at.checked_add(count).ok_or(Errno::INVALID)?;
        // The device was told of whole pages.
        let memory = region.slice(0..region.len()).ok_or(Errno::INVALID)?;
        if count > DATA_BYTES_MAX || end > region.len().next_multiple_of(PAGE_BYTES) {
            return Err(Errno::INVALID);
        }
        let inside = end.min(region.len()).saturating_sub(at);
        count_copy(CopySite::Client, inside);
        match request {
            DmaRequest::Read(access) if may.read() => {
                put_dma_read(out, *access);
                let data = out.len();
                out.resize(data + count, 0);
                match memory.read(at, &mut out[data..data + inside]) {
                    true => Ok(()),
                    false => Err(Errno::INVALID),
                }
            }
            DmaRequest::Write(access, data) if may.write() => {
                put_dma_written(out, *access);
                match memory.write(at, &data[..inside]) {
                    true => Ok(()),
                    false => Err(Errno::INVALID),
                }
            }
            DmaRequest::Read(_) | DmaRequest::Write(..) => Err(Errno::DENIED),
        }
    }
}
