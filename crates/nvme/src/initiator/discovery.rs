//! What subsystems there are at an address (Base 2.0, section 5.16.1.23).

use super::controller::Controller;
use super::host::{Address, Options};
use super::identify::{text, u16_at, u64_at};
use super::{Error, Result};

/// The NQN of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Log page: Discovery.
const DISCOVERY: u8 = 0x70;
/// Bytes of the log's header, and of each entry.
const ENTRY_BYTES: u64 = 1024;
/// Entries that are read with one command.
const ENTRIES_AT_ONCE: u64 = 64;
/// The most entries that are taken.
const ENTRIES_MAX: u64 = 65536;
/// How often a log that changes while it is read is begun again.
const ATTEMPTS: usize = 8;

/// What an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveredKind {
    /// Another discovery controller.
    Referral,
    /// A subsystem with namespaces.
    Nvm,
    /// The discovery controller that was asked.
    CurrentDiscovery,
    /// Anything else.
    Other(u8),
}

/// One way to a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovered {
    /// What it is.
    pub kind: DiscoveredKind,
    /// TRTYPE: 1 RDMA, 2 Fibre Channel, 3 TCP.
    pub transport: u8,
    /// ADRFAM: 1 IPv4, 2 IPv6.
    pub address_family: u8,
    /// TRADDR.
    pub address: String,
    /// TRSVCID: of TCP, the port.
    pub service: String,
    /// SUBNQN.
    pub subsystem: String,
    /// PORTID.
    pub port_id: u16,
}

impl Discovered {
    fn parse(entry: &[u8]) -> Option<Discovered> {
        let entry = entry.get(..ENTRY_BYTES as usize)?;
        Some(Discovered {
            kind: match entry[2] {
                1 => DiscoveredKind::Referral,
                2 => DiscoveredKind::Nvm,
                3 => DiscoveredKind::CurrentDiscovery,
                other => DiscoveredKind::Other(other),
            },
            transport: entry[0],
            address_family: entry[1],
            address: text(&entry[512..768]),
            service: text(&entry[32..64]),
            subsystem: text(&entry[256..512]),
            port_id: u16_at(entry, 4),
        })
    }

    /// Where to connect to, when it is reached by TCP.
    pub fn tcp(&self) -> Option<Address> {
        Some(Address {
            host: self.address.clone(),
            port: self.service.parse().ok().filter(|_| self.transport == 3)?,
        })
    }
}

/// Asks the discovery controller at `address`.
///
/// # Errors
/// As [`Controller::connect`]; [`Error::Protocol`] for a log that makes no sense or does not stop changing.
pub async fn discover(address: Address, options: Options) -> Result<Vec<Discovered>> {
    let controller = Controller::connect(address, DISCOVERY_NQN, options).await?;
    let found = read(&controller).await;
    controller.close().await;
    found
}

async fn read(controller: &Controller) -> Result<Vec<Discovered>> {
    for _ in 0..ATTEMPTS {
        let (generation, count) = header(controller).await?;
        if count > ENTRIES_MAX {
            return Err(Error::protocol(format!("{count} discovery entries")));
        }
        let mut found = Vec::new();
        while (found.len() as u64) < count {
            let from = found.len() as u64;
            let some = (count - from).min(ENTRIES_AT_ONCE);
            let at = (1 + from) * ENTRY_BYTES;
            let bytes = (some * ENTRY_BYTES) as u32;
            let page = controller.log_page(DISCOVERY, 0, 0, at, bytes).await?;
            let before = found.len();
            found.extend(
                page.chunks(ENTRY_BYTES as usize)
                    .filter_map(Discovered::parse),
            );
            if found.len() == before {
                return Err(Error::protocol("the discovery log ends early"));
            }
        }
        if header(controller).await? == (generation, count) {
            return Ok(found);
        }
    }
    Err(Error::protocol("the discovery log does not stop changing"))
}

async fn header(controller: &Controller) -> Result<(u64, u64)> {
    let bytes = ENTRY_BYTES as u32;
    let header = controller.log_page(DISCOVERY, 0, 0, 0, bytes).await?;
    if header.len() < 24 || u16_at(&header, 16) != 0 {
        return Err(Error::protocol("an unknown format of discovery log"));
    }
    Ok((u64_at(&header, 0), u64_at(&header, 8)))
}
