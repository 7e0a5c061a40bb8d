//! An NVMe device on a Unix socket: `vfio_user_device SOCKET FILE` serves a namespace of keys and values, kept in memory, and one of
//! blocks, kept in FILE, to one client after the other. For trying virtual machines and other initiators.

use std::io::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_io::files::Directory;
use forebay_io::{Disk, OpenOptions, SystemClock, ring};
use forebay_mem::Pool;
use forebay_nvme::target::{Backing, Published, Target, TargetConfig, Viewer};
use forebay_nvme::vfio_user::serve;
use forebay_store::{MemoryStore, NamespaceConfig, Store};
use tokio::net::UnixListener;
use tokio::task::LocalSet;

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1);
    let (Some(socket), Some(file)) = (words.next(), words.next()) else {
        return Err(Error::other("usage: vfio_user_device SOCKET FILE"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, run(Path::new(&socket), Path::new(&file)))
}

async fn run(socket: &Path, file: &Path) -> std::io::Result<()> {
    match ring::install(ring::Config::default()) {
        Ok(driver) => drop(tokio::task::spawn_local(driver)),
        Err(why) => eprintln!("no ring: {why}"),
    }
    let now = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    };
    let pool = Pool::new(512 << 20);
    let store = Arc::new(MemoryStore::new(pool.clone(), now));
    let config = NamespaceConfig {
        tenant: "tenant".to_owned(),
        ..NamespaceConfig::default()
    };
    let created = store.create_namespace("values", config).await;
    created.map_err(|error| Error::other(error.to_string()))?;
    let (Some(folder), Some(name)) = (
        file.parent(),
        file.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(Error::other("FILE is a path"));
    };
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let options = OpenOptions {
        create: false,
        read_only: false,
        direct: false,
    };
    let file = Directory::open(folder)?.open(name, options)?;
    let config = TargetConfig {
        nqn: "nqn.2026-01.org.example:vfio-user".to_owned(),
        serial: "1".to_owned(),
        ..TargetConfig::default()
    };
    let target = Target::new(store, pool, Arc::new(SystemClock::default()), config);
    let key_value = Backing::KeyValue {
        namespace: "values".to_owned(),
        id: None,
    };
    let block = Backing::Block {
        file,
        lba_shift: 9,
        read_only: false,
        tenant: None,
    };
    target.publish(vec![
        Published {
            nsid: 1,
            uuid: [0x11; 16],
            backing: block,
        },
        Published {
            nsid: 2,
            uuid: [0x22; 16],
            backing: key_value,
        },
    ]);
    let listener = UnixListener::bind(socket)?;
    println!("listening");
    loop {
        let (stream, _) = listener.accept().await?;
        let viewer = Viewer::Tenant("tenant".to_owned());
        let ended = serve(stream, &target, viewer, std::future::pending()).await;
        println!("{ended:?}");
    }
}
