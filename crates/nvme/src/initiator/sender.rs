//! The sending direction of a connection: capsules, and the data that the controller asks for, gathered by reference into as few
//! calls as possible.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use forebay_io::socket::{Gather, Parts};
use forebay_mem::{CopySite, count_copy};
use forebay_proto::nvme_tcp::{
    Agreed, Crc32c, Data as DataPdu, FatalErrorStatus, Fault, Framing, PduType, R2T, capsule_cmd,
};

use super::data::{Data, Source};
use super::flights::{Flight, Flights};
use super::slots::Command;
use crate::socket::Socket;

/// What is laid out ahead of the socket.
const AHEAD_BYTES: usize = 1 << 20;
/// Data of one PDU, so that transfers take turns, and commands need not wait long behind them.
const TURN_BYTES: u32 = 256 << 10;
/// Bytes of heads that are sent and not yet forgotten.
const SPENT_BYTES_MAX: usize = 64 << 10;

enum Piece {
    /// So many bytes of `heads`; whether they begin with the head of a PDU, not the digest of one.
    Heads { len: usize, begin: bool },
    /// Payload of the command in a place.
    Payload { at: u16, offset: u64, len: usize },
    /// Payload that was copied: exposed memory, of which a digest is sent.
    Copied { at: u16, bytes: Vec<u8> },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Heads { len, .. } | Piece::Payload { len, .. } => *len,
            Piece::Copied { bytes, .. } => bytes.len(),
        }
    }

    fn place(&self) -> Option<u16> {
        match self {
            Piece::Heads { .. } => None,
            Piece::Payload { at, .. } | Piece::Copied { at, .. } => Some(*at),
        }
    }
}

/// Data that the controller asked for, as far as it is not laid out.
struct Asked {
    at: u16,
    cid: u16,
    ttag: u16,
    offset: u32,
    left: u32,
}

/// The sending direction of one connection.
pub(super) struct Sender {
    framing: Framing,
    data_bytes_max: u32,
    /// Payload that goes with its command, at most.
    in_capsule_bytes_max: u64,
    heads: Vec<u8>,
    /// Of these, sent.
    heads_sent: usize,
    queue: VecDeque<Piece>,
    queue_bytes: usize,
    /// Bytes of the first piece that are sent.
    sent: usize,
    asked: VecDeque<Asked>,
    /// Places whose pieces are sent and whose command may have ended before.
    pub(super) let_go: Vec<u16>,
}

impl Sender {
    pub(super) fn new(agreed: &Agreed, in_capsule_bytes_max: u64) -> Sender {
        Sender {
            framing: agreed.h2c,
            data_bytes_max: agreed.h2c_data_bytes_max.min(TURN_BYTES),
            in_capsule_bytes_max,
            heads: Vec::new(),
            heads_sent: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
            sent: 0,
            asked: VecDeque::new(),
            let_go: Vec::new(),
        }
    }

    /// Lays out a command, with its payload where it may go with it.
    pub(super) fn command(
        &mut self,
        at: u16,
        command: Command,
        flights: &mut Flights,
        now: Instant,
    ) -> io::Result<()> {
        let bytes = match &command.data {
            Data::Out(source) if source.len() <= self.in_capsule_bytes_max => source.len() as u32,
            _ => 0,
        };
        let flight = flights.begin(at, command, bytes > 0, now);
        let framing = self.framing;
        let entry = flight.command.entry;
        self.head(true, |heads| {
            capsule_cmd(&framing, entry.as_bytes(), bytes, heads)
        });
        self.payload(at, flight, 0, bytes)
    }

    /// Takes a request for data of a command that has some.
    pub(super) fn ask(&mut self, at: u16, flight: &mut Flight, request: &R2T) -> Result<(), Fault> {
        let bytes = match &flight.command.data {
            Data::Out(source) => source.len() as u32,
            Data::None | Data::In(_) => 0,
        };
        request.check(flight.asked, bytes)?;
        // We said in ICReq that there is one at a time (MAXR2T).
        if flight.owed {
            return Err(Fault::of(FatalErrorStatus::DataTransferLimitExceeded));
        }
        flight.owed = true;
        flight.asked += request.bytes;
        // What is laid out keeps the memory, and so does what will be.
        flight.pieces += 1;
        self.asked.push_back(Asked {
            at,
            cid: request.cccid,
            ttag: request.ttag,
            offset: request.offset,
            left: request.bytes,
        });
        Ok(())
    }

