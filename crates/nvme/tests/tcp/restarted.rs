//! Servers whose data lies on a namespace of ours, killed and started again.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use forebay_io::files::Directory;
use forebay_io::{Disk, File, OpenOptions};
use forebay_nvme::initiator::{HostIdentity, NamespaceDisk, NamespaceUrl, Options, Place, Scheme};
use tokio::runtime::Builder;
use tokio::task::yield_now;

use crate::host::bytes;
use crate::landing::SHORT;
use crate::world::{BLOCK, BLOCK_BYTES, NQN, World};

const DATA: OpenOptions = OpenOptions {
    create: true,
    read_only: false,
    direct: true,
};

/// As each process of one server does.
async fn start(target: SocketAddr, directory: &Path) -> NamespaceDisk {
    let url = NamespaceUrl {
        scheme: Scheme::Block,
        place: Place::Tcp {
            address: target.to_string().parse().unwrap(),
            subsystem: NQN.to_owned(),
        },
        nsid: BLOCK,
    };
    let options = Options {
        host: HostIdentity::named("nqn.2026-01.org.example:server"),
        connect_timeout: Duration::from_secs(60),
        ..Options::default()
    };
    let local = Directory::open(directory).unwrap();
    let disk = NamespaceDisk::connect(local, &url, options, 1).await;
    disk.unwrap()
}

#[test]
fn a_server_that_is_started_again_finds_what_it_wrote_before_landed() {
    let world = World::new();
    let target = world.address;
    let folder = tempfile::tempdir().unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let data = bytes(BLOCK_BYTES, 1);
    world.file.keep(true);
    runtime.block_on(async {
        let disk = start(target, folder.path()).await;
        let file = disk.open("data", DATA).unwrap();
        let mut buf = world.pool.take(BLOCK_BYTES).await;
        buf.set_len(BLOCK_BYTES);
        buf.copy_from_slice(&data);
        let mut write = pin!(file.write_at(0, buf.freeze()));
        let with_device = async {
            while world.file.writes.load(Relaxed) == 0 {
                yield_now().await;
            }
        };
        tokio::select! {
            _ = &mut write => panic!("the device keeps it"),
            () = with_device => {}
        }
    });
    world.wait_for_ends(2);
    let seen = thread::scope(|scope| {
        let starting = scope.spawn(|| {
            let disk = runtime.block_on(start(target, folder.path()));
            let mut seen = vec![0; BLOCK_BYTES];
            let file = disk.open("data", DATA).unwrap();
            file.read_exact_at(0, &mut seen).unwrap();
            seen
        });
        thread::sleep(SHORT);
        assert!(!starting.is_finished(), "it would see what is not final");
        world.file.keep(false);
        starting.join().unwrap()
    });
    assert!(seen == data);
}
