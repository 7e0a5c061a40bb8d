//! A connection and the controller behind it.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_io::eventfd::EventFd;
use forebay_io::socket::connect_unix;
use forebay_mem::{PAGE_BYTES, Region, RegionSlice};
use forebay_proto::nvme::property::{
    Capabilities, Configuration, ControllerStatus, offset as register,
};
use forebay_proto::nvme::{SglDescriptor, SubmissionQueueEntry};
use forebay_proto::vfio_user::reply::{self, parse_device_info, parse_irq, parse_region};
use forebay_proto::vfio_user::{
    Access, Capabilities as Said, DmaMap, DmaUnmap, FILES_MAX, IRQ_MSIX, IrqAction, IrqData, MAJOR,
    MINOR, PayloadAccess, REGION_BAR0, REGION_CONFIG, Request, SetIrqs, Version,
};
use parking_lot::Mutex as SyncMutex;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::admin::{AdminQueue, QUEUES_WANTED};
use super::connection::Connection;
use super::lent::{DATA_BYTES_MAX, DeviceMay};
use super::queue::{Bell, QueueOptions, QueuePair};
use super::{Error, Result};

/// Room for an answer about a region: what is known of it, and where it can be mapped.
const REGION_INFO_ROOM: u32 = 4064;
/// Command register: memory space, bus master, no interrupt pin.
const PCI_COMMAND: [u8; 2] = [0x06, 0x04];
const PCI_COMMAND_AT: u64 = 4;
/// Addresses that memory is mapped at begin here, and are never used twice.
const FIRST_ADDRESS: u64 = 1 << 32;

/// How the device reaches queues and shadow doorbells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueMemory {
    /// By files, in place.
    #[default]
    Mapped,
    /// By asking, see [`Device::lend`].
    Lent,
}

/// How doorbells reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DoorbellMode {
    /// Through our own memory, with a message when the device sleeps (Doorbell Buffer Config).
    #[default]
    Shadow,
    /// Through the device's page of doorbells, as SPDK's initiator does it. The device cannot be woken and looks by a timer.
    Mapped,
    /// By messages alone.
    Trapped,
}

/// A connection to a device, and its controller, enabled.
pub struct Device {
    pub(super) shared: Arc<Shared>,
    admin: Mutex<AdminQueue>,
    /// The identifier of the next pair of queues, and how many there may be.
    queues: SyncMutex<(u16, u16)>,
    entries_max: u32,
    doorbells: Doorbells,
}

/// What a device and its queues share.
pub(super) struct Shared {
    pub(super) connection: Connection,
    next_address: AtomicU64,
    queue_memory: QueueMemory,
}

/// Where doorbells are.
enum Doorbells {
    Trapped,
    Mapped(RegionSlice),
    Shadow {
        doorbells: RegionSlice,
        events: RegionSlice,
        _mapping: Mapping,
    },
}

/// Memory that the device reads and writes, in place or by asking, until it is [unmapped](Device::unmap) or the connection ends.
#[derive(Debug, Clone)]
pub struct Mapping {
    region: Arc<Region>,
    address: u64,
}

impl Mapping {
    /// The memory.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The address that the device knows its first byte by.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The command with `len` bytes from `offset` as its data; `None` when they leave the memory.
    #[must_use]
    pub fn point(
        &self,
        entry: SubmissionQueueEntry,
        offset: usize,
        len: usize,
    ) -> Option<SubmissionQueueEntry> {
        let end = offset.checked_add(len)?;
        if end > self.region.len() {
            return None;
        }
        point(entry, self.address + offset as u64, len)
    }
}

/// The command with `len` bytes that lie together as its data.
pub(crate) fn point(
    entry: SubmissionQueueEntry,
    address: u64,
    len: usize,
) -> Option<SubmissionQueueEntry> {
    let first_page = PAGE_BYTES - address as usize % PAGE_BYTES;
    // Two pages fit into the command itself. What is longer needs a list, or one descriptor.
    Some(match len {
        _ if len <= first_page && address.is_multiple_of(4) => entry.with_prps(address, 0),
        _ if len <= first_page + PAGE_BYTES && address.is_multiple_of(4) => {
            entry.with_prps(address, address + first_page as u64)
        }
        _ => entry.with_sgl(SglDescriptor::data_block(address, u32::try_from(len).ok()?)),
    })
}

