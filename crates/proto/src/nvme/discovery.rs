//! The discovery log (Base 2.0, section 5.16.1.23): where subsystems are.

use super::page::Page;

/// Bytes of the log's header, and of each of its entries.
pub const ENTRY_BYTES: usize = 1024;
/// The most entries that a log keeps.
pub const ENTRIES_MAX: usize = 1024;

/// What an entry leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubsystemType {
    /// Another discovery service.
    Referral,
    /// A subsystem with namespaces.
    Nvm,
    /// The discovery service that was asked.
    CurrentDiscovery,
    /// Any other.
    Other(u8),
}

/// Whether a connection must be secret (TREQ, Secure Channel).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecureChannel {
    /// Nothing is said.
    #[default]
    NotSpecified,
    /// Hosts must use TLS 1.3.
    Required,
    /// Hosts need not.
    NotRequired,
}

/// One way to one subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// TRTYPE: 1 RDMA, 2 Fibre Channel, 3 TCP.
    pub transport: u8,
    /// ADRFAM: 1 IPv4, 2 IPv6.
    pub address_family: u8,
    /// SUBTYPE.
    pub kind: SubsystemType,
    /// PORTID.
    pub port_id: u16,
    /// TRSVCID as text: of TCP, the port.
    pub service: String,
    /// SUBNQN.
    pub subnqn: String,
    /// TRADDR: the address as text.
    pub address: String,
    /// TREQ, and TSAS with it.
    pub secure_channel: SecureChannel,
}

/// TRTYPE: TCP.
pub const TRANSPORT_TCP: u8 = 3;
const TREQ: usize = 3;
/// The bits of TREQ that tell of a secure channel.
const TREQ_SECURE_CHANNEL: u8 = 3;
/// The first byte of TSAS over TCP.
const TSAS_SECTYPE: usize = 768;
const SECTYPE_TLS_1_3: u8 = 2;
const CNTLID_DYNAMIC: u16 = 0xffff;
/// EFLAGS: the discovery service supports Keep Alive and asynchronous events.
const EFLAGS_EXPLICIT: u16 = 1 << 1;

impl DiscoveryEntry {
    fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut entry = Page::<ENTRY_BYTES>::zeroed();
        entry.put_u8(0, self.transport);
        entry.put_u8(1, self.address_family);
        entry.put_u8(
            2,
            match self.kind {
                SubsystemType::Referral => 1,
                SubsystemType::Nvm => 2,
                SubsystemType::CurrentDiscovery => 3,
                SubsystemType::Other(kind) => kind,
            },
        );
        entry.put_u8(
            TREQ,
            match self.secure_channel {
                SecureChannel::NotSpecified => 0,
                SecureChannel::Required => 1,
                SecureChannel::NotRequired => 2,
            },
        );
        if self.secure_channel == SecureChannel::Required {
            entry.put_u8(TSAS_SECTYPE, SECTYPE_TLS_1_3);
        }
        entry.put_u16(4, self.port_id);
        entry.put_u16(6, CNTLID_DYNAMIC);
        entry.put_u16(8, 32);
        if self.kind == SubsystemType::CurrentDiscovery {
            entry.put_u16(10, EFLAGS_EXPLICIT);
        }
        entry.put_ascii(32, 32, &self.service);
        entry.put_terminated(256, 256, &self.subnqn);
        entry.put_ascii(512, 256, &self.address);
        entry.0
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> DiscoveryEntry {
        let entry = Page::<ENTRY_BYTES>(*bytes);
        DiscoveryEntry {
            transport: entry.u8(0),
            address_family: entry.u8(1),
            kind: match entry.u8(2) {
                1 => SubsystemType::Referral,
                2 => SubsystemType::Nvm,
                3 => SubsystemType::CurrentDiscovery,
                kind => SubsystemType::Other(kind),
            },
            port_id: entry.u16(4),
            service: entry.text(32, 32),
            subnqn: entry.text(256, 256),
            address: entry.text(512, 256),
            secure_channel: match entry.u8(TREQ) & TREQ_SECURE_CHANNEL {
                1 => SecureChannel::Required,
                2 => SecureChannel::NotRequired,
                _ => SecureChannel::NotSpecified,
            },
        }
    }
}

/// The log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiscoveryLog {
    /// GENCTR: changes with every change.
    pub generation: u64,
    /// What is there.
    pub entries: Vec<DiscoveryEntry>,
}

impl DiscoveryLog {
    /// The wire's form; entries past [`ENTRIES_MAX`] are left out.
    pub fn encode(&self) -> Vec<u8> {
        let entries = &self.entries[..self.entries.len().min(ENTRIES_MAX)];
        let mut header = Page::<ENTRY_BYTES>::zeroed();
        header.put_u64(0, self.generation);
        header.put_u64(8, entries.len() as u64);
        let mut log = header.0.to_vec();
        for entry in entries {
            log.extend_from_slice(&entry.encode());
        }
        log
    }

    /// GENCTR and the number of entries, from the log's first 16 bytes.
    pub fn header(bytes: &[u8]) -> Option<(u64, u64)> {
        let page = Page::<16>(bytes.get(..16)?.try_into().ok()?);
        Some((page.u64(0), page.u64(8)))
    }

    /// A whole log; `None` when it is shorter than it says.
    pub fn decode(bytes: &[u8]) -> Option<DiscoveryLog> {
        let (generation, count) = DiscoveryLog::header(bytes)?;
        let (entries, _) = bytes.get(ENTRY_BYTES..)?.as_chunks::<ENTRY_BYTES>();
        let entries = entries.get(..usize::try_from(count).ok()?)?;
        Some(DiscoveryLog {
            generation,
            entries: entries.iter().map(DiscoveryEntry::decode).collect(),
        })
    }
}