    /// Lays out more of what was asked for; whether there is anything to send.
    pub(super) fn prepare(&mut self, flights: &mut Flights) -> io::Result<bool> {
        while self.queue_bytes < AHEAD_BYTES
            && let Some(mut asked) = self.asked.pop_front()
        {
            let Some(flight) = flights.get_mut(asked.at) else {
                continue;
            };
            if flight.completed.is_some() {
                // The controller has ended it before it had all of it.
                flight.pieces -= 1;
                self.let_go.push(asked.at);
                continue;
            }
            let bytes = asked.left.min(self.data_bytes_max);
            let head = DataPdu {
                cccid: asked.cid,
                ttag: asked.ttag,
                offset: asked.offset,
                bytes,
                last: bytes == asked.left,
                success: false,
            };
            let framing = self.framing;
            self.head(true, |heads| head.encode(PduType::H2CData, &framing, heads));
            self.payload(asked.at, flight, asked.offset, bytes)?;
            asked.offset += bytes;
            asked.left -= bytes;
            if asked.left == 0 {
                flight.owed = false;
                flight.pieces -= 1;
            } else {
                self.asked.push_back(asked);
            }
        }
        Ok(self.queue_bytes > 0)
    }

    fn head(&mut self, begin: bool, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.heads.len();
        write(&mut self.heads);
        let len = self.heads.len() - before;
        self.queue_bytes += len;
        match self.queue.back_mut() {
            Some(Piece::Heads { len: before, .. }) => *before += len,
            _ => self.queue.push_back(Piece::Heads { len, begin }),
        }
    }

    fn payload(&mut self, at: u16, flight: &mut Flight, offset: u32, bytes: u32) -> io::Result<()> {
        let Data::Out(source) = &flight.command.data else {
            return Ok(());
        };
        if bytes == 0 {
            return Ok(());
        }
        let (offset, len) = (u64::from(offset), bytes as usize);
        flight.pieces += 1;
        self.queue_bytes += len;
        if !self.framing.data_digest {
            self.queue.push_back(Piece::Payload { at, offset, len });
            return Ok(());
        }
        let mut digest = Crc32c::new();
        let piece = if source.is_exposed() {
            Piece::Copied {
                at,
                bytes: copied(source, offset, len, &mut digest)?,
            }
        } else {
            source.show(offset, len, &mut |bytes| digest.update(bytes));
            Piece::Payload { at, offset, len }
        };
        self.queue.push_back(piece);
        self.head(false, |heads| heads.extend_from_slice(&digest.field()));
        Ok(())
    }

    /// Sends what is laid out, as far as the socket takes it in one call. `None`: not all of it.
    pub(super) fn flush(
        &mut self,
        socket: &Socket,
        flights: &mut Flights,
    ) -> io::Result<Option<()>> {
        let (taken, whole) = match socket.tls() {
            None => {
                let mut gather = Gather::new();
                self.gather(&mut gather, flights)?;
                let asked = gather.len();
                if asked == 0 {
                    return Ok(Some(()));
                }
                let taken = gather.send(socket.tcp())?;
                (taken, taken == asked)
            }
            Some(mut tls) => {
                if let Some(mut room) = tls.room() {
                    self.gather(&mut room, flights)?;
                }
                tls.send()?
            }
        };
        self.advance(taken, flights);
        Ok(whole.then_some(()))
    }

