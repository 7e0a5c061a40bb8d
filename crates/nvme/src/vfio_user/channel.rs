//! Messages over the socket, for both ends.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use forebay_io::passing::{Passed, give_up, try_recv_files, try_send_files};
use forebay_proto::vfio_user::{FILES_MAX, HEADER_BYTES, Header};
use tokio::net::UnixStream;

/// One message, and the files that came beside it.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
    pub(super) files: VecDeque<Passed>,
}

/// Reads messages one by one, so that files belong to the message they came with.
pub(super) struct Receiver {
    head: [u8; HEADER_BYTES],
    header: Option<Header>,
    payload: Vec<u8>,
    /// Bytes that have come, of the header or, when that is known, of the payload.
    have: usize,
    files: VecDeque<Passed>,
}

/// A socket that carries messages.
pub(super) struct Channel {
    stream: UnixStream,
    receiver: Receiver,
    outgoing: VecDeque<Outgoing>,
}

/// What the socket did not take yet.
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    file: Option<OwnedFd>,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver {
            head: [0; HEADER_BYTES],
            header: None,
            payload: Vec::new(),
            have: 0,
            files: VecDeque::new(),
        }
    }

    /// The next message of `stream`; `None` when the peer has finished between two messages.
    pub(super) fn poll(
        &mut self,
        stream: &UnixStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Message>>> {
        loop {
            if let Some(header) = self.header
                && self.have == header.payload_bytes()
            {
                self.header = None;
                self.have = 0;
                return Poll::Ready(Ok(Some(Message {
                    header,
                    payload: std::mem::take(&mut self.payload),
                    files: std::mem::take(&mut self.files),
                })));
            }
            ready!(stream.poll_read_ready(cx))?;
            let into = match self.header {
                None => &mut self.head[self.have..],
                Some(_) => &mut self.payload[self.have..],
            };
            let got = match try_recv_files(stream, into, &mut self.files, FILES_MAX) {
                Ok(0) if self.header.is_none() && self.have == 0 => return Poll::Ready(Ok(None)),
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
            };
            self.have += got;
            if self.files.len() > FILES_MAX {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            if self.header.is_none() && self.have == HEADER_BYTES {
                let header = Header::parse(&self.head)
                    .map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
                self.payload.resize(header.payload_bytes(), 0);
                self.header = Some(header);
                self.have = 0;
            }
        }
    }

    /// Takes back a payload's memory.
    pub(super) fn recycle(&mut self, mut payload: Vec<u8>) {
        if self.header.is_none() && payload.capacity() > self.payload.capacity() {
            payload.clear();
            self.payload = payload;
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        give_up(&self.stream);
    }
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Channel {
        Channel {
            stream,
            receiver: Receiver::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// The next message; `None` when the peer has finished between two messages.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Message>>> {
        self.receiver.poll(&self.stream, cx)
    }

    /// Takes back a payload's memory.
    pub(super) fn recycle(&mut self, payload: Vec<u8>) {
        self.receiver.recycle(payload);
    }

    /// Sends a message, now or when the socket takes it.
    ///
    /// # Errors
    /// The system's, when the connection is gone.
    pub(super) fn send(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut sent = 0;
        if self.outgoing.is_empty() {
            match try_send_files(&self.stream, bytes, files) {
                Ok(taken) => sent = taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if sent < bytes.len() {
            let file = match files.first() {
                Some(file) if sent == 0 => Some(file.try_clone_to_owned()?),
                _ => None,
            };
            let bytes = bytes[sent..].to_vec();
            let outgoing = Outgoing {
                bytes,
                sent: 0,
                file,
            };
            self.outgoing.push_back(outgoing);
        }
        Ok(())
    }

    /// Messages that the socket did not take yet.
    pub(super) fn unsent(&self) -> usize {
        self.outgoing.len()
    }

    /// Goes on sending; ready when nothing is left.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(next) = self.outgoing.front_mut() {
            ready!(self.stream.poll_write_ready(cx))?;
            let file = next.file.as_ref().map(AsFd::as_fd);
            let rest = &next.bytes[next.sent..];
            let sent = self.stream.try_io(tokio::io::Interest::WRITABLE, || {
                try_send_files(&self.stream, rest, file.as_slice())
            });
            match sent {
                Ok(sent) => {
                    next.file = None;
                    next.sent += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
            }
            if next.sent == next.bytes.len() {
                self.outgoing.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }
}