impl Device {
    /// Connects to a socket and enables the controller behind it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn connect(path: &Path, mode: DoorbellMode) -> Result<Device> {
        Device::over(connect_unix(path).await?, mode).await
    }

    /// Enables the controller at the other end of a connection.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn over(stream: UnixStream, mode: DoorbellMode) -> Result<Device> {
        Device::with(stream, mode, QueueMemory::Mapped).await
    }

    /// As [`Device::over`], with queues in such memory.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn with(
        stream: UnixStream,
        mode: DoorbellMode,
        queue_memory: QueueMemory,
    ) -> Result<Device> {
        let shared = Arc::new(Shared {
            connection: Connection::new(stream),
            next_address: AtomicU64::new(FIRST_ADDRESS),
            queue_memory,
        });
        let page = shared.open(mode).await?;
        let cap = shared.read_register(register::CAP, 8).await?;
        let cap = Capabilities(cap);
        if cap.doorbell_stride_bytes() != 4 {
            return Err(Error::Device("its doorbells lie apart"));
        }
        let patience = Duration::from_millis(cap.timeout_ms().max(500).into());
        shared.write_register(register::CC, 4, 0).await?;
        shared.wait_ready(false, patience).await?;
        let vector = shared.interrupt(0).await?;
        let admin = AdminQueue::new(&shared, vector).await?;
        let enable = Configuration::ENABLE.0;
        shared
            .write_register(register::CC, 4, enable.into())
            .await?;
        shared.wait_ready(true, patience).await?;
        let mut device = Device {
            admin: Mutex::new(admin),
            queues: SyncMutex::new((1, 0)),
            entries_max: cap.queue_entries_max(),
            doorbells: Doorbells::Trapped,
            shared,
        };
        let granted = device.admin.lock().await.set_queues(QUEUES_WANTED).await?;
        device.queues.lock().1 = granted;
        device.doorbells = match (mode, page) {
            (DoorbellMode::Trapped, _) => Doorbells::Trapped,
            (DoorbellMode::Mapped, Some(page)) => Doorbells::Mapped(page),
            (DoorbellMode::Mapped, None) => {
                return Err(Error::Device("its doorbells cannot be mapped"));
            }
            (DoorbellMode::Shadow, _) => device.set_shadow().await?,
        };
        Ok(device)
    }

    async fn set_shadow(&self) -> Result<Doorbells> {
        let mapping = self.shared.for_queues(2 * PAGE_BYTES).await?;
        let page = |number: usize| {
            mapping
                .region
                .slice(number * PAGE_BYTES..(number + 1) * PAGE_BYTES)
        };
        let (Some(doorbells), Some(events)) = (page(0), page(1)) else {
            return Err(Error::Device("a page has no bytes"));
        };
        let mut admin = self.admin.lock().await;
        let (first, second) = (mapping.address, mapping.address + PAGE_BYTES as u64);
        admin.set_shadow_doorbells(first, second).await?;
        drop(admin);
        Ok(Doorbells::Shadow {
            doorbells,
            events,
            _mapping: mapping,
        })
    }

    /// Hands memory over; it must have a file ([`Region::memfd`], [`Region::from_fd`]).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn map(&self, region: Arc<Region>) -> Result<Mapping> {
        self.shared.map(region).await
    }

    /// Lets the device ask for memory, which needs no file ([`Region::anonymous`]): for devices that cannot map it, and slow. Its
    /// questions are answered while somebody waits: in [`QueuePair::wait`], [`QueuePair::closed`] or a request.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn lend(&self, region: Arc<Region>, may: DeviceMay) -> Result<Mapping> {
        self.shared.lend(region, may).await
    }

    /// Takes memory back; when this returns, the device uses it no more.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn unmap(&self, mapping: Mapping) -> Result<()> {
        self.unmap_at(mapping.address, mapping.region.len()).await
    }

    /// As [`Device::unmap`], for memory that may be gone.
    pub(crate) async fn unmap_at(&self, address: u64, bytes: usize) -> Result<()> {
        let unmap = DmaUnmap {
            all: false,
            address,
            size: mapped_bytes(bytes),
        };
        let request = Request::DmaUnmap(unmap);
        self.shared.connection.call(&request, &[]).await?;
        self.shared.connection.lent.take_back(address);
        Ok(())
    }

    /// How many pairs of queues the controller grants.
    pub fn queues_granted(&self) -> u16 {
        self.queues.lock().1
    }

    /// Returns when the device has gone.
    pub async fn closed(&self) {
        self.shared.connection.closed().await;
    }

    /// Makes a pair of queues.
    ///
    /// # Errors
    /// [`Error::Device`] when there are as many as the controller grants; see [`Error`].
    pub async fn create_queue(&self, options: QueueOptions) -> Result<QueuePair> {
        let qid = {
            let mut queues = self.queues.lock();
            let (next, granted) = *queues;
            if next > granted {
                return Err(Error::Device("it grants no more queues"));
            }
            queues.0 += 1;
            next
        };
        let entries = u32::from(options.entries).clamp(2, self.entries_max);
        let interrupt = match options.interrupts {
            true => Some(self.shared.interrupt(qid).await?),
            false => None,
        };
        let (submission, completion) = (entries as usize * 64, entries as usize * 16);
        let completion_at = submission.next_multiple_of(PAGE_BYTES);
        let bytes = completion_at + completion.next_multiple_of(PAGE_BYTES);
        let mapping = self.shared.for_queues(bytes).await?;
        let completion_address = mapping.address + completion_at as u64;
        let mut admin = self.admin.lock().await;
        let vector = interrupt.as_ref().map(|_| qid);
        admin
            .create_completion_queue(qid, entries, completion_address, vector)
            .await?;
        admin
            .create_submission_queue(qid, entries, mapping.address)
            .await?;
        drop(admin);
        let bell = match &self.doorbells {
            Doorbells::Trapped => Bell::trapped(),
            Doorbells::Mapped(page) => Bell::mapped(page.clone()),
            Doorbells::Shadow {
                doorbells, events, ..
            } => Bell::shadow(doorbells.clone(), events.clone()),
        };
        QueuePair::new(
            self.shared.clone(),
            qid,
            entries,
            mapping,
            completion_at,
            bell,
            interrupt,
        )
    }

    /// Makes an admin command, which takes and gives no data but by `data`.
    ///
    /// # Errors
    /// [`Error::Status`] unless it succeeds; see [`Error`].
    pub async fn admin(&self, entry: SubmissionQueueEntry) -> Result<u64> {
        self.admin.lock().await.execute(entry).await
    }

    /// Reads a register of 4 or 8 bytes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn read_register(&self, offset: u32, bytes: u8) -> Result<u64> {
        self.shared.read_register(offset, bytes).await
    }

    /// Writes a register of 4 or 8 bytes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn write_register(&self, offset: u32, bytes: u8, value: u64) -> Result<()> {
        self.shared.write_register(offset, bytes, value).await
    }

    /// Makes any request, and returns the payload of its answer.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn request(&self, request: &Request<'_>) -> Result<Vec<u8>> {
        Ok(self.shared.connection.call(request, &[]).await?.0)
    }
}

