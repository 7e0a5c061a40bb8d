//! Keys and values behind a socket: one command at a time, its data in memory that the device reads and writes in place.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_io::passthrough::Data;
use forebay_mem::{CopySite, PAGE_BYTES, Region, count_copy};
use forebay_proto::nvme::identify::{self, cns, list_entries};
use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::{
    CompletionQueueEntry, Csi, SubmissionQueueEntry, opcode::admin as opcode,
};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::{Device, DoorbellMode, Error, Mapping, QueueOptions, QueuePair, Result};

/// For how long a device that went away is connected to again, and a command repeated that may be.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A namespace of keys and values behind a vfio-user socket. When the device goes away it is connected to again, with growing pauses,
/// for ten seconds; what may happen twice is repeated then.
pub struct KeyValue {
    path: PathBuf,
    nsid: u32,
    link: Mutex<Option<Link>>,
}

/// A device, and what a command on it needs.
struct Link {
    device: Device,
    queue: QueuePair,
    memory: Mapping,
}

impl KeyValue {
    /// Connects to a namespace behind the socket at `path`; without a number to the first one of keys and values.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Device`] when there is no such namespace.
    pub async fn connect(path: &Path, nsid: Option<u32>) -> Result<KeyValue> {
        let mut link = Link::open(path).await?;
        let shown = link.namespaces().await?;
        let nsid = match nsid {
            Some(nsid) => shown.into_iter().find(|known| *known == nsid),
            None => shown.first().copied(),
        };
        Ok(KeyValue {
            path: path.to_owned(),
            nsid: nsid.ok_or(Error::Device("it has no such namespace of keys and values"))?,
            link: Mutex::new(Some(link)),
        })
    }

    /// The namespace's number.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Executes a command, whatever becomes of it.
    ///
    /// # Errors
    /// See [`Error`]; with [`Error::Io`] a command that changes something may have been carried out.
    pub async fn execute(
        &self,
        command: &KvCommand,
        mut data: Data<'_>,
    ) -> Result<CompletionQueueEntry> {
        let until = Instant::now() + PATIENCE;
        let mut pause = PAUSES.0;
        let entry = command.entry(0, self.nsid);
        let mut place = self.link.lock().await;
        loop {
            // Whoever gives this future up leaves nothing behind that still writes to the memory.
            let opened = match place.take() {
                Some(link) => Ok(link),
                None => Link::open(&self.path).await,
            };
            let sent = opened.is_ok();
            let failed = match opened {
                Err(error) => error,
                Ok(mut link) => match link.execute(entry, &mut data).await {
                    Ok(completion) => {
                        *place = Some(link);
                        return Ok(completion);
                    }
                    Err(error) => error,
                },
            };
            let again = matches!(failed, Error::Io(_)) && (!sent || may_repeat(command));
            if !again || Instant::now() + pause > until {
                return Err(failed);
            }
            sleep(pause).await;
            pause = PAUSES.1.min(2 * pause);
        }
    }
}

/// Whether a command may be carried out twice.
fn may_repeat(command: &KvCommand) -> bool {
    match command {
        KvCommand::Store { options, .. } => !options.if_absent && !options.if_exists,
        KvCommand::Retrieve { .. } | KvCommand::Exist { .. } | KvCommand::List { .. } => true,
        _ => false,
    }
}

impl Link {
    async fn open(path: &Path) -> Result<Link> {
        let device = Device::connect(path, DoorbellMode::Trapped).await?;
        let options = QueueOptions {
            interrupts: true,
            ..QueueOptions::default()
        };
        let queue = device.create_queue(options).await?;
        let memory = device.map(Region::memfd(PAGE_BYTES)?).await?;
        Ok(Link {
            device,
            queue,
            memory,
        })
    }

    /// The numbers of the namespaces of keys and values.
    async fn namespaces(&mut self) -> Result<Vec<u32>> {
        let entry = SubmissionQueueEntry::new(opcode::IDENTIFY, 0, 0)
            .with_cdw(10, cns::IO_ACTIVE_NAMESPACES.into())
            .with_cdw(11, (Csi::Kv as u32) << 24);
        self.device
            .admin(self.point(entry, identify::BYTES)?)
            .await?;
        let mut page = [0; identify::BYTES];
        self.take(&mut page)?;
        Ok(list_entries(&page).collect())
    }

    async fn execute(
        &mut self,
        entry: SubmissionQueueEntry,
        data: &mut Data<'_>,
    ) -> Result<CompletionQueueEntry> {
        let len = match data {
            Data::None => 0,
            Data::ToDevice(bytes) => bytes.len(),
            Data::FromDevice(bytes) => bytes.len(),
        };
        self.grow(len).await?;
        if let Data::ToDevice(bytes) = data {
            count_copy(CopySite::Client, len);
            let all = self.memory.region().slice(0..len);
            if !all.is_some_and(|all| all.write(0, bytes)) {
                return Err(memory_lost());
            }
        }
        let entry = match len {
            0 => entry,
            len => self.point(entry, len)?,
        };
        if !self.queue.submit(&entry) {
            return Err(Error::Device("its queue is full"));
        }
        self.queue.ring().await?;
        let mut ended = None;
        while ended.is_none() {
            self.queue
                .wait(|completion| ended = Some(completion))
                .await?;
        }
        if let Data::FromDevice(bytes) = data {
            count_copy(CopySite::Client, len);
            self.take(bytes)?;
        }
        ended.ok_or(Error::Device("it has stopped"))
    }

    /// Memory for so many bytes.
    async fn grow(&mut self, len: usize) -> Result<()> {
        if len <= self.memory.region().len() {
            return Ok(());
        }
        let region: Arc<Region> = Region::memfd(len.next_multiple_of(PAGE_BYTES))?;
        let larger = self.device.map(region).await?;
        let smaller = std::mem::replace(&mut self.memory, larger);
        self.device.unmap(smaller).await
    }

    /// The command with the first `len` bytes of the memory as its data.
    fn point(&self, entry: SubmissionQueueEntry, len: usize) -> Result<SubmissionQueueEntry> {
        let pointed = self.memory.point(entry, 0, len);
        pointed.ok_or(Error::Device("more data than a command has"))
    }

    /// The first bytes of the memory.
    fn take(&self, into: &mut [u8]) -> Result<()> {
        let all = self.memory.region().slice(0..into.len());
        match all.is_some_and(|all| all.read(0, into)) {
            true => Ok(()),
            false => Err(memory_lost()),
        }
    }
}

fn memory_lost() -> Error {
    Error::Io(io::Error::other("memory that is shared was taken away"))
}
