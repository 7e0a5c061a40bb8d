//! Hosts that come by TLS, with the right key and otherwise. Whoever fails harms nobody else.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use forebay_mem::{CopySite, Region, copied_bytes};
use forebay_nvme::initiator::{
    Address, Controller, Error, HostIdentity, Options as HostOptions, SecureChannel, Sink, Source,
    StoreOptions, TlsKey, discover,
};
use forebay_nvme::target::Host as Known;
use forebay_nvme::tcp::Limits;
use forebay_proto::nvme::Status;
use forebay_proto::nvme::discovery::{DiscoveryEntry, SubsystemType, TRANSPORT_TCP};
use forebay_proto::nvme::fabrics::CNTLID_DYNAMIC;

use crate::host::{Host, PLAIN};
use crate::world::{BLOCK, KV, NQN, World};

/// The host that `host` plays.
const HOST: &str = "nqn.2026-01.org.example:host";
const OTHER: &str = "nqn.2026-01.org.example:other";
const SHORT: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const LONG: &str =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
const UNBOUND: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

fn known(nqn: &str, key: Option<&str>) -> Known {
    Known {
        nqn: nqn.to_owned(),
        tenant: "tenant".to_owned(),
        secret: None,
        tls_key: key.map(|key| TlsKey::parse(key).unwrap()),
        subsystem_secret: None,
    }
}

fn options(nqn: &str, key: Option<&str>) -> HostOptions {
    HostOptions {
        host: HostIdentity {
            nqn: nqn.to_owned(),
            id: [7; 16],
        },
        tls_key: key.map(|key| TlsKey::parse(key).unwrap()),
        keep_alive: Duration::ZERO,
        patience: Some(Duration::from_secs(30)),
        ..HostOptions::default()
    }
}

fn place(world: &World) -> Address {
    world.address.to_string().parse().unwrap()
}

async fn connect(world: &World, options: HostOptions) -> Result<Controller, Error> {
    Controller::connect(place(world), NQN, options).await
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + (at >> 8)) as u8).collect()
}

