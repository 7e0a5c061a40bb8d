//! The closed loop: every connection asks again as soon as it has its answer.

use std::io;
use std::iter::StepBy;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::load::{CpuClock, Tally, Window, on_threads};
use crate::payload::{Payload, Random};
use crate::s3::Target;
use crate::s3::connection::{Connection, PATIENCE, Progress};
use crate::s3::request::{Ask, LIST_KEYS, Signer};
use crate::{Error, Op};

/// A read buffer: as large as the second-level cache of a core likes.
const SCRATCH_BYTES: usize = 256 * 1024;
const STALL: Timespec = Timespec {
    tv_sec: PATIENCE.as_secs() as i64,
    tv_nsec: 0,
};

/// What to do, how often and how long.
pub(crate) struct Load<'a> {
    pub(crate) target: &'a Target,
    pub(crate) payload: &'a Payload,
    pub(crate) op: Op,
    pub(crate) signed_payload: bool,
    pub(crate) quick_ack: bool,
    /// Objects worked on.
    pub(crate) objects: u64,
    pub(crate) concurrency: usize,
    pub(crate) threads: usize,
    pub(crate) until: Until,
}

/// When to stop.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// After a warm-up and a window that is measured.
    Elapsed { warm_up: Duration, window: Duration },
    /// When every object has had its turn; all of it is measured.
    EachObject,
}

/// Runs the load on its threads and adds up.
pub(crate) fn run(load: &Load<'_>) -> Result<Tally, Error> {
    let most = match load.op {
        // A thread without objects of its own would rest.
        Op::Put | Op::Mixed => load.objects.min(load.concurrency as u64) as usize,
        Op::Get | Op::Head | Op::List => load.concurrency,
    };
    let threads = load.threads.clamp(1, most.max(1));
    let window = match load.until {
        Until::Elapsed { warm_up, window } => Window::after(warm_up, window),
        Until::EachObject => Window::open(),
    };
    on_threads(threads, window, load.target.server_pid, |index| {
        Worker::new(load, index, threads, window).and_then(Worker::run)
    })
}

struct Worker<'a> {
    load: &'a Load<'a>,
    window: Window,
    signer: Signer<'a>,
    random: Random,
    /// Made anew when it was closed; none when it rests.
    connections: Vec<Option<Connection>>,
    poll: OwnedFd,
    /// The objects that this thread stores, in turn: no two threads store the same one.
    own: StepBy<Range<u64>>,
    turns: StepBy<Range<u64>>,
    /// Bodies are numbered differently in every thread and run.
    bodies: u64,
    tally: Tally,
    cpu: CpuClock,
}

