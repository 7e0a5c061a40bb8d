//! The data of one command over TCP.

use std::future::poll_fn;

use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_proto::nvme::fabrics::command_type;
use forebay_proto::nvme::opcode::{Direction, FABRICS, direction};
use forebay_proto::nvme::{SglKind, SglSubtype, Status, SubmissionQueueEntry};
use forebay_proto::nvme_tcp::Data;

use super::wire::Wire;
use crate::target::Payload;

/// Where a command's data is, by its SGL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pointer {
    /// It has none.
    None,
    /// So many bytes in its capsule.
    Capsule(u32),
    /// So many bytes that the host sends when asked.
    FromHost(u32),
    /// So many bytes of room at the host.
    ToHost(u32),
}

impl Pointer {
    /// Of a command whose capsule carried this much data. A command without data, or with both directions, which fabrics do not
    /// have, is never asked for any.
    ///
    /// # Errors
    /// The status to answer (section 3.2 of the TCP transport, 4.1.2 of the base specification).
    pub(super) fn of(
        entry: &SubmissionQueueEntry,
        capsule_bytes: usize,
    ) -> Result<Pointer, Status> {
        let to_controller = match direction(match entry.opcode() {
            FABRICS => command_type(entry),
            opcode => opcode,
        }) {
            Direction::ToController => true,
            Direction::ToHost => false,
            Direction::None | Direction::Both => return Ok(Pointer::None),
        };
        if !matches!(entry.psdt(), 1 | 2) {
            return Err(Status::INVALID_FIELD);
        }
        let sgl = entry.sgl();
        match (sgl.kind, sgl.subtype) {
            (SglKind::DataBlock, SglSubtype::Offset) if to_controller => {
                if sgl.address != 0 {
                    return Err(Status::SGL_OFFSET_INVALID);
                }
                if sgl.length as usize != capsule_bytes {
                    return Err(Status::DATA_SGL_LENGTH_INVALID);
                }
                Ok(Pointer::Capsule(sgl.length))
            }
            (SglKind::TransportDataBlock, SglSubtype::Transport) => {
                match to_controller {
                    false => Ok(Pointer::ToHost(sgl.length)),
                    true if capsule_bytes == 0 => Ok(Pointer::FromHost(sgl.length)),
                    // It is either here or still to be asked for.
                    true => Err(Status::DATA_SGL_LENGTH_INVALID),
                }
            }
            _ => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
        }
    }

    pub(super) fn len(self) -> u32 {
        match self {
            Pointer::None => 0,
            Pointer::Capsule(len) | Pointer::FromHost(len) | Pointer::ToHost(len) => len,
        }
    }
}

/// The data of the command in one place.
pub(super) struct TcpPayload<'a> {
    wire: &'a Wire,
    place: usize,
    cid: u16,
    pointer: Pointer,
    /// What is asked for of what the host would send.
    wanted: u32,
    /// Bytes taken or given.
    moved: u32,
    asked: bool,
    /// Data whose successor decides how it is sent: the last of a command is marked.
    held: Option<Buf>,
}

