//! A controller behind a vfio-user socket, for the time of one association: its queues are memory that both sides share.
//!
//! Registered memory that a file backs is mapped by the device when a command first names it, and read and written there in place from
//! then on; other payload passes through memory of the queue, and is counted as copied. A connection that ends takes its mappings back
//! first where the device can still be asked, so that what a caller gets back nobody else writes to.

mod admin;
mod pair;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use forebay_mem::{Region, RegionId};
use forebay_proto::nvme::property::{Capabilities, offset as register};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use super::slots::{Command, Slots};
use super::{Error, Result};
use crate::vfio_user::client::{Device, DoorbellMode, Error as DeviceError, Mapping};

pub(super) use admin::Admin;
pub(super) use pair::Pair;

/// Regions that are mapped at a time; payload in others is copied.
const REGIONS_MAX: usize = 1024;
/// How often mappings of memory that is gone are looked for.
const TIDY: Duration = Duration::from_secs(1);
/// How long the device may take to give mappings back.
const WITHDRAWAL: Duration = Duration::from_secs(5);

/// A device, and the memory that it has mapped.
pub(super) struct Attached {
    device: Device,
    mapped: Mutex<HashMap<RegionId, Mapped>>,
    withdrawn: OnceCell<()>,
}

/// Memory that the device has mapped, or does not map, as long as it is there.
struct Mapped {
    region: Weak<Region>,
    /// `None`: it was refused, and is not offered at every command.
    address: Option<u64>,
    bytes: usize,
}

impl Attached {
    /// Connects to a socket and enables the controller behind it.
    pub(super) async fn open(socket: &Path, patience: Duration) -> Result<Attached> {
        let opening = async {
            match Device::connect(socket, DoorbellMode::Shadow).await {
                // It does not know Doorbell Buffer Config.
                Err(DeviceError::Status(_)) => Device::connect(socket, DoorbellMode::Trapped).await,
                opened => opened,
            }
        };
        let shown = socket.display();
        let opened = timeout(patience, opening).await.map_err(|_| {
            Error::Unreachable(format!("{shown} did not answer within {patience:?}"))
        })?;
        Ok(Attached {
            device: opened.map_err(|error| match error {
                DeviceError::Io(error) => Error::Unreachable(format!("{shown}: {error}")),
                error => broken(error),
            })?,
            mapped: Mutex::default(),
            withdrawn: OnceCell::new(),
        })
    }

    pub(super) async fn capabilities(&self) -> Result<Capabilities> {
        let read = self.device.read_register(register::CAP, 8).await;
        read.map(Capabilities).map_err(broken)
    }

    /// How many pairs of I/O queues there may be.
    pub(super) fn queues_granted(&self) -> u16 {
        self.device.queues_granted()
    }

    /// The address that the device knows the first byte of a region by; `None` when it cannot map it.
    async fn address_of(&self, region: &Arc<Region>) -> Option<u64> {
        if let Some(known) = self.mapped.lock().get(&region.id()) {
            return known.address;
        }
        region.backing()?;
        self.tidy().await;
        if self.mapped.lock().len() >= REGIONS_MAX {
            return None;
        }
        let mapping = match self.device.map(region.clone()).await {
            Ok(mapping) => Some(mapping),
            // It will be no other the next time (EINVAL, ENOTSUP); whoever has no room now may have some then.
            Err(DeviceError::Refused(22 | 95)) => None,
            Err(_) => return None,
        };
        let before = match self.mapped.lock().entry(region.id()) {
            Entry::Occupied(known) => known.get().address,
            Entry::Vacant(place) => {
                let one = place.insert(Mapped {
                    region: Arc::downgrade(region),
                    address: mapping.as_ref().map(Mapping::address),
                    bytes: region.len(),
                });
                return one.address;
            }
        };
        // Another queue has asked for it meanwhile.
        if let Some(mapping) = mapping {
            let _ = self.device.unmap(mapping).await;
        }
        before
    }

    /// Gives mappings of memory that is gone back, again and again.
    pub(super) async fn keep_tidy(&self) -> ! {
        loop {
            sleep(TIDY).await;
            self.tidy().await;
        }
    }

    async fn tidy(&self) {
        let mut gone = Vec::new();
        self.mapped.lock().retain(|_, one| {
            let stays = one.region.strong_count() > 0;
            if let Some(address) = one.address.filter(|_| !stays) {
                gone.push((address, one.bytes));
            }
            stays
        });
        for (address, bytes) in gone {
            // With the connection they end, too.
            let _ = self.device.unmap_at(address, bytes).await;
        }
    }

    /// Takes every mapping back; when this returns the device uses the memory of its commands no more. A device that has gone, or does
    /// not answer for seconds, is taken to have stopped.
    pub(super) async fn withdraw(&self) {
        self.withdrawn
            .get_or_init(|| async {
                let all = std::mem::take(&mut *self.mapped.lock());
                let unmapping = async {
                    for one in all.values() {
                        if let Some(address) = one.address
                            && self.device.unmap_at(address, one.bytes).await.is_err()
                        {
                            return;
                        }
                    }
                };
                let _ = timeout(WITHDRAWAL, unmapping).await;
            })
            .await;
    }
}

/// Waits for commands, and takes at most `most`.
async fn commands(slots: &Slots, most: usize, into: &mut Vec<(u16, Command)>) {
    poll_fn(|cx| match slots.take(most, into, cx.waker()) {
        true => Poll::Pending,
        false => Poll::Ready(()),
    })
    .await;
}

fn broken(error: DeviceError) -> Error {
    match error {
        DeviceError::Io(error) => Error::Lost(error.to_string()),
        DeviceError::Status(status) => Error::Status(status),
        DeviceError::Refused(_) | DeviceError::Malformed(_) | DeviceError::Device(_) => {
            Error::protocol(error.to_string())
        }
    }
}
