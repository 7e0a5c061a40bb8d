//! A client that says whatever it is told to.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use forebay_io::passing::{Passed, try_recv_files, try_send_files};
use forebay_proto::vfio_user::{HEADER_BYTES, Header, Kind, Request, message};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Nothing beside a request.
pub const NO_FILE: &[&OwnedFd] = &[];

pub struct Raw {
    stream: Arc<UnixStream>,
    files: VecDeque<Passed>,
}

/// An errno, or the end of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Errno(u32),
    Closed,
}

impl Raw {
    pub fn new(stream: UnixStream) -> Raw {
        Raw::shared(Arc::new(stream))
    }

    /// One of several that send, or the one that receives.
    pub fn shared(stream: Arc<UnixStream>) -> Raw {
        Raw {
            stream,
            files: VecDeque::new(),
        }
    }

    /// A client that has said VERSION.
    pub async fn greeted(stream: UnixStream) -> Raw {
        let mut raw = Raw::new(stream);
        raw.ask(1, &[0, 0, 1, 0], &[]).await.unwrap();
        raw
    }

    pub async fn send(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let mut sent = 0;
        while sent < bytes.len() {
            let files = if sent == 0 { files } else { &[] };
            let some = self.stream.async_io(Interest::WRITABLE, || {
                try_send_files(&self.stream, &bytes[sent..], files)
            });
            match some.await {
                Ok(some) => sent += some,
                // Whoever is hung up on may notice here.
                Err(_) => return,
            }
        }
    }

    async fn exactly(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut have = 0;
        while have < len {
            self.stream.readable().await.ok()?;
            match try_recv_files(&self.stream, &mut bytes[have..], &mut self.files, 16) {
                Ok(0) => return None,
                Ok(got) => have += got,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
        Some(bytes)
    }

    /// The next message; `None` at the end of the connection.
    pub async fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let head = self.exactly(HEADER_BYTES).await?;
        let header = Header::parse(&head.try_into().unwrap()).unwrap();
        let payload = self.exactly(header.payload_bytes()).await?;
        Some((header, payload))
    }

    /// Asks with any payload.
    pub async fn ask(
        &mut self,
        number: u16,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Refusal> {
        self.begin(number, payload, files).await;
        self.answer(number).await
    }

    /// Asks, and waits for nothing.
    async fn begin(&mut self, number: u16, payload: &[u8], files: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        let kind = Kind::Command { no_reply: false };
        message(&mut bytes, 9, number, kind, |out| {
            out.extend_from_slice(payload)
        });
        self.send(&bytes, files).await;
    }

    /// The next answer, which is to what was asked so.
    pub async fn answer(&mut self, number: u16) -> Result<Vec<u8>, Refusal> {
        let (header, payload) = self.receive().await.ok_or(Refusal::Closed)?;
        assert_eq!((header.id, header.number), (9, number));
        match header.kind {
            Kind::Reply { error: None } => Ok(payload),
            Kind::Reply { error: Some(errno) } => Err(Refusal::Errno(errno)),
            Kind::Command { .. } => panic!("a server that asks"),
        }
    }

    pub async fn request(
        &mut self,
        request: &Request<'_>,
        files: &[&impl AsFd],
    ) -> Result<Vec<u8>, Refusal> {
        let number = self.begin_request(request, files).await;
        self.answer(number).await
    }

    /// Makes a request that is answered later; its number.
    pub async fn begin_request(&mut self, request: &Request<'_>, files: &[&impl AsFd]) -> u16 {
        let mut payload = Vec::new();
        request.put(&mut payload);
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        let number = request.command() as u16;
        self.begin(number, &payload, &files).await;
        number
    }

    pub fn take_files(&mut self) -> VecDeque<Passed> {
        std::mem::take(&mut self.files)
    }
}