/// Values and blocks there and back, of every length that records and PDUs are cut at.
async fn use_all(controller: &Controller) {
    let values = controller.key_value(KV).await.unwrap();
    for len in [1, 4096, 16 << 10, (300 << 10) + 1, 5 << 20] {
        let value = pattern(len);
        let stored = values.store(b"key", Bytes::from(value.clone()), StoreOptions::default());
        stored.await.unwrap();
        let found = values.retrieve(b"key", Sink::Bytes(vec![0; len])).await;
        let found = found.unwrap();
        let Sink::Bytes(back) = found.into else {
            panic!("another sink");
        };
        assert!(back == value, "{len}");
    }
    let blocks = controller.block(BLOCK).await.unwrap();
    let region = Region::anonymous(1 << 20).unwrap();
    let memory = region.slice(0..1 << 20).unwrap();
    assert!(memory.write(0, &pattern(1 << 20)));
    blocks
        .write(3, Source::from(memory.clone()), false)
        .await
        .unwrap();
    assert!(memory.write(0, &vec![0; 1 << 20]));
    blocks.read(3, Sink::from(memory.clone())).await.0.unwrap();
    let mut back = vec![0; 1 << 20];
    assert!(memory.read(0, &mut back) && back == pattern(1 << 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_a_key_talks_in_secret() {
    let world = World::new();
    for key in [SHORT, LONG, UNBOUND] {
        world.target.set_hosts(vec![known(HOST, Some(key))]);
        for digests in [false, true] {
            let options = HostOptions {
                queues: 2,
                header_digest: digests,
                data_digest: digests,
                ..options(HOST, Some(key))
            };
            let before = copied_bytes(CopySite::LinkTls);
            let controller = connect(&world, options).await.unwrap();
            use_all(&controller).await;
            controller.close().await;
            // Both ends are in this process, and what goes through TLS is counted.
            assert!(copied_bytes(CopySite::LinkTls) - before >= 4 * (5 << 20));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_commands_at_once_share_a_secret_queue() {
    let world = World::new();
    world.target.set_hosts(vec![known(HOST, Some(SHORT))]);
    let controller = connect(&world, options(HOST, Some(SHORT))).await.unwrap();
    let values = controller.key_value(KV).await.unwrap();
    let each = (0..64u32).map(|number| {
        let values = values.clone();
        async move {
            let key = number.to_be_bytes();
            let value = pattern(1000 * number as usize + 1);
            let stored = values.store(&key, Bytes::from(value.clone()), StoreOptions::default());
            stored.await.unwrap();
            let found = values
                .retrieve(&key, Sink::Bytes(vec![0; value.len()]))
                .await;
            let Sink::Bytes(back) = found.unwrap().into else {
                panic!("another sink");
            };
            assert!(back == value, "{number}");
        }
    });
    futures_util::future::join_all(each).await;
    controller.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_decide_who_comes() {
    let world = World::new();
    let hosts = vec![known(HOST, Some(SHORT)), known(OTHER, None)];
    world.target.set_hosts(hosts);
    for (nqn, key) in [
        // In the clear, though there is a key.
        (HOST, None),
        // Another key, and one that nobody has.
        (HOST, Some(LONG)),
        (HOST, Some(UNBOUND)),
        // A host without a key, and one that nobody knows.
        (OTHER, Some(SHORT)),
        ("nqn.2026-01.org.example:stranger", Some(SHORT)),
    ] {
        let refused = connect(&world, options(nqn, key)).await;
        assert!(
            matches!(refused, Err(Error::Denied(_))),
            "{nqn} {refused:?}"
        );
    }
    // Those without keys come as ever, beside those with keys.
    let plain = connect(&world, options(OTHER, None)).await.unwrap();
    let secret = connect(&world, options(HOST, Some(SHORT))).await.unwrap();
    use_all(&plain).await;
    use_all(&secret).await;
    plain.close().await;
    secret.close().await;
}

/// Whoever loses its key, or is given another, has to go; so does one in the clear that is given a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_lasts_no_longer_than_its_key() {
    let world = World::new();
    for (before, after) in [
        (Some(SHORT), None),
        (Some(SHORT), Some(LONG)),
        (None, Some(SHORT)),
    ] {
        world.target.set_hosts(vec![known(HOST, before)]);
        let options = HostOptions {
            patience: Some(Duration::ZERO),
            ..options(HOST, before)
        };
        let controller = connect(&world, options).await.unwrap();
        world.target.set_hosts(vec![known(HOST, after)]);
        // The admin queue and the other.
        let world = &world;
        tokio::task::block_in_place(|| world.wait_for_ends(2));
        assert!(controller.namespaces().await.is_err());
        controller.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_tells_who_needs_a_key() {
    let world = World::new();
    let hosts = vec![known(HOST, Some(SHORT)), known(OTHER, None)];
    world.target.set_hosts(hosts);
    world.target.set_addresses(vec![DiscoveryEntry {
        transport: TRANSPORT_TCP,
        address_family: 1,
        kind: SubsystemType::Nvm,
        port_id: 1,
        service: world.address.port().to_string(),
        subnqn: NQN.to_owned(),
        address: "127.0.0.1".to_owned(),
        secure_channel: SecureChannel::NotSpecified,
    }]);
    for (nqn, key, told) in [
        (OTHER, None, SecureChannel::NotRequired),
        // By both ways: discovery itself is for everybody.
        (HOST, None, SecureChannel::Required),
        (HOST, Some(SHORT), SecureChannel::Required),
    ] {
        let found = discover(place(&world), options(nqn, key)).await.unwrap();
        let told_now: Vec<_> = found.iter().map(|one| one.secure_channel).collect();
        assert_eq!(told_now, [told], "{nqn}");
    }
}

/// A queue in the clear cannot join a controller whose admin queue is secret.
#[test]
fn a_queue_is_as_secret_as_its_controller() {
    let world = World::new();
    world.target.set_hosts(vec![known(HOST, Some(SHORT))]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connected = connect(&world, options(HOST, Some(SHORT)));
    let controller = runtime.block_on(connected).unwrap();
    let cntlid = controller.info().unwrap().cntlid;
    let mut plain = Host::initialize(world.connect(), PLAIN);
    assert_eq!(plain.join(2, cntlid), Err(Status::CONNECT_INVALID_HOST));
    let mut plain = Host::initialize(world.connect(), PLAIN);
    let refused = plain.join(0, CNTLID_DYNAMIC);
    assert_eq!(refused, Err(Status::CONNECT_INVALID_HOST));
    runtime.block_on(async {
        use_all(&controller).await;
        controller.close().await;
    });
}

#[test]
fn without_a_key_nobody_comes_where_all_must() {
    let world = World::with(Limits::default(), |config| config.tls_required = true);
    world.target.set_hosts(vec![known(HOST, None)]);
    let mut plain = Host::initialize(world.connect(), PLAIN);
    let refused = plain.join(0, CNTLID_DYNAMIC);
    assert_eq!(refused, Err(Status::CONNECT_INVALID_HOST));
}

/// What a host with this key begins with.
fn hello(key: &str) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let options = HostOptions {
        connect_timeout: Duration::from_secs(30),
        ..options(HOST, Some(key))
    };
    let host = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(Controller::connect(address, NQN, options))
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut record = vec![0; 5];
    stream.read_exact(&mut record).unwrap();
    record.resize(
        5 + usize::from(u16::from_be_bytes([record[3], record[4]])),
        0,
    );
    stream.read_exact(&mut record[5..]).unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    assert!(host.join().unwrap().is_err());
    record
}

/// Sends these bytes, says no more, and reads until the door has closed.
fn end_of(world: &World, first: &[u8]) -> Vec<u8> {
    let mut stream = world.connect();
    // It may be closed before all is written.
    let _ = stream.write_all(first);
    let _ = stream.shutdown(Shutdown::Write);
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    all
}

#[test]
fn a_hello_that_is_none_ends_its_own_connection_alone() {
    let limits = Limits {
        begin: Duration::from_secs(5),
        ..Limits::default()
    };
    let world = World::with_limits(limits);
    let hosts = vec![known(HOST, Some(SHORT)), known(OTHER, None)];
    world.target.set_hosts(hosts);
    let genuine = hello(SHORT);
    assert_eq!(genuine[..2], [22, 3]);
    let mut ends = 0;
    let mut hostile = |bytes: &[u8]| {
        let said = end_of(&world, bytes);
        ends += 1;
        // Nothing but a handshake or an alert, and no application data: nobody got in.
        let kind = said.first();
        assert!(matches!(kind, None | Some(21 | 22)), "{said:?}");
    };
    for end in [1, 4, 5, 6, 60, genuine.len() / 2, genuine.len() - 1] {
        hostile(&genuine[..end]);
    }
    // Whole, and then nothing.
    hostile(&genuine);
    for at in (0..genuine.len()).step_by(3).skip(1) {
        let mut damaged = genuine.clone();
        damaged[at] ^= 0xff;
        hostile(&damaged);
    }
    // Lengths that lie: of the record, and of the message.
    let mut lying = genuine.clone();
    lying[3..5].copy_from_slice(&[0xff, 0xff]);
    hostile(&lying);
    let mut lying = genuine.clone();
    lying[6..9].copy_from_slice(&[0xff; 3]);
    lying.resize(80 << 10, 0);
    hostile(&lying);
    // Records without end that carry one byte of a message each.
    hostile(&[22, 3, 3, 0, 1, 1].repeat(20_000));
    hostile(&[22].repeat(1 << 20));
    // Data and alerts before anybody knows anybody.
    hostile(&[&genuine[..], &[23, 3, 3, 0, 4, 1, 2, 3, 4]].concat());
    hostile(&[22, 3, 1, 0, 2, 21, 3]);
    world.wait_for_ends(ends);
    assert_eq!(world.door.controllers(), 0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let good = connect(&world, options(HOST, Some(SHORT))).await.unwrap();
        use_all(&good).await;
        good.close().await;
    });
}

#[test]
fn a_handshake_that_never_ends_is_ended() {
    let limits = Limits {
        begin: Duration::from_millis(200),
        ..Limits::default()
    };
    let world = World::with_limits(limits);
    world.target.set_hosts(vec![known(HOST, Some(SHORT))]);
    let genuine = hello(SHORT);
    // Nothing; one byte; half a hello; a whole one, whose answer is never answered.
    let waiting: Vec<_> = [&[][..], &genuine[..1], &genuine[..100], &genuine]
        .into_iter()
        .map(|first| {
            let mut stream = world.connect();
            stream.write_all(first).unwrap();
            stream
        })
        .collect();
    world.wait_for_ends(waiting.len());
    // One that comes byte by byte has no more time than others.
    let mut slow = world.connect();
    for byte in &genuine {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::yield_now();
    }
    world.wait_for_ends(1);
}

/// Behind the hello, in what the host says in secret.
const DAMAGED_AT: usize = 900;

/// A host whose record is damaged after the handshake loses its connection, and comes again.
#[test]
fn a_damaged_record_ends_the_connection() {
    let world = World::new();
    world.target.set_hosts(vec![known(HOST, Some(SHORT))]);
    // Between the two: it turns one bit over after so many bytes from the host.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let target = world.address;
    let relay = std::thread::spawn(move || {
        for damage in [true, false, false, false] {
            let Ok((mut host, _)) = listener.accept() else {
                return;
            };
            let mut controller = std::net::TcpStream::connect(target).unwrap();
            let (mut back, mut to_host) =
                (controller.try_clone().unwrap(), host.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut to_host);
                let _ = to_host.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let (mut bytes, mut at) = (vec![0; 4096], 0);
                while let Ok(came) = host.read(&mut bytes)
                    && came > 0
                {
                    if damage && (at..at + came).contains(&DAMAGED_AT) {
                        bytes[DAMAGED_AT - at] ^= 1;
                    }
                    at += came;
                    if controller.write_all(&bytes[..came]).is_err() {
                        break;
                    }
                }
                let _ = controller.shutdown(Shutdown::Both);
            });
        }
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Its first connection fails, in the handshake or behind it.
        let first = Controller::connect(between.clone(), NQN, options(HOST, Some(SHORT))).await;
        assert!(first.is_err(), "{first:?}");
        let again = Controller::connect(between, NQN, options(HOST, Some(SHORT))).await;
        let again = again.unwrap();
        use_all(&again).await;
        again.close().await;
    });
    drop(relay);
}
