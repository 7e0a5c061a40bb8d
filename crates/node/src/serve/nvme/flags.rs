//! What the flags of the NVMe doors name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use forebay_bench::Size;
use forebay_proto::nvme::NQN_BYTES_MAX;
use forebay_proto::nvme::psk::TlsKey;

use crate::exit::{Exit, Failure, Outcome};

/// Before a length: memory instead of a path.
const MEMORY: &str = "memory:";
/// Instead of a path: nothing.
const NONE: &str = "none";

/// A namespace that is published as keys and values: `NAME` or `NAME=NSID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// Of the store; made when it is missing.
    pub namespace: String,
    /// Its namespace identifier; the one that it had, or any.
    pub nsid: Option<u32>,
}

/// What is exported as blocks: `NAME=PATH`, `NAME=memory:SIZE`, either with `:NSID` behind; or `NAME=none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// By which it keeps its namespace identifier and its UUID.
    pub name: String,
    /// What holds the blocks; nothing does where the name is to be forgotten.
    pub place: Option<Place>,
    /// Its namespace identifier; the one that it had, or any.
    pub nsid: Option<u32>,
}

/// What holds exported blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file or device.
    Path(PathBuf),
    /// So many bytes of the server's memory, zeroes when it starts.
    Memory(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Path(path) => path.display().fmt(f),
            Place::Memory(bytes) => write!(f, "{MEMORY}{}", Size(*bytes)),
        }
    }
}

/// Whether hosts of NVMe/TCP must come by TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NvmeTls {
    /// Those that have a key.
    Allowed,
    /// All.
    Required,
}

/// Reads the name of a host.
pub fn host_nqn(text: &str) -> Result<String, String> {
    match text.starts_with("nqn.") && text.len() <= NQN_BYTES_MAX {
        true => Ok(text.to_owned()),
        false => Err("no NVMe Qualified Name: nqn.YYYY-MM.DOMAIN:NAME".to_owned()),
    }
}

/// Reads a key of TLS, and never says what it was instead.
pub fn tls_key(text: &str) -> Outcome<TlsKey> {
    TlsKey::parse(text).ok_or_else(|| {
        Failure::new(
            Exit::Usage,
            "a TLS key is NVMeTLSkey-1:HH:BASE64: as `nvme gen-tls-key` prints it",
        )
    })
}

impl FromStr for Publish {
    type Err = String;

    fn from_str(text: &str) -> Result<Publish, String> {
        let (namespace, nsid) = match text.split_once('=') {
            Some((namespace, nsid)) => (namespace, Some(number(nsid)?)),
            None => (text, None),
        };
        match namespace {
            "" => Err("a namespace has a name: NAME or NAME=NSID".to_owned()),
            _ => Ok(Publish {
                namespace: namespace.to_owned(),
                nsid,
            }),
        }
    }
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Export, String> {
        let (name, place) = text
            .split_once('=')
            .filter(|(name, place)| !name.is_empty() && !place.is_empty())
            .ok_or("an export is NAME=PATH or NAME=PATH:NSID")?;
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name.len() > 63 || !name.bytes().all(legal) {
            return Err(format!(
                "{name:?} is not an export's name: at most 63 of A-Z a-z 0-9 - _ ."
            ));
        }
        // A path may hold colons: a number after the last one is the identifier.
        let (path, nsid) = match place.rsplit_once(':') {
            Some((path, nsid))
                if !path.is_empty()
                    && format!("{path}:") != MEMORY
                    && nsid.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                (path, Some(number(nsid)?))
            }
            _ => (place, None),
        };
        let place = match path.strip_prefix(MEMORY) {
            Some(size) => match size.parse::<Size>()? {
                Size(0) => return Err("memory of no bytes".to_owned()),
                Size(bytes) => Some(Place::Memory(bytes)),
            },
            None if path == NONE && nsid.is_some() => {
                return Err("what is forgotten has no namespace identifier".to_owned());
            }
            None => (path != NONE).then(|| Place::Path(PathBuf::from(path))),
        };
        Ok(Export {
            name: name.to_owned(),
            place,
            nsid,
        })
    }
}

fn number(text: &str) -> Result<u32, String> {
    let nsid = text.parse().ok();
    nsid.filter(|nsid| (1..=forebay_control::NSID_MAX).contains(nsid))
        .ok_or_else(|| {
            format!(
                "{text:?} is not a namespace identifier: 1 to {}",
                forebay_control::NSID_MAX
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces() {
        let parse = |text: &str| text.parse::<Publish>().map(|p| (p.namespace, p.nsid));
        assert_eq!(parse("data"), Ok(("data".to_owned(), None)));
        assert_eq!(parse("data=7"), Ok(("data".to_owned(), Some(7))));
        for wrong in ["", "=7", "data=", "data=0", "data=x", "data=4294967295"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn exports() {
        let parse = |text: &str| {
            let export = text.parse::<Export>();
            export.map(|e| (e.name, e.place.map(|place| place.to_string()), e.nsid))
        };
        let is = |name: &str, path: &str, nsid| Ok((name.to_owned(), Some(path.to_owned()), nsid));
        assert_eq!(parse("disk=/dev/sdb"), is("disk", "/dev/sdb", None));
        assert_eq!(parse("disk=/dev/sdb:3"), is("disk", "/dev/sdb", Some(3)));
        assert_eq!(parse("d=/a:b=c"), is("d", "/a:b=c", None));
        assert_eq!(parse("d=/a:b:12"), is("d", "/a:b", Some(12)));
        assert_eq!(parse("d=memory:4096"), is("d", "memory:4KiB", None));
        assert_eq!(parse("d=memory:1GiB:2"), is("d", "memory:1GiB", Some(2)));
        assert_eq!(parse("d=./none"), is("d", "./none", None));
        assert_eq!(parse("d=none"), Ok(("d".to_owned(), None, None)));
        for wrong in [
            "",
            "disk",
            "=/x",
            "disk=",
            "a b=/x",
            "disk=/x:0",
            "disk=memory:",
            "disk=memory:0",
            "disk=memory:x",
            "disk=memory:1GiB:0",
            "disk=/x:99999999999",
            "disk=none:2",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
