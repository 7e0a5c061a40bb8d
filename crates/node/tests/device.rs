//! Our own hosts: a server whose values lie on a namespace of blocks that another server exports, where either is killed and nothing
//! that was acknowledged is lost, or waits for a namespace that does not answer; and the client's keys and values.

mod harness;

use std::fs::File;

use forebay_client::direct::Region;
use forebay_client::kv::{KeyValue, StoreOptions};
use forebay_client::{Kind, PutOptions};
use forebay_nvme::initiator::{Address, Options, SubsystemType, discover};
use harness::{Place, Server, bytes, until};
use rustix::process::Signal;

const BYTES: u64 = 512 << 20;

fn value(number: u64) -> Vec<u8> {
    let len = [10, 3000, 70_000, 2_000_000][number as usize % 4];
    bytes(number, len)
}

async fn put(client: &forebay_client::Client, number: u64) -> Result<(), forebay_client::Error> {
    put_bytes(client, number, value(number)).await
}

async fn put_bytes(
    client: &forebay_client::Client,
    number: u64,
    value: Vec<u8>,
) -> Result<(), forebay_client::Error> {
    let (key, options) = (number.to_string(), PutOptions::default());
    let put = client.put("bucket", &key, value.into(), &options);
    put.await.map(drop)
}

async fn get(client: &forebay_client::Client, number: u64) -> Vec<u8> {
    let key = number.to_string();
    let mut download = client.get("bucket", &key, None, None).await.unwrap();
    let mut value = Vec::new();
    while let Some(bytes) = download.next().await.unwrap() {
        value.extend_from_slice(&bytes);
    }
    value
}

async fn subsystem(door: &str) -> String {
    let address: Address = door.parse().unwrap();
    let found = discover(address, Options::default()).await.unwrap();
    let found = found.into_iter().find(|one| one.kind == SubsystemType::Nvm);
    found.unwrap().subnqn
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_on_a_namespace_elsewhere_survive_the_death_of_either_server() {
    let (pool, near) = (Place::new(), Place::new());
    let file = pool.path("blocks");
    File::create(&file).unwrap().set_len(BYTES).unwrap();
    let [door] = harness::returning();
    let export = format!("pool={}:1", file.display());
    let flags = ["--nvme", &door, "--export", &export];
    let target = pool.serve(&flags);
    let device = format!("nvme+tcp://{door}/{}/1", subsystem(&door).await);
    let flags = ["--device", &device, "--nvme", "127.0.0.1:0"];

    let server = near.serve(&flags);
    server.client().create_namespace("bucket").await.unwrap();
    for number in 0..8 {
        put(&server.client(), number).await.unwrap();
    }
    server.kill();

    // The namespace, and the index beside the socket, belong together.
    let server = near.serve(&flags);
    let stranger = Place::new();
    let refused = stranger.serve_command(&flags).output().unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("belongs to another directory"), "{said}");

    let client = server.client();
    let late = {
        let client = client.clone();
        target.kill();
        tokio::spawn(async move { put(&client, 8).await })
    };
    until("it has come", || {
        server.metric("forebay_s3_requests_in_flight ") == 1
    });
    let target = pool.serve(&["--nvme", &door, "--export", &export]);
    late.await.unwrap().unwrap();
    for number in 0..9 {
        assert!(get(&client, number).await == value(number), "{number}");
    }
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(target.terminate(), Some(0));
    let forgotten = near.try_serve(&[]).err().unwrap();
    let said = forgotten.expect(2).err;
    assert!(said.contains("--device"), "{said}");
    assert!(!near.data().join("data").exists());
}

/// A server that answers stores in `bucket` before they are committed, over a namespace of another server's, which has just stopped
/// answering: that one, the server, and the namespace's URL.
async fn over_a_namespace_that_is_silent(pool: &Place, near: &Place) -> (Server, Server, String) {
    let target = pool.serve(&["--export", "pool=memory:512MiB:1"]);
    let door = &target.doors["nvme"];
    let device = format!("nvme+tcp://{door}/{}/1", subsystem(door).await);
    let server = near.serve(&write_back(&device));
    server.ok(&["admin", "namespace", "create", "durable"]);
    let put = server.run_on(&["cp", "-", "fb://durable/value"], b"kept");
    put.expect(0);
    let relaxed = ["--durability", "relaxed:100ms"];
    server.ok(&[&["admin", "namespace", "create", "bucket"][..], &relaxed].concat());
    target.signal(Signal::STOP);
    let state = format!("/proc/{}/stat", target.pid());
    until("it is stopped", || {
        std::fs::read_to_string(&state).unwrap().contains(") T ")
    });
    (target, server, device)
}

fn write_back(device: &str) -> [&str; 6] {
    let cache = ["--cache-memory", "16MiB", "--cache-write-back", "1MiB"];
    ["--device", device, cache[0], cache[1], cache[2], cache[3]]
}