impl<'a> Worker<'a> {
    fn new(
        load: &'a Load<'a>,
        index: usize,
        threads: usize,
        window: Window,
    ) -> Result<Worker<'a>, Error> {
        let share = (index..load.concurrency).step_by(threads).count();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::io("make an epoll descriptor")(error.into()))?;
        let own = (index as u64..load.objects).step_by(threads);
        let seed = unix_now().as_nanos() as u64;
        Ok(Worker {
            load,
            window,
            signer: Signer::new(load.target, unix_now().as_secs() as i64),
            random: Random::new(seed ^ index as u64),
            connections: (0..share).map(|_| None).collect(),
            poll,
            turns: own.clone(),
            own,
            bodies: seed ^ ((index as u64) << 56),
            tally: Tally::default(),
            cpu: CpuClock::default(),
        })
    }

    fn run(mut self) -> Result<Tally, Error> {
        let what = format!("work with {}", self.load.target.host);
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut running = 0;
        for token in 0..self.connections.len() {
            running += usize::from(self.ask_next(token).map_err(Error::io(&what))?);
        }
        let mut events = Vec::with_capacity(64);
        let mut ready: Vec<usize> = Vec::new();
        while running > 0 {
            let timeout = if ready.is_empty() {
                STALL
            } else {
                Timespec::default()
            };
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poll, room, Some(&timeout)) {
                Ok(0) if ready.is_empty() => {
                    return Err(Error::Protocol {
                        what,
                        reason: format!("nothing came for {} s", PATIENCE.as_secs()),
                    });
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Error::io(what)(error.into())),
            }
            for event in &events {
                let token = event.data.u64() as usize;
                if !ready.contains(&token) {
                    ready.push(token);
                }
            }
            for token in std::mem::take(&mut ready) {
                match self.turn(token, &mut scratch).map_err(Error::io(&what))? {
                    Turn::Waits => {}
                    Turn::Yields => ready.push(token),
                    Turn::Rests => running -= 1,
                }
            }
        }
        self.cpu.look(self.window, Instant::now());
        self.tally.client_cpu = Some(self.cpu.used());
        Ok(self.tally)
    }

    /// Lets one connection go on, and ask again when it has its answer.
    fn turn(&mut self, token: usize, scratch: &mut [u8]) -> io::Result<Turn> {
        let Some(connection) = &mut self.connections[token] else {
            return Ok(Turn::Waits);
        };
        let progress = connection.drive(self.load.payload, scratch, &mut |_| ());
        match progress {
            Ok(Progress::Blocked) => return Ok(Turn::Waits),
            Ok(Progress::Yielded) => return Ok(Turn::Yields),
            Ok(Progress::Answered) => self.answered(token),
            Err(error) => {
                self.connections[token] = None;
                self.failed(|| error.to_string());
            }
        }
        Ok(if self.ask_next(token)? {
            Turn::Waits
        } else {
            Turn::Rests
        })
    }

    fn answered(&mut self, token: usize) {
        let Some(connection) = self.connections[token].take() else {
            return;
        };
        let answer = connection.answer();
        if (200..300).contains(&answer.status()) {
            let now = Instant::now();
            self.cpu.look(self.window, now);
            if self.window.measures(now) {
                let bytes = match connection.ask() {
                    Ask::Put { .. } => self.load.payload.len() as u64,
                    _ => answer.body_bytes(),
                };
                self.tally.succeeded(now - connection.started(), 1, bytes);
            }
        } else {
            self.failed(|| format!("{} {}", answer.status(), answer.text()));
        }
        if !answer.closes() {
            self.connections[token] = Some(connection);
        }
    }

    fn failed(&mut self, text: impl FnOnce() -> String) {
        let now = Instant::now();
        self.cpu.look(self.window, now);
        if self.window.measures(now) {
            self.tally.failed(text());
        }
    }

    /// Begins the next request of a connection, connecting again when it was closed; false when there is none to begin.
    fn ask_next(&mut self, token: usize) -> io::Result<bool> {
        loop {
            let now = Instant::now();
            let ask = match self.next_ask() {
                Some(ask) if !self.window.is_over(now) => ask,
                _ => {
                    self.connections[token] = None;
                    return Ok(false);
                }
            };
            let connection = match &mut self.connections[token] {
                Some(connection) => connection,
                closed => {
                    let opened =
                        Connection::open(self.load.target.address, false, self.load.quick_ack)?;
                    epoll::add(
                        &self.poll,
                        &opened,
                        epoll::EventData::new_u64(token as u64),
                        epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET,
                    )?;
                    closed.insert(opened)
                }
            };
            self.signer.write_head(
                &mut connection.head,
                ask,
                self.load.payload,
                self.load.signed_payload,
                unix_now().as_secs() as i64,
            );
            connection.begin(ask, now);
            match connection.drive(self.load.payload, &mut [], &mut |_| ()) {
                Ok(_) => return Ok(true),
                Err(error) => {
                    self.connections[token] = None;
                    self.failed(|| error.to_string());
                }
            }
        }
    }

    fn next_ask(&mut self) -> Option<Ask> {
        let objects = self.load.objects;
        let op = match self.load.op {
            Op::Mixed if self.random.below(4) == 0 => Op::Put,
            Op::Mixed => Op::Get,
            op => op,
        };
        Some(match op {
            Op::Get | Op::Mixed => Ask::Get(self.random.below(objects)),
            Op::Head => Ask::Head(self.random.below(objects)),
            Op::List => Ask::List(self.random.below(objects.saturating_sub(LIST_KEYS) + 1)),
            Op::Put => {
                let object = match (self.turns.next(), self.load.until) {
                    (Some(object), _) => object,
                    (None, Until::EachObject) => return None,
                    (None, Until::Elapsed { .. }) => {
                        self.turns = self.own.clone();
                        self.turns.next()?
                    }
                };
                self.bodies = self.bodies.wrapping_add(1);
                Ask::Put {
                    object,
                    body: self.bodies,
                }
            }
        })
    }
}

enum Turn {
    Waits,
    Yields,
    Rests,
}

/// The time of day since 1970.
pub(crate) fn unix_now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
