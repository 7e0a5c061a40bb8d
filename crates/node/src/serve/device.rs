//! Where the engine's files are: in DIR, or its data on a namespace of blocks elsewhere (`--device`).

use std::path::Path;
use std::{fs, io};

use forebay_io::files::Directory;
use forebay_io::{Disk, OpenOptions};
use forebay_nvme::initiator::{HostIdentity, NamespaceDisk, NamespaceFile, Options, Secret};

use super::args::ServeArgs;
use super::nvme::flags::tls_key;
use super::{limits, whole_file};
use crate::environment::variable;
use crate::exit::{Exit, Failure, Outcome};

/// Connections that carry the data, at most.
const QUEUES_MAX: usize = 4;
/// In DIR: the name that was made up for this server.
const HOST_NQN: &str = "host-nqn";

/// The engine's files.
#[derive(Clone)]
pub enum Device {
    /// All in DIR.
    Directory(Directory),
    /// The data on a namespace, the rest in DIR.
    Namespace(NamespaceDisk),
}

impl Device {
    /// What the flags say.
    pub async fn open(directory: Directory, args: &ServeArgs) -> Outcome<Device> {
        let Some(url) = &args.device else {
            let bytes = |name| fs::metadata(args.dir.join(name)).map_or(0, |file| file.len());
            // An engine writes its data before its index: this one's is elsewhere.
            if bytes("index") > 0 && bytes("data") == 0 {
                let dir = args.dir.display();
                return Err(Failure::new(
                    Exit::Usage,
                    format_args!(
                        "{dir} has an index and no data: its values lie on a device, which --device names"
                    ),
                ));
            }
            return Ok(Device::Directory(directory));
        };
        // Where there is no device, variables with its secrets are in nobody's way.
        let given = |flag: &Option<String>, name| flag.clone().or_else(|| variable(name));
        let secret = given(&args.device_chap_secret, "FOREBAY_DEVICE_CHAP_SECRET");
        let key = given(&args.device_tls_key, "FOREBAY_DEVICE_TLS_KEY");
        let options = Options {
            host: host(&args.dir, args.device_host_nqn.as_deref())?,
            secret: secret.map(Secret),
            tls_key: key.as_deref().map(tls_key).transpose()?,
            ..Options::default()
        };
        let queues = args.shards.map_or_else(limits::shards, usize::from);
        NamespaceDisk::connect(directory, url, options, queues.min(QUEUES_MAX))
            .await
            .map(Device::Namespace)
            .map_err(|error| Failure::new(Exit::Failed, format_args!("{url}: {error}")))
    }
}

/// As which host this server comes. A target has what one sent before it was killed carried out before the same one writes again, so it is
/// the same at every start.
fn host(dir: &Path, given: Option<&str>) -> Outcome<HostIdentity> {
    if let Some(nqn) = given {
        return Ok(HostIdentity::named(nqn));
    }
    let kept = dir.join(HOST_NQN);
    match HostIdentity::of_system() {
        // One that was made up stays, though the system has a name now.
        Some(host) if !kept.exists() => return Ok(host),
        _ => {}
    }
    let failed = |error| Failure::io(kept.display())(error);
    let made = || Ok(HostIdentity::made_up_nqn() + "\n");
    let text = whole_file::once(dir, HOST_NQN, made).map_err(failed)?;
    match text.trim_end() {
        nqn if nqn.starts_with("nqn.") => Ok(HostIdentity::named(nqn)),
        _ => Err(failed(io::Error::other("this is no NVMe Qualified Name"))),
    }
}

impl Disk for Device {
    type File = NamespaceFile;

    fn open(&self, name: &str, options: OpenOptions) -> io::Result<NamespaceFile> {
        match self {
            Device::Directory(disk) => disk.open(name, options).map(NamespaceFile::Local),
            Device::Namespace(disk) => disk.open(name, options),
        }
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        match self {
            Device::Directory(disk) => disk.exists(name),
            Device::Namespace(disk) => disk.exists(name),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Device::Directory(disk) => disk.sync(),
            Device::Namespace(disk) => disk.sync(),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        match self {
            Device::Directory(disk) => disk.free_bytes(),
            Device::Namespace(disk) => disk.free_bytes(),
        }
    }

    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        match self {
            Device::Directory(disk) => disk.lock(),
            Device::Namespace(disk) => disk.lock(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_the_same_host_at_every_start() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = host(one.path(), None).unwrap();
        assert_eq!(host(one.path(), None).unwrap(), first);
        if HostIdentity::of_system().is_none() {
            assert_ne!(host(other.path(), None).unwrap(), first);
        }
        let given = host(one.path(), Some("nqn.2026-01.org.example:a")).unwrap();
        assert_eq!(given.nqn, "nqn.2026-01.org.example:a");
        let elsewhere = host(other.path(), Some("nqn.2026-01.org.example:a")).unwrap();
        assert_eq!(elsewhere, given);
        fs::write(one.path().join(HOST_NQN), "\n").unwrap();
        assert!(host(one.path(), None).is_err());
    }
}