impl<'a> TcpPayload<'a> {
    /// `wanted`: how many bytes the command takes at most of what the host offers.
    pub(super) fn new(
        wire: &'a Wire,
        place: usize,
        cid: u16,
        pointer: Pointer,
        wanted: u32,
    ) -> TcpPayload<'a> {
        TcpPayload {
            wire,
            place,
            cid,
            pointer,
            wanted,
            moved: 0,
            asked: false,
            held: None,
        }
    }

    /// The command is over, and complete when this is: what the host was asked for has come. Gives what was given last and is not with
    /// the sender yet, when there is room for it there: until then its command holds it.
    pub(super) async fn end(mut self) -> Option<(Data, Buf)> {
        if self.asked && self.moved < self.wanted {
            poll_fn(|_| self.wire.poll_refused(self.place)).await;
        }
        let buf = self.held.take()?;
        poll_fn(|_| self.wire.poll_promise(self.place, buf.len())).await;
        Some((self.header(&buf), buf))
    }

    /// The first `bytes` that the host sends, of a command that has little.
    ///
    /// # Errors
    /// The status to answer.
    pub(super) async fn receive_first(&mut self, bytes: u32) -> Result<Vec<u8>, Status> {
        let mut all = vec![0; bytes as usize];
        self.receive_into(&mut all).await?;
        Ok(all)
    }

    async fn receive_into(&mut self, into: &mut [u8]) -> Result<(), Status> {
        let left = self.left();
        let bytes = u32::try_from(into.len()).ok();
        let bytes = bytes.filter(|bytes| *bytes <= left);
        let bytes = bytes.ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
        match self.pointer {
            Pointer::Capsule(_) => {
                let at = self.moved as usize;
                if !self.wire.copy_capsule_data(self.place, at, into) {
                    return Err(Status::DATA_SGL_LENGTH_INVALID);
                }
            }
            Pointer::FromHost(_) if bytes > 0 => {
                self.ask();
                let mut filled = 0;
                poll_fn(|_| self.wire.poll_fill(self.place, into, &mut filled)).await?;
            }
            Pointer::FromHost(_) => {}
            Pointer::None | Pointer::ToHost(_) if bytes > 0 => {
                return Err(Status::DATA_SGL_LENGTH_INVALID);
            }
            Pointer::None | Pointer::ToHost(_) => {}
        }
        self.moved += bytes;
        Ok(())
    }

    /// Bytes of what was asked for that nobody has taken.
    fn left(&self) -> u32 {
        self.pointer.len().min(self.wanted) - self.moved
    }

    /// One request for all of it: what arrives is placed as it comes, and until it comes nothing is held for it.
    fn ask(&mut self) {
        if !self.asked {
            self.asked = true;
            self.wire.ask(self.place, self.cid, 0, self.wanted);
        }
    }

    /// The header of data that ends with what was given last.
    fn header(&self, buf: &Buf) -> Data {
        let bytes = buf.len() as u32;
        Data {
            cccid: self.cid,
            ttag: 0,
            offset: self.moved - bytes,
            bytes,
            last: false,
            success: false,
        }
    }
}

impl Payload for TcpPayload<'_> {
    fn len(&self) -> u64 {
        u64::from(self.pointer.len())
    }

    async fn ready(&mut self) -> Result<(), Status> {
        if matches!(self.pointer, Pointer::FromHost(_)) && self.moved < self.wanted {
            self.ask();
            poll_fn(|_| self.wire.poll_ready(self.place)).await;
        }
        Ok(())
    }

    async fn receive(&mut self, into: &mut BufMut, len: usize) -> Result<(), Status> {
        let filled = into.len();
        let room = into.spare().get_mut(..len);
        let room = room.ok_or(Status::INTERNAL_ERROR)?;
        self.receive_into(room).await?;
        into.set_len(filled + len);
        Ok(())
    }

    async fn whole(&mut self) -> Result<(), Status> {
        // Behind a key that is shorter than it might have been.
        let mut rest = [0; 64];
        while matches!(self.pointer, Pointer::FromHost(_)) && self.left() > 0 {
            let now = rest.len().min(self.left() as usize);
            self.receive_into(&mut rest[..now]).await?;
        }
        Ok(())
    }

    fn land(&mut self) {
        self.wire.state().land(self.place);
    }

    fn source(&mut self, _len: u64) -> Option<RegionSlice> {
        None
    }

    fn target(&mut self, _len: u64) -> Option<RegionSlice> {
        None
    }

    fn turn(&mut self) {
        // Fabrics have no command whose data goes both ways.
    }

    async fn send(&mut self, buf: Buf) -> Result<(), Status> {
        if buf.is_empty() {
            return Ok(());
        }
        let Pointer::ToHost(len) = self.pointer else {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        };
        let bytes = u32::try_from(buf.len()).ok();
        let moved = bytes.and_then(|bytes| self.moved.checked_add(bytes));
        let moved = moved.filter(|moved| *moved <= len);
        let moved = moved.ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
        let mut before = self.held.take().map(|held| (self.header(&held), held));
        self.moved = moved;
        self.held = Some(buf);
        if before.is_some() {
            poll_fn(|_| self.wire.poll_send(self.place, &mut before)).await;
        }
        Ok(())
    }
}
