//! Stands between our client and the device: sees what the device asks, and changes, keeps or loses what is answered.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use forebay_io::passing::finish;
use forebay_nvme::vfio_user::client::{Device, DoorbellMode, QueueMemory, QueueOptions};
use forebay_proto::vfio_user::{
    Command, DmaAccess, DmaRequest, Header, Kind, Version, message, put_version,
};
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::raw::Raw;
use crate::support::{Host, World};

/// What becomes of an answer.
pub enum Fate {
    Passes,
    IsLost,
    /// Until it is [released](Relay::release).
    IsKept,
    /// This comes in its place.
    Is(Vec<u8>),
}

type Judge = Box<dyn FnMut(&Header, &[u8]) -> Fate + Send>;

pub struct Relay {
    shared: Arc<Shared>,
    device: Arc<UnixStream>,
    asked: watch::Receiver<Vec<(Command, DmaAccess)>>,
}

struct Shared {
    judge: Mutex<Judge>,
    kept: Mutex<Vec<Vec<u8>>>,
    asked: watch::Sender<Vec<(Command, DmaAccess)>>,
    /// What the client is made to say of how much it takes.
    takes: Option<u64>,
}

fn whole(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, header.id, header.number, header.kind, |out| {
        out.extend_from_slice(payload);
    });
    bytes
}

impl Relay {
    /// A relay, and the client's end.
    pub fn new(device: UnixStream, takes: Option<u64>) -> (Relay, UnixStream) {
        let (end, client) = UnixStream::pair().unwrap();
        let (client, device) = (Arc::new(client), Arc::new(device));
        let (sender, asked) = watch::channel(Vec::new());
        let shared = Arc::new(Shared {
            judge: Mutex::new(Box::new(|_, _| Fate::Passes)),
            kept: Mutex::new(Vec::new()),
            asked: sender,
            takes,
        });
        tokio::spawn(to_device(client.clone(), device.clone(), shared.clone()));
        tokio::spawn(to_client(device.clone(), client, shared.clone()));
        let relay = Relay {
            shared,
            device,
            asked,
        };
        (relay, end)
    }

    /// Decides on answers from now on.
    pub fn judge(&self, judge: impl FnMut(&Header, &[u8]) -> Fate + Send + 'static) {
        *self.shared.judge.lock() = Box::new(judge);
    }

    pub fn pass(&self) {
        self.judge(|_, _| Fate::Passes);
    }

    pub fn keep(&self) {
        self.judge(|_, _| Fate::IsKept);
    }

    /// Lets answers pass again, those first that were kept.
    pub async fn release(&self) {
        let kept = std::mem::take(&mut *self.shared.kept.lock());
        self.pass();
        let mut raw = Raw::shared(self.device.clone());
        for bytes in kept {
            raw.send(&bytes, &[]).await;
        }
    }

    /// What the device has asked so far.
    pub fn asked(&self) -> Vec<(Command, DmaAccess)> {
        self.asked.borrow().clone()
    }

    /// Forgets that.
    pub fn forget(&self) {
        self.shared.asked.send_replace(Vec::new());
    }

    /// Waits for that many questions.
    pub async fn wait_asked(&mut self, count: usize) {
        let there = self.asked.wait_for(|asked| asked.len() >= count);
        there.await.unwrap();
    }
}

async fn to_device(client: Arc<UnixStream>, device: Arc<UnixStream>, shared: Arc<Shared>) {
    let (mut from, mut to) = (Raw::shared(client), Raw::shared(device.clone()));
    while let Some((header, mut payload)) = from.receive().await {
        if let Kind::Reply { .. } = header.kind {
            let fate = (shared.judge.lock())(&header, &payload);
            match fate {
                Fate::Passes => {}
                Fate::IsLost => continue,
                Fate::IsKept => {
                    shared.kept.lock().push(whole(&header, &payload));
                    continue;
                }
                Fate::Is(bytes) => {
                    to.send(&bytes, &[]).await;
                    continue;
                }
            }
        }
        if let (Some(takes), Some(Command::Version)) = (shared.takes, header.command()) {
            let mut version = Version::parse(&payload).unwrap();
            let mut said = version.capabilities.unwrap_or_default();
            said.max_data_xfer_size = takes;
            version.capabilities = Some(said);
            payload.clear();
            put_version(&mut payload, &version);
        }
        let files = from.take_files();
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        to.send(&whole(&header, &payload), &files).await;
    }
    finish(&device);
}

async fn to_client(device: Arc<UnixStream>, client: Arc<UnixStream>, shared: Arc<Shared>) {
    let (mut from, mut to) = (Raw::shared(device), Raw::shared(client.clone()));
    while let Some((header, payload)) = from.receive().await {
        if let Kind::Command { .. } = header.kind {
            let command = header.command().unwrap();
            let request = DmaRequest::parse(command, &payload).unwrap();
            let asked = (command, request.access());
            shared.asked.send_modify(|all| all.push(asked));
        }
        let files = from.take_files();
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        to.send(&whole(&header, &payload), &files).await;
    }
    finish(&client);
}

/// A host behind a relay.
pub async fn relayed(world: &World, mode: DoorbellMode, queues: QueueMemory) -> (Host, Relay) {
    relayed_taking(world, mode, queues, None).await
}

/// One that says that it takes so much at once.
pub async fn relayed_taking(
    world: &World,
    mode: DoorbellMode,
    queues: QueueMemory,
    takes: Option<u64>,
) -> (Host, Relay) {
    let (stream, served) = world.connect();
    let (relay, stream) = Relay::new(stream, takes);
    let device = Device::with(stream, mode, queues).await.unwrap();
    let queue = device.create_queue(QueueOptions::default()).await.unwrap();
    let host = Host {
        device,
        queue,
        served,
    };
    (host, relay)
}
