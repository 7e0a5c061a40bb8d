//! What a target says that means ill: it is shown, and is no command.

mod harness;

use std::sync::{Arc, mpsc};

use forebay_io::SystemClock;
use forebay_io::files::Directory;
use forebay_mem::Pool;
use forebay_nvme::initiator::SecureChannel;
use forebay_nvme::target::{Target, TargetConfig};
use forebay_nvme::tcp::Door;
use forebay_proto::nvme::discovery::{DiscoveryEntry, SubsystemType, TRANSPORT_TCP};
use forebay_store::MemoryStore;
use harness::Ran;
use tokio::task::LocalSet;

type Stranger = Target<MemoryStore, <Directory as forebay_io::Disk>::File>;

/// A target, and where it listens for as long as the test lasts.
fn stranger() -> (Arc<Stranger>, String) {
    let pool = Pool::new(16 << 20);
    let config = TargetConfig {
        nqn: "nqn.2026-01.org.example:stranger".to_owned(),
        serial: "1".to_owned(),
        allow_any_host: true,
        ..TargetConfig::default()
    };
    let store = Arc::new(MemoryStore::new(pool.clone(), || 0));
    let target = Target::new(store, pool, Arc::new(SystemClock::default()), config);
    let target = Arc::new(target);
    let door = Arc::new(Door::new(target.clone()));
    let (started, starting) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            started.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let door = door.clone();
                tokio::task::spawn_local(async move {
                    door.serve(stream, std::future::pending()).await;
                });
            }
        });
    });
    (target, starting.recv().unwrap().to_string())
}

fn way(subnqn: &str, address: &str) -> DiscoveryEntry {
    DiscoveryEntry {
        transport: TRANSPORT_TCP,
        address_family: 1,
        kind: SubsystemType::Nvm,
        port_id: 1,
        service: "4420".to_owned(),
        subnqn: subnqn.to_owned(),
        address: address.to_owned(),
        secure_channel: SecureChannel::NotSpecified,
    }
}

fn nvme(command: &str, place: &str) -> Ran {
    let mut asked = harness::forebay();
    asked.args(["nvme", command, place]);
    Ran::new(asked.output().unwrap())
}

#[test]
fn what_steers_a_terminal_is_escaped_in_what_a_target_says() {
    let (target, place) = stranger();
    let name = "nqn.2026-01.org.example:\u{1b}[2Jx\ny";
    target.set_addresses(vec![way(name, "127.0.0.1")]);
    let ran = nvme("discover", &place).expect(0);
    assert!(
        ran.out.contains("nqn.2026-01.org.example:\\u{1b}[2Jx\\ny"),
        "{ran:?}"
    );
    assert_eq!(ran.out.lines().count(), 2, "{ran:?}");
}

#[test]
fn what_a_shell_would_not_take_for_a_name_is_no_part_of_a_command() {
    let (target, place) = stranger();
    let good = "nqn.2026-01.org.example:a_b.c-d";
    for (name, address) in [
        ("nqn.2026-01.org.example:x;reboot", "127.0.0.1"),
        ("nqn.2026-01.org.example:x$(reboot)", "127.0.0.1"),
        ("nqn.2026-01.org.example:x --dhchap-secret=y", "127.0.0.1"),
        ("--config=/tmp/x", "127.0.0.1"),
        (good, "127.0.0.1|sh"),
        (good, "-x"),
        (good, ""),
    ] {
        target.set_addresses(vec![way(name, address)]);
        let ran = nvme("connect-string", &place).expect(1);
        assert_eq!(ran.out, "", "{name}");
        assert!(ran.err.contains("is no name to type"), "{ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        // Nor does it keep others from one.
        target.set_addresses(vec![way(name, address), way(good, "10.0.0.7")]);
        let ran = nvme("connect-string", &place).expect(0);
        assert!(ran.out.contains("traddr:10.0.0.7"), "{ran:?}");
        assert!(ran.err.contains("is no name to type"), "{ran:?}");
    }
    for address in ["10.0.0.7", "fe80::1%eth0", "store.example"] {
        target.set_addresses(vec![way(good, address)]);
        let ran = nvme("connect-string", &place).expect(0);
        let says = format!("nvme connect -t tcp -a {address} -s 4420 -n {good}\n");
        assert!(ran.out.contains(&says), "{ran:?}");
    }
}
