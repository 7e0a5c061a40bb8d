//! The sending direction of a queue: heads are written behind one another, payload is named where it lies, and one call sends all.

use std::collections::VecDeque;
use std::io;

use crate::socket::Socket;
use crate::target::Lent;
use forebay_io::socket::{Gather, Parts};
use forebay_mem::Buf;
use forebay_proto::nvme_tcp::{
    CQE_BYTES, Data, Fault, Framing, ICResp, PduType, R2T, capsule_resp, digest::digest,
};

/// Heads that are sent are forgotten at the latest when there are this many bytes of them.
const SENT_HEADS_BYTES_MAX: usize = 64 << 10;

enum Piece {
    /// So many bytes of `heads`.
    Heads(usize),
    Payload {
        buf: Buf,
        /// What its command was lent, until this has gone.
        _memory: Option<Lent>,
    },
}

impl Piece {
    fn bytes(&self) -> usize {
        match self {
            Piece::Heads(bytes) => *bytes,
            Piece::Payload { buf, .. } => buf.len(),
        }
    }
}

/// What is to be sent.
pub(super) struct Sender {
    framing: Framing,
    heads: Vec<u8>,
    /// Bytes of `heads` that are sent.
    gone: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    bytes: usize,
    sent_in_all: u64,
}

impl Sender {
    pub(super) fn new() -> Sender {
        Sender {
            framing: Framing::PLAIN,
            heads: Vec::new(),
            gone: 0,
            pieces: VecDeque::new(),
            sent: 0,
            bytes: 0,
            sent_in_all: 0,
        }
    }

    /// Bytes that are not sent.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that are.
    pub(super) fn sent(&self) -> u64 {
        self.sent_in_all
    }

    /// The answer to ICReq, and how everything after it looks.
    pub(super) fn icresp(&mut self, response: &ICResp, framing: Framing) {
        self.framing = framing;
        self.head(|_, heads| heads.extend_from_slice(&response.encode()));
    }

    /// A completion.
    pub(super) fn completion(&mut self, entry: &[u8; CQE_BYTES]) {
        self.head(|framing, heads| capsule_resp(framing, entry, heads));
    }

    /// A request for data.
    pub(super) fn r2t(&mut self, r2t: &R2T) {
        self.head(|framing, heads| r2t.encode(framing, heads));
    }

    /// Data, which must not be nothing.
    pub(super) fn data(&mut self, data: &Data, payload: Buf, memory: Option<Lent>) {
        self.head(|framing, heads| data.encode(PduType::C2HData, framing, heads));
        let digest = self.framing.data_digest.then(|| digest(&payload));
        self.bytes += payload.len();
        self.pieces.push_back(Piece::Payload {
            buf: payload,
            _memory: memory,
        });
        if let Some(digest) = digest {
            self.head(|_, heads| heads.extend_from_slice(&digest));
        }
    }

    /// Why the connection ends.
    pub(super) fn terminate(&mut self, fault: &Fault, offending: &[u8]) {
        self.head(|_, heads| fault.encode(PduType::C2HTermReq, offending, heads));
    }

    fn head(&mut self, write: impl FnOnce(&Framing, &mut Vec<u8>)) {
        let before = self.heads.len();
        write(&self.framing, &mut self.heads);
        let bytes = self.heads.len() - before;
        self.bytes += bytes;
        match self.pieces.back_mut() {
            Some(Piece::Heads(last)) => *last += bytes,
            _ => self.pieces.push_back(Piece::Heads(bytes)),
        }
    }

    /// Sends in one call what the socket takes; says whether it took all it was offered.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        let (taken, whole) = match socket.tls() {
            None => {
                let mut gather = Gather::new();
                self.gather(&mut gather);
                let asked = gather.len();
                if asked == 0 {
                    return Ok(true);
                }
                let taken = gather.send(socket.tcp())?;
                (taken, taken == asked)
            }
            Some(mut tls) => {
                if let Some(mut room) = tls.room() {
                    self.gather(&mut room);
                }
                tls.send()?
            }
        };
        self.advance(taken);
        Ok(whole)
    }

    /// Names what is to be sent, as far as it fits.
    fn gather<'a>(&'a self, parts: &mut impl Parts<'a>) {
        let (mut skip, mut at) = (self.sent, self.gone);
        for piece in &self.pieces {
            let bytes = match piece {
                Piece::Heads(bytes) => {
                    let start = at;
                    at += bytes - skip;
                    &self.heads[start..at]
                }
                Piece::Payload { buf, .. } => &buf[skip..],
            };
            if parts.bytes(bytes) < bytes.len() {
                break;
            }
            skip = 0;
        }
    }

    /// Lets go of what was sent.
    fn advance(&mut self, mut bytes: usize) {
        self.bytes -= bytes;
        self.sent_in_all += bytes as u64;
        while let Some(first) = self.pieces.front() {
            let now = bytes.min(first.bytes() - self.sent);
            if let Piece::Heads(_) = first {
                self.gone += now;
            }
            self.sent += now;
            bytes -= now;
            if self.sent < first.bytes() {
                break;
            }
            self.sent = 0;
            self.pieces.pop_front();
        }
        if self.gone == self.heads.len() {
            self.heads.clear();
            self.gone = 0;
        } else if self.gone > SENT_HEADS_BYTES_MAX {
            self.heads.drain(..self.gone);
            self.gone = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use forebay_proto::nvme_tcp::{Agreed, Digests, ICReq};

    use super::*;

    #[tokio::test]
    async fn everything_leaves_in_order_however_little_the_socket_takes() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reader = std::thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            got
        });
        let (socket, _) = listener.accept().await.unwrap();
        forebay_io::socket::set_send_buffer(&socket, 4096).unwrap();
        let socket = Socket::from(socket);
        let digests = Digests {
            header: true,
            data: true,
        };
        let request = ICReq {
            hpda: 3,
            digests,
            r2ts_max: 1,
        };
        let response = ICResp {
            cpda: 0,
            digests,
            h2c_data_bytes_max: 4096,
        };
        let framing = Agreed::new(&request, &response).unwrap().c2h;
        let mut sender = Sender::new();
        let mut expected = Vec::from(response.encode());
        sender.icresp(&response, framing);
        for number in 0..300u16 {
            let payload = vec![number as u8; 5000 + usize::from(number)];
            let data = Data {
                cccid: number,
                ttag: 0,
                offset: 0,
                bytes: payload.len() as u32,
                last: true,
                success: false,
            };
            data.encode(PduType::C2HData, &framing, &mut expected);
            expected.extend_from_slice(&payload);
            expected.extend_from_slice(&digest(&payload));
            sender.data(&data, Buf::from(payload), None);
            capsule_resp(&framing, &[number as u8; 16], &mut expected);
            sender.completion(&[number as u8; 16]);
        }
        while sender.bytes() > 0 {
            socket.writable().await.unwrap();
            let _ = socket.try_io(tokio::io::Interest::WRITABLE, || sender.flush(&socket));
        }
        assert!(sender.pieces.is_empty() && sender.heads.is_empty());
        drop(socket);
        assert!(reader.join().unwrap() == expected);
    }
}
