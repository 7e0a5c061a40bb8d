//! What subsystems there are at an address (Base 2.0, section 5.16.1.23).

use forebay_proto::nvme::discovery::{
    DiscoveryEntry, DiscoveryLog, ENTRIES_MAX, ENTRY_BYTES, TRANSPORT_TCP,
};
use forebay_proto::nvme::fabrics::DISCOVERY_NQN;
use forebay_proto::nvme::log_page::lid;

use super::controller::Controller;
use super::host::{Address, Options};
use super::{Error, Result};

/// Bytes that are read with one command.
const STEP_BYTES: usize = 64 * ENTRY_BYTES;
/// How often a log that changes while it is read is begun again.
const ATTEMPTS: usize = 8;

impl Address {
    /// Where an entry leads, when that is reached by TCP.
    pub fn of(entry: &DiscoveryEntry) -> Option<Address> {
        let is_tcp = entry.transport == TRANSPORT_TCP;
        Some(Address {
            host: entry.address.clone(),
            port: entry.service.parse().ok().filter(|_| is_tcp)?,
        })
    }
}

/// Asks the discovery controller at `address`.
///
/// # Errors
/// As [`Controller::connect`]; [`Error::Protocol`] for a log that makes no sense or does not stop changing.
pub async fn discover(address: Address, options: Options) -> Result<Vec<DiscoveryEntry>> {
    let controller = Controller::connect(address, DISCOVERY_NQN, options).await?;
    let found = read(&controller).await;
    controller.close().await;
    found
}

async fn read(controller: &Controller) -> Result<Vec<DiscoveryEntry>> {
    for _ in 0..ATTEMPTS {
        let header = part(controller, 0, ENTRY_BYTES).await?;
        let told = DiscoveryLog::header(&header);
        let (_, count) = told.ok_or_else(|| Error::protocol("no discovery log"))?;
        if count > ENTRIES_MAX as u64 {
            return Err(Error::protocol(format!("{count} discovery entries")));
        }
        let whole = ENTRY_BYTES * (1 + count as usize);
        let mut log = header;
        while log.len() < whole {
            let step = (whole - log.len()).min(STEP_BYTES);
            log.extend(part(controller, log.len(), step).await?);
        }
        let again = part(controller, 0, ENTRY_BYTES).await?;
        if DiscoveryLog::header(&again) == told {
            let log = DiscoveryLog::decode(&log);
            let log = log.ok_or_else(|| Error::protocol("the discovery log ends early"))?;
            return Ok(log.entries);
        }
    }
    Err(Error::protocol("the discovery log does not stop changing"))
}

async fn part(controller: &Controller, from: usize, bytes: usize) -> Result<Vec<u8>> {
    let page = controller
        .log_page(lid::DISCOVERY, 0, 0, from as u64, bytes as u32)
        .await?;
    match page.len() == bytes {
        true => Ok(page),
        false => Err(Error::protocol("the discovery log ends early")),
    }
}
