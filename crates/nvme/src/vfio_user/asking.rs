//! Questions to the client about memory that only it reaches (`DMA_READ`, `DMA_WRITE`).
//!
//! Whoever moves data holds an [`Asker`] and waits; the device, which knows what is mapped where, sends the questions on ([`Asks`]) and
//! hands the answers back as they come. Nothing else waits for them: the client's own requests are served meanwhile, and neither the end
//! of a mapping nor a reset waits for an answer.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_mem::Buf;
use forebay_proto::nvme::Status;
use forebay_proto::vfio_user::reply::{parse_dma_read, parse_dma_written};
use forebay_proto::vfio_user::{DmaAccess, DmaRequest, Header, Kind, message};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::channel::Channel;
use super::memory::{Direction, Gone, Memory, Piece, Unmapped};

/// The client answers a question within this, or what it was asked for has failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Questions whose answers are awaited at once, each with its data.
const QUESTIONS_MAX: usize = 16;

/// Questions without an answer, those among them that nobody awaits any more; with more of them the client is asked no further.
const UNANSWERED_MAX: usize = 64;

/// The most data of one question: the system keeps a message of that size in one piece.
pub(in crate::vfio_user) const QUESTION_BYTES_MAX: usize = 32 << 10;

impl From<Gone> for Status {
    fn from(_: Gone) -> Status {
        Status::DATA_TRANSFER_ERROR
    }
}

/// Reads and writes the client's memory, near or far, by asking.
#[derive(Clone)]
pub(super) struct Asker {
    questions: mpsc::UnboundedSender<Question>,
    shared: Arc<Shared>,
}

struct Shared {
    room: Semaphore,
    /// The most data of one question to this client.
    bytes_max: AtomicUsize,
}

struct Question {
    what: What,
    answer: oneshot::Sender<Answer>,
}

enum What {
    Read(DmaAccess),
    Write(u64, Buf),
    /// Whether all of these can be reached.
    Check(Arc<[(u64, u64)]>, Direction),
}

/// So many bytes, from the first one on.
struct Answer {
    count: usize,
    /// What was read, at the end of this.
    payload: Vec<u8>,
}

/// The questions of one device.
pub(super) struct Asks {
    questions: mpsc::UnboundedReceiver<Question>,
    shared: Arc<Shared>,
    /// What the client was asked and has not answered, by the identifier of the message.
    unanswered: BTreeMap<u16, Unanswered>,
    last_id: u16,
    /// Where messages are written.
    out: Vec<u8>,
}

struct Unanswered {
    access: DmaAccess,
    number: u16,
    /// `None` when nobody waits any more.
    answer: Option<oneshot::Sender<Answer>>,
}

/// Both ends.
pub(super) fn asking() -> (Asker, Asks) {
    let (sender, questions) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        room: Semaphore::new(QUESTIONS_MAX),
        bytes_max: AtomicUsize::new(QUESTION_BYTES_MAX),
    });
    let asker = Asker {
        questions: sender,
        shared: shared.clone(),
    };
    let asks = Asks {
        questions,
        shared,
        unanswered: BTreeMap::new(),
        last_id: 0,
        out: Vec::new(),
    };
    (asker, asks)
}

impl Asker {
    /// Reads all of `into`, from `address` on.
    pub(super) async fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Gone> {
        let mut done = 0;
        while done < into.len() {
            let left = into.len() - done;
            let access = DmaAccess {
                address: address.wrapping_add(done as u64),
                count: left.min(self.bytes_max()) as u64,
            };
            let Answer { count, payload } = self.ask(What::Read(access)).await?;
            let bytes = payload.len().checked_sub(count).map(|at| &payload[at..]);
            let room = into.get_mut(done..done + count);
            let (Some(room), Some(bytes)) = (room, bytes.filter(|bytes| !bytes.is_empty())) else {
                return Err(Gone);
            };
            room.copy_from_slice(bytes);
            done += count;
        }
        Ok(())
    }

    /// Writes all of `data`, from `address` on.
    pub(super) async fn write(&self, address: u64, data: &Buf) -> Result<(), Gone> {
        let mut done = 0;
        while done < data.len() {
            let end = data.len().min(done + self.bytes_max());
            let address = address.wrapping_add(done as u64);
            let answer = self
                .ask(What::Write(address, data.slice(done..end)))
                .await?;
            if answer.count == 0 {
                return Err(Gone);
            }
            done += answer.count;
        }
        Ok(())
    }

    /// Whether all of these ranges can be reached now.
    pub(super) async fn check(
        &self,
        ranges: Arc<[(u64, u64)]>,
        direction: Direction,
    ) -> Result<(), Gone> {
        self.ask(What::Check(ranges, direction)).await.map(drop)
    }

    fn bytes_max(&self) -> usize {
        // A client that takes nothing is asked for a byte, and never.
        self.shared.bytes_max.load(Relaxed).max(1)
    }

