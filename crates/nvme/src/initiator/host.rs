//! Who asks, whom, and how.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use forebay_proto::nvme::NQN_BYTES_MAX;
use forebay_proto::nvme::psk::TlsKey;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use super::{Error, Result};

/// The port of NVMe/TCP that IANA assigned to subsystems.
pub const PORT: u16 = 4420;
/// The port of discovery controllers.
pub const DISCOVERY_PORT: u16 = 8009;
/// The most commands in flight of one queue.
pub const DEPTH_MAX: u16 = 1023;

/// Where a controller listens: a name or address, and a TCP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A name, or an address (IPv6 without brackets).
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// Where a controller is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// By NVMe/TCP.
    Tcp {
        /// Where the subsystem's controllers listen.
        address: Address,
        /// The subsystem's NQN.
        subsystem: String,
    },
    /// On this machine, by vfio-user: the socket's absolute path.
    Socket(PathBuf),
}

/// One namespace of one controller: `nvme+tcp://HOST:PORT/SUBNQN/NSID` or `nvme+vfio-user:///PATH/OF/SOCKET/NSID` for a block
/// namespace, `kv://HOST:PORT/SUBNQN/NSID` or `kv:///PATH/OF/SOCKET/NSID` for a key-value one. Without a port it is 4420.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceUrl {
    /// What it keeps.
    pub scheme: Scheme,
    /// Its controller.
    pub place: Place,
    /// The namespace.
    pub nsid: u32,
}

/// What a [`NamespaceUrl`] expects of its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Blocks (NVM command set).
    Block,
    /// Keys and values (Key Value command set).
    KeyValue,
}

/// Who a host says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// Its NQN.
    pub nqn: String,
    /// Its identifier; one NQN always has the same.
    pub id: [u8; 16],
}

/// What proves that a host, or a controller, is who it says (DH-HMAC-CHAP): the text form `DHHC-1:HH:BASE64:`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

/// How a host talks to a subsystem.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who asks.
    pub host: HostIdentity,
    /// I/O queues, each a connection. The controller may grant fewer.
    pub queues: u16,
    /// Commands in flight of each, at most [`DEPTH_MAX`]. The controller may grant fewer.
    pub depth: u16,
    /// How long silence may last before each side thinks the other gone; a keep alive is sent twice in that time. Zero: never.
    pub keep_alive: Duration,
    /// CRC32C over headers of PDUs.
    pub header_digest: bool,
    /// CRC32C over payload.
    pub data_digest: bool,
    /// Proves the host, where the controller asks for it.
    pub secret: Option<Secret>,
    /// Asks the controller to prove itself, too.
    pub controller_secret: Option<Secret>,
    /// The key of TLS: with one, connections are secret from their first byte.
    pub tls_key: Option<TlsKey>,
    /// How long making and preparing a connection may take.
    pub connect_timeout: Duration,
    /// How long a command may take. When one takes longer, the connections are made anew.
    pub command_timeout: Duration,
    /// How long a call waits for a connection while there is none, or for a controller that cannot carry it out for now; for ever, when
    /// missing.
    pub patience: Option<Duration>,
    /// The pause before the first attempt to connect again; each later one is twice as long ...
    pub pause: Duration,
    /// ... up to this. So do the pauses before a command is made again.
    pub pause_max: Duration,
    /// Where the queues run, in turn; where [`connect`](super::Controller::connect) is called, when empty. They must drive time and
    /// network.
    pub runtimes: Vec<Handle>,
}

impl Default for Options {
    /// One queue of 128 commands, no digests, a keep alive time of 10 s, 30 s a command, 10 s of patience; as
    /// [`HostIdentity::of_this_machine`].
    fn default() -> Options {
        Options {
            host: HostIdentity::of_this_machine(),
            queues: 1,
            depth: 128,
            keep_alive: Duration::from_secs(10),
            header_digest: false,
            data_digest: false,
            secret: None,
            controller_secret: None,
            tls_key: None,
            connect_timeout: Duration::from_secs(5),
            command_timeout: Duration::from_secs(30),
            patience: Some(Duration::from_secs(10)),
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
            runtimes: Vec::new(),
        }
    }
}

