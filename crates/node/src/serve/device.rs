//! Where the engine's files are: in DIR, or its data on a namespace of blocks elsewhere (`--device`).

use std::{fs, io};

use forebay_io::files::Directory;
use forebay_io::{Disk, OpenOptions};
use forebay_nvme::initiator::{HostIdentity, NamespaceDisk, NamespaceFile, Options, Secret};

use super::args::ServeArgs;
use super::limits;
use super::nvme::flags::tls_key;
use crate::exit::{Exit, Failure, Outcome};

/// Connections that carry the data, at most.
const QUEUES_MAX: usize = 4;

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
        let mut host = HostIdentity::of_this_machine();
        if let Some(nqn) = &args.device_host_nqn {
            host.nqn.clone_from(nqn);
        }
        let options = Options {
            host,
            secret: args.device_chap_secret.clone().map(Secret),
            tls_key: args.device_tls_key.as_deref().map(tls_key).transpose()?,
            ..Options::default()
        };
        let queues = args.shards.map_or_else(limits::shards, usize::from);
        NamespaceDisk::connect(directory, url, options, queues.min(QUEUES_MAX))
            .await
            .map(Device::Namespace)
            .map_err(|error| Failure::new(Exit::Failed, format_args!("{url}: {error}")))
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