impl Shared {
    /// Says who we are and looks at what is there; the page of doorbells, if it can be mapped.
    async fn open(&self, mode: DoorbellMode) -> Result<Option<RegionSlice>> {
        let said = Said {
            max_msg_fds: FILES_MAX as u32,
            max_data_xfer_size: DATA_BYTES_MAX as u64,
            ..Said::default()
        };
        let version = Request::Version(Version {
            major: MAJOR,
            minor: MINOR,
            // A program that polls says nothing of itself; it is then offered the page of doorbells.
            capabilities: (mode != DoorbellMode::Mapped).then_some(said),
        });
        let (payload, _) = self.connection.call(&version, &[]).await?;
        if Version::parse(&payload)?.major != MAJOR {
            return Err(Error::Device("it speaks another version"));
        }
        let (payload, _) = self.connection.call(&Request::DeviceInfo, &[]).await?;
        parse_device_info(&payload)?;
        let ask = Request::RegionInfo {
            room: REGION_INFO_ROOM,
            index: REGION_BAR0,
        };
        let (payload, mut files) = self.connection.call(&ask, &[]).await?;
        let (region, _) = parse_region(&payload)?;
        let page = match (region.mappable, files.pop_front()) {
            (Some((area, at)), Some(file)) if mode == DoorbellMode::Mapped => {
                let begins = u64::from(register::DOORBELLS);
                let inside =
                    area.offset <= begins && area.offset + area.size >= begins + PAGE_BYTES as u64;
                let from = at.checked_add(begins).filter(|_| inside);
                let from = from.ok_or(Error::Device("its doorbells cannot be mapped"))?;
                Some(Region::received(
                    file,
                    from,
                    PAGE_BYTES,
                    true,
                    Box::new(()),
                )?)
            }
            _ => None,
        };
        let ask = Request::IrqInfo { index: IRQ_MSIX };
        let (payload, _) = self.connection.call(&ask, &[]).await?;
        if parse_irq(&payload)? == 0 {
            return Err(Error::Device("it has no interrupts"));
        }
        let access = Access {
            offset: PCI_COMMAND_AT,
            region: REGION_CONFIG,
            count: PCI_COMMAND.len() as u32,
        };
        let data = &PCI_COMMAND;
        let command = Request::RegionWrite(PayloadAccess { access, data });
        self.connection.call(&command, &[]).await?;
        Ok(page)
    }