/// SIGTERM, and the server waits for what it has acknowledged.
fn told_to_end(server: &Server, place: &Place) {
    server.signal(Signal::TERM);
    until("it waits", || {
        let log = place.log();
        log.contains("waiting until acknowledged values are committed")
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_is_committed_before_the_end() {
    let (pool, near) = (Place::new(), Place::new());
    let (target, server, device) = over_a_namespace_that_is_silent(&pool, &near).await;
    put(&server.client(), 0).await.unwrap();
    told_to_end(&server, &near);
    target.signal(Signal::CONT);
    assert_eq!(server.wait(), Some(0));
    let server = near.serve(&write_back(&device));
    assert!(get(&server.client(), 0).await == value(0));
    assert_eq!(server.terminate(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_signal_ends_the_wait_and_what_is_lost_is_said() {
    let (pool, near) = (Place::new(), Place::new());
    let (_target, server, _) = over_a_namespace_that_is_silent(&pool, &near).await;
    put(&server.client(), 0).await.unwrap();
    told_to_end(&server, &near);
    assert_eq!(server.terminate(), Some(1));
    let log = near.log();
    let last = log.lines().last().unwrap();
    assert!(
        last.starts_with("forebay: acknowledged values lost: 1 (10 bytes)"),
        "{log}"
    );
}

/// A server that is killed while its backend commits nothing loses what it has acknowledged meanwhile, which is bounded and told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_what_it_said_and_no_more() {
    const SIZE: u64 = 1 << 20;
    const VALUE: usize = 30_000;
    let (pool, near) = (Place::new(), Place::new());
    let (target, server, device) = over_a_namespace_that_is_silent(&pool, &near).await;
    let client = server.client();
    let room = SIZE / VALUE as u64;
    for number in 0..room {
        put_bytes(&client, number, bytes(number, VALUE))
            .await
            .unwrap();
    }
    let waiting = server.metric("forebay_tier_write_back_bytes ");
    assert_eq!(waiting, room * VALUE as u64);
    // There is no room for one more: it is acknowledged when it is committed.
    let late = tokio::spawn({
        let client = client.clone();
        async move { put_bytes(&client, room, bytes(room, VALUE)).await }
    });
    until("it has come", || {
        server.metric("forebay_s3_requests_in_flight ") == 1
    });
    assert_eq!(server.metric("forebay_tier_write_back_bytes "), waiting);
    assert!(!late.is_finished(), "nothing of it is durable");
    late.abort();
    server.kill();
    target.signal(Signal::CONT);

    let server = near.serve(&write_back(&device));
    assert_eq!(server.metric("forebay_tier_write_back_bytes "), 0);
    let client = server.client();
    let mut lost = 0;
    for number in 0..room {
        match client.head("bucket", &number.to_string()).await {
            Ok(_) => assert!(get(&client, number).await == bytes(number, VALUE)),
            Err(error) if error.kind() == Kind::NotFound => lost += VALUE as u64,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(lost > 0 && lost <= waiting, "{lost} of {waiting} bytes");
    // What was durable when it was acknowledged is there.
    assert_eq!(server.ok(&["cat", "fb://durable/value"]), "kept");
    assert_eq!(server.terminate(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_client_stores_by_nvme_is_an_object_and_the_reverse() {
    let place = Place::new();
    let server = place.serve(&["--nvme-namespace", "cache=1"]);
    let door = &server.doors["nvme"];
    let url = format!("kv://{door}/{}/1", subsystem(door).await);
    let values = KeyValue::connect(&url, Options::default()).await.unwrap();
    let region = Region::alloc(2 << 20).unwrap();
    for (number, key) in [
        "a",
        "sixteen bytes ok",
        "a key that is longer than sixteen bytes",
    ]
    .into_iter()
    .enumerate()
    {
        let value = bytes(number as u64, [0, 5000, 1_500_000][number]);
        assert!(region.write(0, &value));
        let window = (&region, 0..value.len());
        let stored = values.store_from(key.as_bytes(), window, StoreOptions::default());
        stored.await.unwrap();
        let mut download = server.client().get("cache", key, None, None).await.unwrap();
        let mut seen = Vec::new();
        while let Some(more) = download.next().await.unwrap() {
            seen.extend_from_slice(&more);
        }
        assert!(seen == value, "{key}");
        let other = bytes(100 + number as u64, 3000);
        let options = PutOptions::default();
        let put = server
            .client()
            .put("cache", key, other.clone().into(), &options)
            .await;
        put.unwrap();
        assert_eq!(values.retrieve(key.as_bytes()).await.unwrap(), other);
        let found = values
            .retrieve_into(key.as_bytes(), (&region, 0..1000))
            .await
            .unwrap();
        assert_eq!((found.value_bytes, found.placed), (3000, 1000));
        let mut head = vec![0; 1000];
        assert!(region.read(0, &mut head) && head == other[..1000]);
    }
    assert_eq!(values.list(None).await.unwrap().len(), 3);
    assert!(values.exist(b"a").await.unwrap());
    values.delete(b"a").await.unwrap();
    let gone = values.retrieve(b"a").await.unwrap_err();
    assert_eq!(gone.kind(), Kind::NotFound);
    let once = StoreOptions {
        if_absent: true,
        ..StoreOptions::default()
    };
    values
        .store_from(b"a", (&region, 0..10), once)
        .await
        .unwrap();
    let again = values.store_from(b"a", (&region, 0..10), once).await;
    assert_eq!(again.unwrap_err().kind(), Kind::Precondition);
    assert_eq!(server.terminate(), Some(0));
}