    async fn ask(&self, what: What) -> Result<Answer, Gone> {
        let answered = async {
            let _room = self.shared.room.acquire().await.map_err(|_| Gone)?;
            let (answer, answered) = oneshot::channel();
            let question = Question { what, answer };
            self.questions.send(question).map_err(|_| Gone)?;
            answered.await.map_err(|_| Gone)
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(Gone),
        }
    }
}

impl Asks {
    /// The client takes so much data at once.
    pub(super) fn agree(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let bytes = bytes.min(QUESTION_BYTES_MAX);
        self.shared.bytes_max.store(bytes, Relaxed);
    }

    /// Asks the client what is to be asked. When `cut`, nobody gets an answer any more.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        cut: bool,
        memory: &Memory,
        channel: &mut Channel,
    ) -> io::Result<()> {
        if cut {
            for unanswered in self.unanswered.values_mut() {
                unanswered.answer = None;
            }
        }
        while let Poll::Ready(Some(Question { what, answer })) = self.questions.poll_recv(cx) {
            // Whoever gave up meanwhile is not asked for; one who gets no answer sees that.
            if cut || answer.is_closed() {
                continue;
            }
            match what {
                What::Read(access) => self.read(memory, channel, access, answer)?,
                What::Write(address, data) => {
                    self.write(memory, channel, address, &data, answer)?
                }
                What::Check(ranges, direction) => {
                    let reached = |&(address, len)| memory.reaches(address, len, direction);
                    if ranges.iter().all(reached) {
                        give(answer, 0, Vec::new());
                    }
                }
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        memory: &Memory,
        channel: &mut Channel,
        access: DmaAccess,
        answer: oneshot::Sender<Answer>,
    ) -> io::Result<()> {
        let DmaAccess { address, count } = access;
        match memory.piece(address, count, Direction::ToController) {
            None => Ok(()),
            Some(Piece::Near(piece)) => {
                let mut bytes = vec![0; piece.len()];
                if piece.read(0, &mut bytes) {
                    give(answer, bytes.len(), bytes);
                }
                Ok(())
            }
            Some(Piece::Far(count)) => {
                let access = DmaAccess { address, count };
                self.ask(channel, &DmaRequest::Read(access), answer)
            }
        }
    }

    fn write(
        &mut self,
        memory: &Memory,
        channel: &mut Channel,
        address: u64,
        data: &[u8],
        answer: oneshot::Sender<Answer>,
    ) -> io::Result<()> {
        match memory.piece(address, data.len() as u64, Direction::ToHost) {
            None => Ok(()),
            Some(Piece::Near(piece)) => {
                if piece.write(0, &data[..piece.len()]) {
                    give(answer, piece.len(), Vec::new());
                }
                Ok(())
            }
            Some(Piece::Far(count)) => {
                let access = DmaAccess { address, count };
                // A piece is no longer than what was looked for.
                let data = &data[..count as usize];
                self.ask(channel, &DmaRequest::Write(access, data), answer)
            }
        }
    }

    fn ask(
        &mut self,
        channel: &mut Channel,
        request: &DmaRequest<'_>,
        answer: oneshot::Sender<Answer>,
    ) -> io::Result<()> {
        let takes_any = self.shared.bytes_max.load(Relaxed) > 0;
        if !takes_any || self.unanswered.len() >= UNANSWERED_MAX {
            return Ok(());
        }
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if !self.unanswered.contains_key(&self.last_id) {
                break;
            }
        }
        let number = request.command() as u16;
        self.out.clear();
        let kind = Kind::Command { no_reply: false };
        message(&mut self.out, self.last_id, number, kind, |out| {
            request.put(out);
        });
        let unanswered = Unanswered {
            access: request.access(),
            number,
            answer: Some(answer),
        };
        self.unanswered.insert(self.last_id, unanswered);
        channel.send(&self.out, &[])
    }

    /// The client has answered. A wrong answer fails what it was asked for, and that alone.
    ///
    /// # Errors
    /// When nothing of the kind was asked: this is not the protocol any more.
    pub(super) fn answered(&mut self, header: &Header, payload: Vec<u8>) -> io::Result<()> {
        let asked = self.unanswered.remove(&header.id);
        let Unanswered {
            access,
            number,
            answer,
        } = asked.ok_or(io::ErrorKind::InvalidData)?;
        let right = header.number == number
            && header.kind == (Kind::Reply { error: None })
            && match number == forebay_proto::vfio_user::Command::DmaRead as u16 {
                true => parse_dma_read(&payload, access).is_ok(),
                false => parse_dma_written(&payload, access).is_ok(),
            };
        if let Some(answer) = answer.filter(|_| right) {
            give(answer, access.count as usize, payload);
        }
        Ok(())
    }

    /// Nobody waits any more for what is in memory that was unmapped.
    pub(super) fn let_go(&mut self, unmapped: &Unmapped) {
        for unanswered in self.unanswered.values_mut() {
            let DmaAccess { address, count } = unanswered.access;
            if unmapped.overlaps(address, count) {
                unanswered.answer = None;
            }
        }
    }
}

fn give(answer: oneshot::Sender<Answer>, count: usize, payload: Vec<u8>) {
    // Who asked may have gone.
    let _ = answer.send(Answer { count, payload });
}
