//! Requests to the server, one after the other; and those of the server, which are answered by whoever waits for something.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_io::passing::{Passed, try_send_files};
use forebay_proto::vfio_user::{
    Access, FILES_MAX, Kind, PayloadAccess, REGION_BAR0, Request, message,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::lent::Lent;
use super::{Error, Result};
use crate::vfio_user::channel::{Message, Receiver};

/// The socket. Doorbells are rung from any thread, while another waits for an answer: every message is so short that the system keeps
/// it in one piece.
pub(super) struct Connection {
    stream: Arc<UnixStream>,
    /// What the server may ask for.
    pub(super) lent: Lent,
    answers: Mutex<Answers>,
}

struct Answers {
    receiver: Receiver,
    /// The last request's.
    id: u16,
    /// A request was sent, and its answer not taken: the caller has gone.
    behind: u32,
    /// The answer to the server that the socket did not take yet.
    due: Option<Vec<u8>>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> Connection {
        let stream = Arc::new(stream);
        Connection {
            answers: Mutex::new(Answers {
                receiver: Receiver::new(),
                id: 0,
                behind: 0,
                due: None,
            }),
            lent: Lent::default(),
            stream,
        }
    }

    /// Sends a request and waits for its answer: its payload, and the files beside it.
    pub(super) async fn call(
        &self,
        request: &Request<'_>,
        files: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, VecDeque<Passed>)> {
        debug_assert!(files.len() <= FILES_MAX);
        let mut answers = self.answers.lock().await;
        while answers.behind > 0 {
            self.receive(&mut answers).await?;
            answers.behind -= 1;
        }
        answers.id = answers.id.wrapping_add(1);
        let id = answers.id;
        let mut bytes = Vec::new();
        let number = request.command() as u16;
        let kind = Kind::Command { no_reply: false };
        message(&mut bytes, id, number, kind, |out| request.put(out));
        self.send(&bytes, files).await?;
        answers.behind = 1;
        let Message {
            header,
            payload,
            files,
        } = self.receive(&mut answers).await?;
        answers.behind = 0;
        match header.kind {
            Kind::Reply { error: None } if (header.id, header.number) == (id, number) => {
                Ok((payload, files))
            }
            Kind::Reply { error: Some(errno) } if header.id == id => Err(Error::Refused(errno)),
            Kind::Command { .. } | Kind::Reply { .. } => {
                Err(Error::Io(io::ErrorKind::InvalidData.into()))
            }
        }
    }

    async fn receive(&self, answers: &mut Answers) -> Result<Message> {
        let received = poll_fn(|cx| self.poll_answer(answers, cx)).await?;
        received.ok_or(Error::Io(io::ErrorKind::UnexpectedEof.into()))
    }

    /// The server's next answer; `None` at the end of the connection. Its requests are answered on the way.
    fn poll_answer(
        &self,
        answers: &mut Answers,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Message>>> {
        loop {
            if let Some(due) = &answers.due {
                ready!(self.stream.poll_write_ready(cx))?;
                let sent = self.stream.try_io(Interest::WRITABLE, || {
                    try_send_files(&self.stream, due, &[])
                });
                match sent {
                    Ok(sent) if sent == due.len() => answers.due = None,
                    // Doorbells may come between: it has to be in one piece.
                    Ok(_) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            match ready!(answers.receiver.poll(&self.stream, cx))? {
                Some(message) if matches!(message.header.kind, Kind::Command { .. }) => {
                    answers.due = self.lent.answer(&message);
                    answers.receiver.recycle(message.payload);
                }
                answer => return Poll::Ready(Ok(answer)),
            }
        }
    }

    async fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
        let sent = self.stream.async_io(Interest::WRITABLE, || {
            try_send_files(&self.stream, bytes, files)
        });
        match sent.await? == bytes.len() {
            true => Ok(()),
            false => Err(Error::Io(io::ErrorKind::WriteZero.into())),
        }
    }

    /// A doorbell, which nobody answers.
    fn ring_message(offset: u64, value: u32) -> Vec<u8> {
        let data = value.to_le_bytes();
        let access = Access {
            offset,
            region: REGION_BAR0,
            count: data.len() as u32,
        };
        let request = Request::RegionWrite(PayloadAccess {
            access,
            data: &data,
        });
        let mut bytes = Vec::new();
        let number = request.command() as u16;
        let kind = Kind::Command { no_reply: true };
        message(&mut bytes, 0, number, kind, |out| request.put(out));
        bytes
    }

    /// Rings a doorbell whose value is in memory, too: when the socket is full, the server has messages to wake by.
    pub(super) fn wake(&self, offset: u64, value: u32) -> Result<()> {
        match try_send_files(&self.stream, &Connection::ring_message(offset, value), &[]) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Rings a doorbell by this message alone.
    pub(super) async fn ring(&self, offset: u64, value: u32) -> Result<()> {
        self.send(&Connection::ring_message(offset, value), &[])
            .await
    }

    /// Returns when the server has gone. What it asks meanwhile is answered.
    pub(super) async fn closed(&self) {
        let mut interest = Interest::READABLE;
        loop {
            // With none left nothing below is ready, and whoever asked would never be let go.
            tokio::task::consume_budget().await;
            let ready = self.stream.ready(interest).await;
            if ready.is_err() {
                return;
            }
            let Ok(mut answers) = self.answers.try_lock() else {
                if ready.is_ok_and(|ready| ready.is_read_closed()) {
                    return;
                }
                // Whoever waits for an answer takes what is there.
                tokio::task::yield_now().await;
                continue;
            };
            let answers = &mut *answers;
            let next = poll_fn(|cx| Poll::Ready(self.poll_answer(answers, cx))).await;
            match next {
                // An answer whose caller has gone.
                Poll::Ready(Ok(Some(_))) if answers.behind > 0 => answers.behind -= 1,
                Poll::Ready(_) => return,
                Poll::Pending => {}
            }
            interest = match answers.due {
                Some(_) => Interest::WRITABLE,
                None => Interest::READABLE,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::thread;

    use forebay_proto::vfio_user::{Command, DmaAccess, DmaRequest, HEADER_BYTES};

    use super::*;

    /// More of them than a task may do before it lets others go on.
    #[tokio::test]
    async fn many_questions_at_once_are_answered() {
        const QUESTIONS: usize = 200;
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let connection = Connection::new(UnixStream::from_std(ours).unwrap());
        let mut questions = Vec::new();
        for id in 0..QUESTIONS as u16 {
            let nowhere = DmaRequest::Read(DmaAccess {
                address: 0,
                count: 1,
            });
            let kind = Kind::Command { no_reply: false };
            let number = Command::DmaRead as u16;
            message(&mut questions, id, number, kind, |out| nowhere.put(out));
        }
        theirs.write_all(&questions).unwrap();
        let server = thread::spawn(move || {
            let mut answers = vec![0; QUESTIONS * HEADER_BYTES];
            theirs.read_exact(&mut answers).unwrap();
            answers
        });
        connection.closed().await;
        let answers = server.join().unwrap();
        let ids = answers.chunks(HEADER_BYTES).map(|answer| answer[0]);
        assert!(ids.eq(0..QUESTIONS as u8));
    }
}