impl Options {
    /// The same with everything inside its bounds.
    pub(super) fn checked(mut self) -> Result<Options> {
        check_nqn(&self.host.nqn)?;
        if self.queues == 0 || self.depth == 0 {
            return Err(Error::invalid("a host has at least one queue of one place"));
        }
        self.depth = self.depth.min(DEPTH_MAX);
        self.pause = self.pause.max(Duration::from_millis(1));
        self.pause_max = self.pause_max.max(self.pause);
        Ok(self)
    }
}

/// Whether this may stand in a Connect command.
pub(super) fn check_nqn(nqn: &str) -> Result<()> {
    if nqn.is_empty() || nqn.len() > NQN_BYTES_MAX || nqn.contains('\0') {
        return Err(Error::invalid(format!(
            "{nqn:?} is not an NVMe qualified name"
        )));
    }
    Ok(())
}

/// What the kernel's own initiator goes by.
const SYSTEM_NQN: &str = "/etc/nvme/hostnqn";
const SYSTEM_ID: &str = "/etc/nvme/hostid";

impl HostIdentity {
    /// What [`HostIdentity::of_system`] says; without it a name that is made up and lasts as long as this process.
    pub fn of_this_machine() -> HostIdentity {
        static MADE_UP: std::sync::OnceLock<HostIdentity> = std::sync::OnceLock::new();
        let made_up = || HostIdentity::named(&HostIdentity::made_up_nqn());
        HostIdentity::of_system().unwrap_or_else(|| MADE_UP.get_or_init(made_up).clone())
    }

