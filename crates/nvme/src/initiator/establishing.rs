//! An association in the making: the controller is reached and enabled, its queues are made, and its namespaces recognised.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_proto::nvme::fabrics::{CNTLID_DYNAMIC, DISCOVERY_NQN};
use forebay_proto::nvme::feature::fid;
use forebay_proto::nvme::identify::cns;
use forebay_proto::nvme::property::{Capabilities, Configuration, ControllerStatus, offset};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use super::device::Attached;
use super::host::{Address, Place};
use super::identify::ControllerInfo;
use super::keeper::{
    ADMIN_DEPTH, READY_PAUSE, Shared, identify, property_get, property_set, set_features,
};
use super::queue::{Dial, Queue, Way};
use super::setup::Purpose;
use super::{Error, Result};

/// Payload that may go with an admin or fabrics command (NVMe/TCP 3.3.2.1.3).
const ADMIN_IN_CAPSULE_BYTES_MAX: u64 = 8192;
/// Controller Configuration without further command sets: entries of 64 and 16 bytes, enabled.
const ENABLE_NVM: Configuration = Configuration(0x0046_0001);

/// An association in the making.
pub(super) struct Establishing<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) association: u64,
    pub(super) now: watch::Receiver<u64>,
}

impl Establishing<'_> {
    /// Makes it; also tells the device that it is with, if it is with one.
    pub(super) async fn run(self) -> Result<(ControllerInfo, Option<Arc<Attached>>)> {
        match &self.shared.place {
            Place::Tcp { address, subsystem } => {
                Ok((self.connect(address, subsystem).await?, None))
            }
            Place::Socket(path) => {
                let (info, attached) = self.attach(path).await?;
                Ok((info, Some(attached)))
            }
        }
    }

    async fn connect(&self, address: &Address, subsystem: &str) -> Result<ControllerInfo> {
        let shared = self.shared;
        let way = |qid, cntlid, depth, in_capsule_bytes_max| Way::Tcp {
            purpose: Purpose {
                address: address.clone(),
                subsystem: subsystem.to_owned(),
                qid,
                cntlid,
                depth,
            },
            in_capsule_bytes_max,
        };
        let admin = way(0, CNTLID_DYNAMIC, ADMIN_DEPTH, ADMIN_IN_CAPSULE_BYTES_MAX);
        let cntlid = self.dial(&shared.admin, admin).await?;
        let capabilities = Capabilities(property_get(shared, offset::CAP).await?);
        let configuration = match capabilities.has_io_command_sets() {
            true => Configuration::ENABLE,
            false => ENABLE_NVM,
        };
        property_set(shared, offset::CC, configuration.0.into()).await?;
        let ready = wait_until_ready(shared);
        let patience = Duration::from_millis(capabilities.timeout_ms().max(500).into());
        timeout(patience, ready)
            .await
            .map_err(|_| Error::protocol("the controller does not become ready"))??;
        let info = self.identify(capabilities).await?;
        if shared.io.is_empty() || subsystem == DISCOVERY_NQN {
            return Ok(info);
        }
        let wanted = shared.io.len() as u32 - 1;
        let granted =
            set_features(shared, fid::NUMBER_OF_QUEUES, wanted | wanted << 16).await? as u32;
        let granted = (granted & 0xffff).min(granted >> 16) as usize + 1;
        let active = granted.min(shared.io.len());
        let depth = self.depth(&info);
        for (qid, queue) in (1..).zip(&shared.io[..active]) {
            let way = way(qid, cntlid, depth, info.in_capsule_bytes_max);
            self.dial(queue, way).await?;
        }
        self.finish(active).await?;
        Ok(info)
    }

    async fn attach(&self, socket: &Path) -> Result<(ControllerInfo, Arc<Attached>)> {
        let shared = self.shared;
        let attached = Attached::open(socket, shared.options.connect_timeout).await?;
        let attached = Arc::new(attached);
        let admin = Way::Admin(attached.clone());
        self.dial(&shared.admin, admin).await?;
        let capabilities = attached.capabilities().await?;
        let info = self.identify(capabilities).await?;
        let active = shared.io.len().min(attached.queues_granted().into());
        let depth = self.depth(&info);
        for queue in &shared.io[..active] {
            self.dial(queue, Way::Pair(attached.clone(), depth)).await?;
        }
        self.finish(active).await?;
        Ok((info, attached))
    }

    async fn identify(&self, capabilities: Capabilities) -> Result<ControllerInfo> {
        let data = identify(self.shared, cns::CONTROLLER, 0, 0, true).await?;
        ControllerInfo::decode(&data, capabilities)
            .ok_or_else(|| Error::protocol("Identify Controller is too short"))
    }

    /// Commands in flight of an I/O queue.
    fn depth(&self, info: &ControllerInfo) -> u16 {
        self.shared.options.depth.min(info.commands_max)
    }

    async fn dial(&self, queue: &Queue, way: Way) -> Result<u16> {
        let (made, answer) = oneshot::channel();
        queue.dial(Dial {
            way,
            association: self.association,
            made,
            association_now: self.now.clone(),
        });
        answer.await.map_err(|_| Error::Closed)?
    }

    /// So many I/O queues are there.
    async fn finish(&self, active: usize) -> Result<()> {
        // First: nobody is to choose one that has none any more.
        self.shared.active.store(active, Relaxed);
        self.shared.give_up_idle();
        recognise(self.shared).await
    }
}

/// Looks whether the namespaces in use are still those that they were, for a number alone may be given to another one: commands of those
/// that are not wait.
pub(super) async fn recognise(shared: &Shared) -> Result<()> {
    let known = shared.known.lock().clone();
    let mut others = Vec::new();
    for (nsid, before) in known {
        match identify(shared, cns::NAMESPACE_DESCRIPTORS, nsid, 0, true).await {
            Ok(data) if data == before => {}
            // Another one, or none.
            Ok(_) | Err(Error::Status(_)) => {
                tracing::warn!(place = %shared.place, nsid, "the namespace is not the one that it was");
                others.push(nsid);
            }
            Err(error) => return Err(error),
        }
    }
    for queue in &shared.io {
        queue.slots.withhold(&others);
    }
    Ok(())
}

async fn wait_until_ready(shared: &Shared) -> Result<()> {
    loop {
        let status = ControllerStatus(property_get(shared, offset::CSTS).await? as u32);
        if status.fatal() {
            return Err(Error::protocol("the controller reports a fatal status"));
        }
        if status.ready() {
            return Ok(());
        }
        sleep(READY_PAUSE).await;
    }
}
