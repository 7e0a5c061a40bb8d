//! A server whose values lie on a namespace of blocks that another server exports: either is killed, and nothing that was acknowledged
//! is lost.

mod harness;

use std::fs::File;
use std::net::TcpListener;
use std::time::Duration;

use forebay_client::PutOptions;
use forebay_nvme::initiator::{Address, DiscoveredKind, Options, discover};
use harness::{Place, bytes};

const BYTES: u64 = 512 << 20;

/// A port that is free now.
fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn value(number: u64) -> Vec<u8> {
    let len = [10, 3000, 70_000, 2_000_000][number as usize % 4];
    bytes(number, len)
}

async fn put(client: &forebay_client::Client, number: u64) -> Result<(), forebay_client::Error> {
    let (key, options) = (number.to_string(), PutOptions::default());
    let put = client.put("bucket", &key, value(number).into(), &options);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_on_a_namespace_elsewhere_survive_the_death_of_either_server() {
    let (pool, near) = (Place::new(), Place::new());
    let file = pool.path("blocks");
    File::create(&file).unwrap().set_len(BYTES).unwrap();
    let door = free();
    let export = format!("pool={}:1", file.display());
    let flags = ["--nvme", &door, "--export", &export];
    let target = pool.serve(&flags);
    let address: Address = door.parse().unwrap();
    let found = discover(address, Options::default()).await.unwrap();
    let subsystem = found.iter().find(|one| one.kind == DiscoveredKind::Nvm);
    let device = format!("nvme+tcp://{door}/{}/1", subsystem.unwrap().subsystem);
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
    assert!(said.contains("another data file"), "{said}");

    let client = server.client();
    let late = {
        let client = client.clone();
        target.kill();
        tokio::spawn(async move { put(&client, 8).await })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    let target = pool.serve(&["--nvme", &door, "--export", &export]);
    late.await.unwrap().unwrap();
    for number in 0..9 {
        assert!(get(&client, number).await == value(number), "{number}");
    }
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(target.terminate(), Some(0));
    assert!(!near.data().join("data").exists());
}
