//! Values that no cache holds, read by every path: what moving them copies, and what is told of bytes that went bad where they are stored.

mod harness;

use std::fs::File;
use std::os::unix::fs::FileExt;

use forebay_client::Error;
use forebay_client::direct::blocking::Client;
use forebay_client::direct::{Choice, Options, Path, Region};
use harness::skipping::skip;
use harness::{Place, Server, bytes};

const NAMESPACE: &str = "demo";
/// As it is no text, it travels in messages of gRPC where others go by HTTP.
const KEY: &[u8] = b"value\xff";

/// A server that keeps no values in memory.
fn ready() -> (Place, Server) {
    let place = Place::new();
    let server = place.serve(&["--cache", "0"]);
    server.ok(&["admin", "namespace", "create", NAMESPACE]);
    (place, server)
}

fn connect(server: &Server, path: Path) -> Client {
    let options = Options {
        path: Choice::Only(path),
        ..Options::default()
    };
    let endpoint = server.rpc().parse().unwrap();
    Client::connect(&endpoint, &server.credentials(), options).unwrap()
}

fn put(client: &Client, contents: &[u8]) {
    let region = Region::alloc(contents.len()).unwrap();
    assert!(region.write(0, contents));
    client.put_from(NAMESPACE, KEY, &region).unwrap();
}

/// Payload that the server has copied in memory so far.
fn copied(server: &Server) -> u64 {
    let (_, page) = server.console("/metrics");
    let sites = page
        .lines()
        .filter(|line| line.starts_with("forebay_copied_bytes_total"));
    sites
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[test]
fn what_comes_from_the_device_is_copied_nowhere() {
    let (_place, server) = ready();
    if server.metric("forebay_disk_io_uring ") == 0 {
        return skip("without io_uring the device cannot read into a client's memory");
    }
    let contents = bytes(1, 8 << 20);
    for path in [Path::Shm, Path::Iwarp] {
        let client = connect(&server, path);
        put(&client, &contents);
        let before = copied(&server);
        let target = Region::alloc(contents.len()).unwrap();
        let got = client.get_into(NAMESPACE, KEY, .., &target).unwrap();
        assert_eq!((got.bytes, got.path), (contents.len() as u64, path));
        let mut seen = vec![0; contents.len()];
        assert!(target.read(0, &mut seen) && seen == contents);
        assert_eq!(copied(&server) - before, 0, "{path}");
    }
}

#[test]
fn a_bit_flipped_in_the_store_is_told_as_one_of_the_store() {
    let (place, server) = ready();
    let contents = bytes(2, 300_000);
    put(&connect(&server, Path::Shm), &contents);
    flip(&place, &contents[200_000..200_064]);
    for path in Path::ALL {
        let target = Region::alloc(contents.len()).unwrap();
        let client = connect(&server, path);
        let got = client.get_into(NAMESPACE, KEY, .., &target);
        let Err(Error::Corrupt(told)) = got else {
            panic!("{path}: {got:?}");
        };
        assert!(told.contains("changed in the store"), "{path}: {told}");
        assert!(told.contains(": block "), "{path}: {told}");
        // What is in other blocks is as it was.
        let sound = client.get_into(NAMESPACE, KEY, 0..65_536, &target);
        assert_eq!(sound.unwrap().bytes, 65_536, "{path}");
    }
}

/// Flips one bit of the only place where the server's data has these bytes.
fn flip(place: &Place, needle: &[u8]) {
    let path = place.data().join("data");
    let data = std::fs::read(&path).unwrap();
    let at = data
        .windows(needle.len())
        .position(|window| window == needle);
    let at = at.unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[data[at] ^ 4], at as u64).unwrap();
}