    /// What `/etc/nvme/hostnqn` and `/etc/nvme/hostid` say, as for the kernel's own initiator; none without the first of them.
    pub fn of_system() -> Option<HostIdentity> {
        let read = |name: &str| {
            let text = std::fs::read_to_string(name).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let nqn = read(SYSTEM_NQN).filter(|nqn| check_nqn(nqn).is_ok())?;
        let id = read(SYSTEM_ID).and_then(|text| parse_uuid(&text));
        let id = id.unwrap_or_else(|| id_of(&nqn));
        Some(HostIdentity { nqn, id })
    }

    /// The host of this name. One name always has the same identifier: the system's for its own name, else the UUID that the name says
    /// or, without one, one that is made of it.
    pub fn named(nqn: &str) -> HostIdentity {
        match HostIdentity::of_system() {
            Some(host) if host.nqn == nqn => host,
            _ => HostIdentity {
                nqn: nqn.to_owned(),
                id: id_of(nqn),
            },
        }
    }

    /// A name that no host has.
    pub fn made_up_nqn() -> String {
        format!("{UUID_NQN}{}", uuid(&random_uuid()))
    }
}

/// What names that say a UUID begin with (NVM Express Base 4.7).
const UUID_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:";

fn id_of(nqn: &str) -> [u8; 16] {
    let said = nqn.strip_prefix(UUID_NQN).and_then(parse_uuid);
    said.unwrap_or_else(|| {
        let digest = Sha256::digest(nqn.as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        // RFC 9562, version 8: of one's own making.
        as_uuid(id, 8)
    })
}

fn random_uuid() -> [u8; 16] {
    let mut id = [0; 16];
    if forebay_io::random(&mut id).is_err() {
        id[..4].copy_from_slice(&std::process::id().to_le_bytes());
    }
    as_uuid(id, 4)
}

fn as_uuid(mut id: [u8; 16], version: u8) -> [u8; 16] {
    id[6] = id[6] & 0x0f | version << 4;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// A UUID as people write it.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|letter| *letter != '-')
        .map(|letter| letter.to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .map(|two| two[0] << 4 | two[1])
        .collect();
    bytes.try_into().ok()
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    /// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`.
    fn from_str(text: &str) -> Result<Address> {
        let wrong = || Error::invalid(format!("{text:?} is not an address such as 127.0.0.1:4420"));
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
                (
                    host,
                    rest.strip_prefix(':')
                        .or(rest.is_empty().then_some(""))
                        .ok_or_else(wrong)?,
                )
            }
            None => text.split_once(':').unwrap_or((text, "")),
        };
        let port = match port {
            "" => PORT,
            port => port.parse().map_err(|_| wrong())?,
        };
        if host.is_empty() || host.contains(['/', '@', '?', '#']) {
            return Err(wrong());
        }
        Ok(Address {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Place {
    /// As a [`NamespaceUrl`] has it between its scheme and its namespace.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp { address, subsystem } => write!(f, "{address}/{subsystem}"),
            Place::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    /// `HOST[:PORT]/SUBNQN`, `/PATH/OF/SOCKET`.
    fn from_str(text: &str) -> Result<Place> {
        if text.starts_with('/') {
            return Ok(Place::Socket(text.into()));
        }
        let wrong = || Error::invalid(format!("{text:?} names no subsystem"));
        let (address, subsystem) = text.split_once('/').ok_or_else(wrong)?;
        check_nqn(subsystem)?;
        Ok(Place::Tcp {
            address: address.parse()?,
            subsystem: subsystem.to_owned(),
        })
    }
}

impl fmt::Display for NamespaceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.scheme, &self.place) {
            (Scheme::Block, Place::Tcp { .. }) => "nvme+tcp",
            (Scheme::Block, Place::Socket(_)) => "nvme+vfio-user",
            (Scheme::KeyValue, _) => "kv",
        };
        write!(f, "{scheme}://{}/{}", self.place, self.nsid)
    }
}

impl FromStr for NamespaceUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<NamespaceUrl> {
        let wrong = || {
            Error::invalid(format!(
                "{text:?} is not a namespace such as nvme+tcp://HOST:PORT/SUBNQN/NSID, kv://HOST:PORT/SUBNQN/NSID or kv:///SOCKET/NSID"
            ))
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (place, nsid) = rest.rsplit_once('/').ok_or_else(wrong)?;
        let scheme = match (scheme, place.starts_with('/')) {
            ("nvme+tcp", false) | ("nvme+vfio-user", true) => Scheme::Block,
            ("kv", _) => Scheme::KeyValue,
            _ => return Err(wrong()),
        };
        let nsid: u32 = nsid.parse().map_err(|_| wrong())?;
        if nsid == 0 || nsid == u32::MAX || !place.trim_start_matches('/').contains('/') {
            return Err(wrong());
        }
        Ok(NamespaceUrl {
            scheme,
            place: place.parse()?,
            nsid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_read_as_they_are_written() {
        for text in [
            "nvme+tcp://127.0.0.1:4420/nqn.2026-01.org.example:pool/3",
            "kv://[::1]:4421/nqn.2026-01.org.example:a/b/1",
            "kv://store.example:4420/nqn.x/4294967294",
            "kv:///run/forebay/vfio/vm0/cntrl/7",
            "nvme+vfio-user:///run/cntrl/1",
        ] {
            let url: NamespaceUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
        }
        let short: NamespaceUrl = "kv://host/nqn.x/1".parse().unwrap();
        let place = Place::Tcp {
            address: "host:4420".parse().unwrap(),
            subsystem: "nqn.x".to_owned(),
        };
        assert_eq!(short.place, place);
        for wrong in [
            "",
            "kv://",
            "kv://host",
            "kv://host/nqn.x",
            "kv://host/nqn.x/0",
            "kv://host/nqn.x/4294967295",
            "kv://host/nqn.x/one",
            "kv:///1",
            "kv://///1",
            "kv:///nqn.x/1",
            "nvme+tcp:///run/cntrl/1",
            "nvme+vfio-user://host/nqn.x/1",
            "kv://host//1",
            "kv://host:port/nqn.x/1",
            "http://host/nqn.x/1",
            "kv://[::1/nqn.x/1",
        ] {
            assert!(wrong.parse::<NamespaceUrl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn identities_are_uuids() {
        let id = random_uuid();
        assert_eq!(parse_uuid(&uuid(&id)), Some(id));
        assert_eq!(parse_uuid("not one"), None);
        let host = HostIdentity::of_this_machine();
        assert_eq!(host, HostIdentity::of_this_machine());
        assert!(check_nqn(&host.nqn).is_ok());
    }

    #[test]
    fn a_name_has_one_identifier() {
        let id = random_uuid();
        let says = format!("{UUID_NQN}{}", uuid(&id));
        assert_eq!(HostIdentity::named(&says), HostIdentity { nqn: says, id });
        let named = |nqn| HostIdentity::named(nqn).id;
        let (one, other) = (
            "nqn.2026-01.org.example:one",
            "nqn.2026-01.org.example:other",
        );
        assert_eq!(named(one), named(one));
        assert_ne!(named(one), named(other));
        assert_eq!((named(one)[6] >> 4, named(one)[8] >> 6), (8, 2));
        let machine = HostIdentity::of_this_machine();
        assert_eq!(HostIdentity::named(&machine.nqn), machine);
        assert_ne!(HostIdentity::made_up_nqn(), HostIdentity::made_up_nqn());
    }
}