    /// Names what is laid out, as far as it fits.
    fn gather<'a>(&'a self, parts: &mut impl Parts<'a>, flights: &'a Flights) -> io::Result<()> {
        let mut skip = self.sent;
        let mut heads = self.heads_sent;
        for piece in &self.queue {
            let len = piece.len() - skip;
            let added = match piece {
                Piece::Heads { .. } => {
                    let bytes = &self.heads[heads..heads + len];
                    heads += len;
                    parts.bytes(bytes)
                }
                Piece::Payload { at, offset, .. } => {
                    let flight = flights.get(*at).map(|flight| &flight.command.data);
                    let Some(Data::Out(source)) = flight else {
                        return Err(gone());
                    };
                    let named = source.gather(offset + skip as u64, len, parts);
                    named.ok_or_else(gone)?
                }
                Piece::Copied { bytes, .. } => parts.bytes(&bytes[skip..]),
            };
            skip = 0;
            if added < len {
                break;
            }
        }
        Ok(())
    }

    fn advance(&mut self, bytes: usize, flights: &mut Flights) {
        self.queue_bytes -= bytes;
        let mut bytes = bytes;
        while let Some(first) = self.queue.front() {
            let step = bytes.min(first.len() - self.sent);
            if let Piece::Heads { .. } = first {
                self.heads_sent += step;
            }
            bytes -= step;
            self.sent += step;
            if self.sent < first.len() {
                break;
            }
            self.sent = 0;
            let place = first.place();
            self.queue.pop_front();
            if let Some(at) = place
                && let Some(flight) = flights.get_mut(at)
            {
                flight.pieces -= 1;
                if flight.completed.is_some() {
                    self.let_go.push(at);
                }
            }
        }
        if self.heads_sent == self.heads.len() {
            self.heads.clear();
            self.heads_sent = 0;
        } else if self.heads_sent > SPENT_BYTES_MAX {
            self.heads.drain(..self.heads_sent);
            self.heads_sent = 0;
        }
    }

    /// Says in one last call why the connection ends, unless it is amid a PDU.
    pub(super) fn terminate(&mut self, fault: Fault, offending: &[u8], socket: &Socket) {
        let owes = match self.queue.front() {
            Some(Piece::Heads { begin, .. }) => !begin,
            Some(Piece::Payload { .. } | Piece::Copied { .. }) => true,
            None => false,
        };
        if owes || self.sent > 0 {
            return;
        }
        let mut last = Vec::new();
        fault.encode(PduType::H2CTermReq, offending, &mut last);
        // The controller finds out by the end of the connection otherwise.
        let _ = socket.send(&last);
    }
}

fn copied(source: &Source, offset: u64, len: usize, digest: &mut Crc32c) -> io::Result<Vec<u8>> {
    let mut copy = Vec::with_capacity(len);
    let whole = source.show(offset, len, &mut |bytes| copy.extend_from_slice(bytes));
    if !whole || copy.len() != len {
        return Err(gone());
    }
    count_copy(CopySite::LinkStaging, len);
    digest.update(&copy);
    Ok(copy)
}

fn gone() -> io::Error {
    io::Error::other("memory that is to be sent is gone")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use bytes::Bytes;
    use forebay_io::socket::PLACES_MAX;
    use forebay_proto::nvme::SubmissionQueueEntry;
    use forebay_proto::nvme_tcp::{ICReq, ICResp};
    use tokio::net::TcpStream;

    use super::*;

    fn write(bufs: usize) -> Command {
        let bufs = vec![Bytes::from_static(b"payload").into(); bufs];
        Command {
            entry: SubmissionQueueEntry::new(1, 0, 1),
            data: Data::Out(Source::Bufs(bufs)),
            repeats: 0,
            was_sent: false,
            patience: None,
            endless: false,
            preparing: false,
            value_behind: None,
        }
    }

    /// One call to the socket takes so many places that its last one is the head of a PDU: what follows is owed.
    #[tokio::test]
    async fn why_a_connection_ends_is_said_between_pdus_alone() {
        const TERM_BYTES: usize = 24;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await;
        let socket = Socket::from(near.unwrap());
        let (mut peer, _) = listener.accept().unwrap();
        let request = ICReq {
            hpda: 0,
            digests: Default::default(),
            r2ts_max: 1,
        };
        let response = ICResp {
            cpda: 0,
            digests: request.digests,
            h2c_data_bytes_max: 1 << 20,
        };
        let agreed = Agreed::new(&request, &response).unwrap();
        let mut sender = Sender::new(&agreed, 4096);
        let mut flights = Flights::new(PLACES_MAX);
        for at in 0..PLACES_MAX as u16 {
            let write = write(if at == 0 { 2 } else { 1 });
            let laid_out = sender.command(at, write, &mut flights, Instant::now());
            laid_out.unwrap();
        }
        let all = sender.queue_bytes;
        let fault = Fault::of(FatalErrorStatus::PduSequenceError);
        assert!(sender.flush(&socket, &mut flights).unwrap().is_some());
        assert!((1..all).contains(&sender.queue_bytes));
        sender.terminate(fault, &[], &socket);
        while sender.queue_bytes > 0 {
            assert!(sender.flush(&socket, &mut flights).unwrap().is_some());
        }
        sender.terminate(fault, &[], &socket);
        drop(socket);
        let mut came = Vec::new();
        peer.read_to_end(&mut came).unwrap();
        assert_eq!(came.len(), all + TERM_BYTES);
        assert_eq!(came[all], PduType::H2CTermReq as u8);
    }
}
