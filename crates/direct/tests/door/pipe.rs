//! A link inside the process: the contract of [`Link`] with nothing below it.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_fabric::{
    Access, CloseReason, Error, ErrorKind, Exposure, Fabric, Link, Placed, RemoteRange, Result,
    Stag,
};
use forebay_mem::{Buf, BufMut, RegionSlice};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

type Exposed = Arc<Mutex<HashMap<u32, (RegionSlice, Access)>>>;

/// A message, and what was written before it.
type Sent = (Vec<u8>, Vec<Buf>);

/// One end.
pub struct Pipe {
    fabric: Fabric,
    own: Exposed,
    peers: Exposed,
    stags: Mutex<u32>,
    out: mpsc::Sender<Sent>,
    incoming: tokio::sync::Mutex<mpsc::Receiver<Sent>>,
    /// What was written since the last message: it is on its way until the peer takes the next one.
    written: Mutex<Vec<Buf>>,
    end: watch::Sender<Option<CloseReason>>,
}

impl Pipe {
    /// Both ends. Over [`Fabric::Shm`] the peer's memory is mapped, over [`Fabric::Iwarp`] it is not.
    pub fn pair(fabric: Fabric) -> (Pipe, Pipe) {
        let (mine, theirs) = (Exposed::default(), Exposed::default());
        let (to_them, from_me) = mpsc::channel(64);
        let (to_me, from_them) = mpsc::channel(64);
        let (end, _) = watch::channel(None);
        let make = |own: &Exposed, peers: &Exposed, out, incoming, first| Pipe {
            fabric,
            own: own.clone(),
            peers: peers.clone(),
            stags: Mutex::new(first),
            out,
            incoming: tokio::sync::Mutex::new(incoming),
            written: Mutex::default(),
            end: end.clone(),
        };
        (
            make(&mine, &theirs, to_them, from_them, 100),
            make(&theirs, &mine, to_me, from_me, 200),
        )
    }

    fn open(&self) -> Result<()> {
        match *self.end.borrow() {
            None => Ok(()),
            Some(_) => Err(closed()),
        }
    }

    fn reach(&self, range: RemoteRange, allowed: impl Fn(Access) -> bool) -> Result<RegionSlice> {
        self.open()?;
        let unreachable = || Error::new(ErrorKind::NotReachable, "not exposed");
        let exposed = self.peers.lock();
        let (memory, access) = exposed.get(&range.stag.0).ok_or_else(unreachable)?;
        let window = usize::try_from(range.offset).ok().and_then(|start| {
            let end = start.checked_add(usize::try_from(range.len).ok()?)?;
            memory.slice(start..end)
        });
        window.filter(|_| allowed(*access)).ok_or_else(unreachable)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the pipe is closed")
}

impl Link for Pipe {
    fn fabric(&self) -> Fabric {
        self.fabric
    }

    async fn expose(&self, memory: RegionSlice, access: Access) -> Result<Exposure> {
        self.open()?;
        let len = memory.len() as u64;
        let mut stags = self.stags.lock();
        *stags += 1;
        self.own.lock().insert(*stags, (memory, access));
        Ok(Exposure {
            stag: Stag(*stags),
            base: 0,
            len,
        })
    }

    async fn withdraw(&self, exposure: Exposure) {
        self.own.lock().remove(&exposure.stag.0);
    }

    async fn write(&self, to: RemoteRange, from: Vec<Buf>) -> Result<()> {
        let target = self.reach(to, Access::writes)?;
        // A network takes its time.
        tokio::task::yield_now().await;
        self.open()?;
        let mut at = 0;
        for buf in &from {
            if !target.write(at, buf) {
                return Err(Error::new(ErrorKind::Invalid, "too long"));
            }
            at += buf.len();
        }
        self.written.lock().extend(from);
        Ok(())
    }

    async fn read(&self, from: RemoteRange, mut into: BufMut) -> Result<BufMut> {
        let source = self.reach(from, Access::reads)?;
        tokio::task::yield_now().await;
        let filled = into.len();
        into.set_len(filled + source.len());
        assert!(source.read(0, &mut into[filled..]));
        Ok(into)
    }

    async fn fence(&self) -> Result<Placed> {
        // The door relies on the order of a link, and asks for no proof before it answers.
        Err(Error::new(ErrorKind::Invalid, "a pipe proves nothing"))
    }

    async fn send(&self, message: &[u8]) -> Result<()> {
        self.open()?;
        let mut end = self.end.subscribe();
        let sent = (message.to_vec(), std::mem::take(&mut *self.written.lock()));
        tokio::select! {
            sent = self.out.send(sent) => sent.map_err(|_| closed()),
            _ = end.wait_for(Option::is_some) => Err(closed()),
        }
    }

    async fn recv(&self, into: &mut Vec<u8>) -> Result<Option<()>> {
        let mut incoming = self.incoming.lock().await;
        let mut end = self.end.subscribe();
        let message = tokio::select! {
            biased;
            message = incoming.recv() => message,
            ended = end.wait_for(Option::is_some) => match ended.map(|reason| reason.clone()) {
                Ok(Some(CloseReason::Done)) => None,
                _ => return Err(closed()),
            },
        };
        Ok(message.map(|(message, _)| {
            into.clear();
            into.extend_from_slice(&message);
        }))
    }

    fn mapped(&self, range: RemoteRange, access: Access) -> Option<RegionSlice> {
        if self.fabric != Fabric::Shm {
            return None;
        }
        self.reach(range, |exposed| match access {
            Access::Read => exposed.reads(),
            Access::Write => exposed.writes(),
            Access::ReadWrite => exposed == Access::ReadWrite,
        })
        .ok()
    }

    fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    fn close(&self, reason: CloseReason) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(reason);
            first
        });
    }

    fn is_settled(&self) -> bool {
        self.end.borrow().is_some()
    }

    async fn closed(&self) -> CloseReason {
        let mut end = self.end.subscribe();
        match end.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(CloseReason::Lost),
            Err(_) => CloseReason::Lost,
        }
    }
}