    async fn read_register(&self, offset: u32, bytes: u8) -> Result<u64> {
        let access = Access {
            offset: offset.into(),
            region: REGION_BAR0,
            count: bytes.into(),
        };
        let request = Request::RegionRead(access);
        let (payload, _) = self.connection.call(&request, &[]).await?;
        let read = reply::parse_read(&payload)?;
        let mut value = [0; 8];
        let len = read.data.len().min(8);
        value[..len].copy_from_slice(&read.data[..len]);
        Ok(u64::from_le_bytes(value))
    }

    pub(super) async fn write_register(&self, offset: u32, bytes: u8, value: u64) -> Result<()> {
        let access = Access {
            offset: offset.into(),
            region: REGION_BAR0,
            count: bytes.into(),
        };
        let value = value.to_le_bytes();
        let data = &value[..usize::from(bytes).min(8)];
        let request = Request::RegionWrite(PayloadAccess { access, data });
        self.connection.call(&request, &[]).await?;
        Ok(())
    }

    async fn wait_ready(&self, ready: bool, patience: Duration) -> Result<()> {
        let since = Instant::now();
        loop {
            let status = self.read_register(register::CSTS, 4).await? as u32;
            let status = ControllerStatus(status);
            if status.fatal() && ready {
                return Err(Error::Device("it cannot be enabled"));
            }
            if status.ready() == ready {
                return Ok(());
            }
            if since.elapsed() > patience {
                return Err(Error::Device("it does not become ready"));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) async fn map(&self, region: Arc<Region>) -> Result<Mapping> {
        let backing = region
            .backing()
            .ok_or(Error::Device("only memory of a file can be mapped"))?;
        let size = mapped_bytes(region.len());
        let address = self.next_address.fetch_add(size, Relaxed);
        let map = Request::DmaMap(DmaMap {
            readable: true,
            writable: backing.writable,
            offset: 0,
            address,
            size,
        });
        self.connection.call(&map, &[backing.file]).await?;
        Ok(Mapping { region, address })
    }

    pub(super) async fn lend(&self, region: Arc<Region>, may: DeviceMay) -> Result<Mapping> {
        let size = mapped_bytes(region.len());
        let address = self.next_address.fetch_add(size, Relaxed);
        self.connection.lent.lend(address, region.clone(), may);
        let map = Request::DmaMap(DmaMap {
            readable: may.read(),
            writable: may.write(),
            offset: 0,
            address,
            size,
        });
        match self.connection.call(&map, &[]).await {
            Ok(_) => Ok(Mapping { region, address }),
            Err(error) => {
                self.connection.lent.take_back(address);
                Err(error)
            }
        }
    }

    /// Memory for queues and doorbells.
    pub(super) async fn for_queues(&self, bytes: usize) -> Result<Mapping> {
        match self.queue_memory {
            QueueMemory::Mapped => self.map(Region::memfd(bytes)?).await,
            QueueMemory::Lent => {
                let may = DeviceMay::ReadAndWrite;
                self.lend(Region::anonymous(bytes)?, may).await
            }
        }
    }

    /// Wires an interrupt vector.
    async fn interrupt(&self, vector: u16) -> Result<EventFd> {
        let event = EventFd::new()?;
        let set = Request::SetIrqs(SetIrqs {
            action: IrqAction::Trigger,
            data: IrqData::Eventfd,
            index: IRQ_MSIX,
            start: vector.into(),
            count: 1,
        });
        self.connection.call(&set, &[event.as_fd()]).await?;
        Ok(event)
    }
}

/// The device maps whole pages.
fn mapped_bytes(bytes: usize) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES) as u64
}
