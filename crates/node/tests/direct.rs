//! The direct path of the binary, as its clients meet it: every way, ends of clients and servers, strangers at the socket.

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path as FilePath;
use std::process::{Child, Stdio};
use std::time::Duration;

use forebay_client::direct::{
    Choice, Get, Options, Path, Region, Span, TokenSession, blocking::Client,
};
use forebay_client::{Error, Tls};
use harness::{Place, Ran, Server, bytes, s3, until};
use rustix::process::Signal;

const NAMESPACE: &str = "demo";

fn options(choice: Choice) -> Options {
    Options {
        path: choice,
        deadline: Duration::from_secs(20),
        ..Options::default()
    }
}

fn connect(server: &Server, choice: Choice) -> Client {
    let endpoint = format!("http://{}", server.doors["rpc"]).parse().unwrap();
    Client::connect(&endpoint, &server.credentials(), options(choice)).unwrap()
}

fn ready() -> (Place, Server) {
    ready_at(&[])
}

fn ready_at(flags: &[&str]) -> (Place, Server) {
    let place = Place::new();
    let server = place.serve(flags);
    server.ok(&["admin", "namespace", "create", NAMESPACE]);
    (place, server)
}

fn metric(server: &Server, line: &str) -> Option<f64> {
    let (status, text) = server.console("/metrics");
    assert_eq!(status, 200);
    let found = text.lines().find_map(|found| found.strip_prefix(line))?;
    found.trim().parse().ok()
}

fn open_files(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid()))
        .unwrap()
        .count()
}

#[test]
fn every_way_moves_the_same_bytes() {
    let (_place, server) = ready();
    for (number, path) in Path::ALL.into_iter().enumerate() {
        let client = connect(&server, Choice::Only(path));
        assert_eq!(client.path(), path);
        for len in [1, 4096, (3 << 20) + 17] {
            let body = bytes(number as u64 + 1, len);
            let region = Region::alloc(len).unwrap();
            assert!(region.write(0, &body));
            let key = format!("{path}-{len}");
            let put = client.put_from(NAMESPACE, &key, &region).unwrap();
            assert_eq!((put.bytes, put.path), (len as u64, path));
            // The same object by every other way.
            for other in Path::ALL {
                let into = Region::alloc(len).unwrap();
                let client = connect(&server, Choice::Only(other));
                let got = client.get_into(NAMESPACE, &key, .., &into).unwrap();
                assert_eq!(
                    (got.bytes, got.path, got.size),
                    (len as u64, other, len as u64)
                );
                let mut read = vec![0; len];
                assert!(into.read(0, &mut read));
                assert!(read == body, "{len} bytes by {path}, then by {other}");
            }
            let ran = server
                .run(&["cat", &format!("fb://{NAMESPACE}/{key}")])
                .expect(0);
            assert!(ran.bytes == body);
        }
    }
    // By whatever is best without being asked.
    assert_eq!(connect(&server, Choice::Auto).path(), Path::Shm);
    for path in ["shm", "iwarp"] {
        let sent = format!("forebay_direct_sent_bytes_total{{path=\"{path}\"}}");
        assert!(metric(&server, &sent).unwrap() > 3e6);
        let received = format!("forebay_direct_received_bytes_total{{path=\"{path}\"}}");
        assert!(metric(&server, &received).unwrap() > 3e6);
    }
    until("links end with their clients", || server.links().is_empty());
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_link_is_told_of_while_it_is_served() {
    let (place, server) = ready();
    let client = connect(&server, Choice::Only(Path::Iwarp));
    let region = Region::alloc(4096).unwrap();
    client.put_from(NAMESPACE, "k", &region).unwrap();
    until("the transfer is counted", || {
        let links = server.links();
        let [link] = links.as_slice() else {
            return false;
        };
        link["tenant"] == "root" && link["path"] == "iwarp" && link["received_bytes"] == 4096
    });
    // SIGTERM does not wait for links that idle.
    assert_eq!(server.terminate(), Some(0));
    let log = place.log();
    assert!(
        log.contains("ended") && !log.contains("not waited for"),
        "{log}"
    );
}

#[test]
fn what_is_closed_is_not_offered() {
    let place = Place::new();
    let server = place.serve(&["--no-direct"]);
    assert!(!server.doors.contains_key("direct") && !server.doors.contains_key("shm"));
    assert!(!server.welcome.contains("iWARP") && !server.welcome.contains("shared memory"));
    server.ok(&["admin", "namespace", "create", NAMESPACE]);
    let client = connect(&server, Choice::Auto);
    assert_eq!(client.path(), Path::Http);
    let region = Region::alloc(10_000).unwrap();
    let put = client.put_from(NAMESPACE, "k", &region).unwrap();
    assert_eq!(put.path, Path::Http);
    assert!(put.fallback.is_some(), "it says why");
    // A hello at the socket meets an HTTP server, which does not know it.
    let mut stream = UnixStream::connect(&server.doors["admin"]).unwrap();
    stream
        .write_all(b"FBSHM\0\0\x01 and a proof\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    // The answer, if any, is HTTP's.
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"));
    drop(server);

    let server = place.serve(&["--no-rpc"]);
    assert!(!server.doors.contains_key("rpc") && server.doors.contains_key("direct"));
    drop(server);

    for (door, remedy) in [("--rpc", "--rpc-tls-cert"), ("--direct", "--no-direct")] {
        let ran = Ran::new(place.serve_command(&[door, "0.0.0.0:0"]).output().unwrap()).expect(2);
        assert!(
            ran.err.contains(door) && ran.err.contains(remedy),
            "{}",
            ran.err
        );
        assert!(ran.err.contains("--insecure"), "{}", ran.err);
    }
    let missing = &[
        "--rpc-tls-cert",
        "/nowhere.pem",
        "--rpc-tls-key",
        "/nowhere.pem",
    ];
    let ran = Ran::new(place.serve_command(missing).output().unwrap()).expect(1);
    assert!(ran.err.contains("/nowhere.pem"), "{}", ran.err);
    Ran::new(place.serve_command(&missing[..2]).output().unwrap()).expect(2);
}

#[test]
fn strangers_get_no_link_and_no_word() {
    let (_place, server) = ready();
    let mut proof = b"ort1".to_vec();
    proof.extend_from_slice(&[7; 32]);
    let hello = [b"FBSHM\0\0\x01".as_slice(), &proof].concat();
    let mut answers = Vec::new();
    for sent in [&hello[..], &hello[..20], b"FBSHX\0\0\x01", b"F"] {
        let mut stream = UnixStream::connect(&server.doors["shm"]).unwrap();
        stream.write_all(sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // Being cut off is an answer, too.
        let _ = stream.read_to_end(&mut answer);
        answers.push(answer);
    }
    assert!(
        answers.windows(2).all(|pair| pair[0] == pair[1]),
        "{answers:?}"
    );
    // The same where iWARP is spoken: whoever says nothing right is sent away.
    for sent in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"MPA ID Req Frame", b""] {
        let mut stream = TcpStream::connect(&server.doors["direct"]).unwrap();
        // It may be closed before all is sent.
        let _ = stream.write_all(sent);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP"));
    }
    assert!(server.links().is_empty());
    let client = connect(&server, Choice::Only(Path::Shm));
    let region = Region::alloc(64).unwrap();
    client.put_from(NAMESPACE, "k", &region).unwrap();
}

/// A process that copies a large file to the server for ever, by one path.
fn copying(server: &Server, file: &FilePath, path: &str, round: usize) -> Child {
    let mut command = std::process::Command::new("sh");
    let copy = format!(
        "while :; do {} cp --path {path} {} fb://{NAMESPACE}/big-{round} || exit 1; done",
        env!("CARGO_BIN_EXE_forebay"),
        file.display()
    );
    // A group of its own: the shell and what it runs are killed together.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command
        .args(["-c", &copy])
        .env(
            "FOREBAY_ENDPOINT",
            format!("http://{}", server.doors["rpc"]),
        )
        .env("AWS_SHARED_CREDENTIALS_FILE", credentials(server))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn credentials(server: &Server) -> std::path::PathBuf {
    let socket = FilePath::new(&server.doors["admin"]);
    let dir = socket.parent().and_then(FilePath::parent).unwrap();
    dir.join("credentials")
}

#[test]
fn a_client_killed_in_the_middle_of_a_transfer_harms_nobody() {
    let (place, server) = ready();
    let file = place.path("big.bin");
    std::fs::write(&file, bytes(5, 24 << 20)).unwrap();
    let witness = connect(&server, Choice::Only(Path::Shm));
    let body = bytes(9, 100_000);
    let region = Region::alloc(body.len()).unwrap();
    assert!(region.write(0, &body));
    witness.put_from(NAMESPACE, "witness", &region).unwrap();
    let before = open_files(&server);
    for (round, path) in ["shm", "iwarp", "shm", "iwarp"].into_iter().enumerate() {
        let mut child = copying(&server, &file, path, round);
        // In the middle: bytes have come by its link, or work is in progress there.
        until("the copy moves bytes", || {
            assert_eq!(child.try_wait().unwrap(), None, "the copy ended by itself");
            server.links().iter().any(|link| {
                link["path"] == path
                    && (link["in_flight"].as_u64() > Some(0)
                        || link["received_bytes"].as_u64() > Some(1 << 20))
            })
        });
        let group = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process_group(group, Signal::KILL).unwrap();
        child.wait().unwrap();
        until("the dead client's links end", || server.links().len() == 1);
        let into = Region::alloc(body.len()).unwrap();
        witness.get_into(NAMESPACE, "witness", .., &into).unwrap();
        let mut read = vec![0; body.len()];
        assert!(into.read(0, &mut read) && read == body);
        // What was being stored is whole or absent.
        let key = format!("fb://{NAMESPACE}/big-{round}");
        let there = server.run(&["cat", &key]);
        match there.code {
            Some(0) => assert!(there.bytes == bytes(5, 24 << 20)),
            Some(3) => {}
            other => panic!("{other:?}: {}", there.err),
        }
    }
    until("nothing of the dead stays open", || {
        open_files(&server) <= before + 4
    });
    let found = &server.json(&["admin", "scrub"])[0];
    assert_eq!(found["damaged"], 0);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn clients_of_a_server_that_starts_again_fail_cleanly_or_come_back() {
    for path in [Path::Shm, Path::Iwarp] {
        let [rpc, direct] = harness::returning();
        let doors = ["--rpc", &rpc, "--direct", &direct];
        let (place, server) = ready_at(&doors);
        let client = connect(&server, Choice::Only(path));
        let body = bytes(3, 300_000);
        let region = Region::alloc(body.len()).unwrap();
        assert!(region.write(0, &body));
        client.put_from(NAMESPACE, "k", &region).unwrap();
        server.kill();
        // Nobody is there: an error.
        let into = Region::alloc(body.len()).unwrap();
        match client.get_into(NAMESPACE, "k", .., &into) {
            Err(Error::Transport { .. } | Error::TimedOut(_)) => {}
            other => panic!("{other:?}"),
        }
        let again = place.serve(&doors);
        // The old session means nothing to the new server; the client opens another.
        let got = client.get_into(NAMESPACE, "k", .., &into).unwrap();
        assert_eq!((got.bytes, got.path), (body.len() as u64, path));
        let mut read = vec![0; body.len()];
        assert!(into.read(0, &mut read) && read == body);
        drop(again);
    }
}

#[test]
fn a_removed_key_takes_its_links_along() {
    let (_place, server) = ready();
    server.ok(&["admin", "tenant", "create", "guests"]);
    server.ok(&[
        "admin",
        "namespace",
        "create",
        "visits",
        "--tenant",
        "guests",
    ]);
    let key = &server.json(&["admin", "key", "create", "guests"])[0];
    let text = |name: &str| key[name].as_str().unwrap().to_owned();
    let credentials = forebay_client::Credentials {
        access_key: text("access_key"),
        secret_key: text("secret_key"),
    };
    let endpoint = format!("http://{}", server.doors["rpc"]).parse().unwrap();
    let choice = Choice::Only(Path::Shm);
    let guest = Client::connect(&endpoint, &credentials, options(choice)).unwrap();
    let region = Region::alloc(4096).unwrap();
    guest.put_from("visits", "k", &region).unwrap();
    // Another tenant's namespace is none.
    let foreign = guest.get_into(NAMESPACE, "k", .., &region).unwrap_err();
    let missing = guest.get_into("nowhere", "k", .., &region).unwrap_err();
    let words = |error: &Error| {
        error
            .to_string()
            .replace(NAMESPACE, "")
            .replace("nowhere", "")
    };
    assert_eq!(words(&foreign), words(&missing));
    server.ok(&["admin", "key", "rm", &credentials.access_key]);
    until("the link ends", || server.links().is_empty());
    guest.get_into("visits", "k", .., &region).unwrap_err();
}

/// A certificate for this host that signs itself, and its key: where they are.
fn certificate(place: &Place, name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let [certificate, key] = ["cert", "key"].map(|what| place.path(&format!("{name}-{what}.pem")));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let [certificate, key] = [certificate, key].map(|path| path.to_str().unwrap().to_owned());
    (certificate, key)
}

#[test]
fn the_grpc_door_speaks_tls() {
    let place = Place::new();
    let (certificate, key) = certificate(&place, "rpc");
    let server = place.serve(&["--rpc-tls-cert", &certificate, "--rpc-tls-key", &key]);
    server.ok(&["admin", "namespace", "create", NAMESPACE]);
    assert!(server.welcome.contains("https://127.0.0.1:"));
    let endpoint = format!("https://{}", server.doors["rpc"]).parse().unwrap();
    let connect = |tls| {
        let options = Options {
            tls,
            deadline: Duration::from_secs(5),
            ..options(Choice::Only(Path::Iwarp))
        };
        Client::connect(&endpoint, &server.credentials(), options)
    };
    let trusted = connect(Some(Tls::new(Some(certificate.as_ref())).unwrap())).unwrap();
    let region = Region::alloc(4096).unwrap();
    trusted.put_from(NAMESPACE, "k", &region).unwrap();
    assert!(connect(None).is_err(), "nobody else is trusted");
}

#[test]
fn the_direct_door_speaks_tls() {
    let place = Place::new();
    let (trusted, key) = certificate(&place, "direct");
    let (other, _) = certificate(&place, "other");
    // Open to the network, and nobody has to say that this is insecure.
    let flags = [
        "--direct",
        "0.0.0.0:0",
        "--direct-tls-cert",
        &trusted,
        "--direct-tls-key",
        &key,
    ];
    let server = place.serve(&flags);
    server.ok(&["admin", "namespace", "create", NAMESPACE]);
    assert!(server.welcome.contains("iWARP over TLS"));
    let endpoint = server.rpc().parse().unwrap();
    let connect = |ca: Option<&str>, choice| {
        let tls = ca.map(|ca| Tls::new(Some(ca.as_ref())).unwrap());
        let options = Options {
            tls,
            ..options(choice)
        };
        Client::connect(&endpoint, &server.credentials(), options)
    };
    let client = connect(Some(&trusted), Choice::Only(Path::Iwarp)).unwrap();
    let region = Region::alloc(9_000_001).unwrap();
    let value = bytes(1, region.len());
    assert!(region.write(0, &value));
    let put = client.put_from(NAMESPACE, "k", &region).unwrap();
    assert_eq!(put.path, Path::Iwarp);
    let copied = metric(&server, "forebay_copied_bytes_total{where=\"link_tls\"}").unwrap();
    // Where the kernel has TLS there are none.
    match std::path::Path::new("/proc/net/tls_stat").exists() {
        true => assert_eq!(copied, 0.0),
        false => assert!(copied >= region.len() as f64, "copies for TLS are counted"),
    }
    let back = Region::alloc(region.len()).unwrap();
    client.get_into(NAMESPACE, "k", .., &back).unwrap();
    let mut read = vec![0; back.len()];
    assert!(back.read(0, &mut read) && read == value);

    // Whoever trusts somebody else makes no link, and says why.
    let refused = connect(Some(&other), Choice::Only(Path::Iwarp)).unwrap_err();
    assert!(
        refused.to_string().contains("no TLS with 0.0.0.0:"),
        "{refused}"
    );
    // Memory that shared memory cannot reach then goes by the last path, and says why not by each of the others.
    let half = connect(Some(&other), Choice::Auto).unwrap();
    let private = Region::of(forebay_mem::Region::anonymous(back.len()).unwrap());
    let got = half.get_into(NAMESPACE, "k", .., &private).unwrap();
    let why = got.fallback.unwrap().to_string();
    assert_eq!((half.path(), got.path), (Path::Shm, Path::Http));
    assert!(why.contains("process' alone; iwarp: no TLS with"), "{why}");
    let source = place.path("source");
    std::fs::write(&source, &value).unwrap();
    let cp = [
        "cp",
        "--path",
        "iwarp",
        source.to_str().unwrap(),
        "fb://demo/cp",
    ];
    let sent = server.json(&[&cp[..], &["--ca", &trusted]].concat());
    assert_eq!(sent.last().unwrap()["path"], "iwarp");
    // A session opened by an S3 request is told the same.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let by_s3 = |ca: &str| {
        let tls = Tls::new(Some(ca.as_ref())).unwrap();
        let (s3, credentials) = (server.s3().parse().unwrap(), server.credentials());
        let session = TokenSession::connect(&s3, &credentials, "iwarp", Some(&tls));
        runtime.block_on(session).map(|session| session.path())
    };
    assert_eq!(by_s3(&trusted).unwrap(), Path::Iwarp);
    by_s3(&other).unwrap_err();
    // The other doors are as they were.
    for path in [Path::Shm, Path::Http] {
        let client = connect(None, Choice::Only(path)).unwrap();
        client.get_into(NAMESPACE, "cp", .., &back).unwrap();
        assert!(back.read(0, &mut read) && read == value);
    }
}

/// Memory at an address is nothing that a server can map: iWARP places bytes in it all the same.
#[test]
fn memory_of_this_process_alone_goes_by_the_best_path_that_reaches_it() {
    let (_place, server) = ready();
    let client = connect(&server, Choice::Auto);
    assert_eq!(client.path(), Path::Shm);
    let private = Region::of(forebay_mem::Region::anonymous(100_000).unwrap());
    let value = bytes(2, private.len());
    assert!(private.write(0, &value));
    let put = client.put_from(NAMESPACE, "k", &private).unwrap();
    assert_eq!(put.path, Path::Iwarp);
    let why = put.fallback.unwrap().to_string();
    assert_eq!(why, "shm: the memory is this process' alone");
    let other = Region::of(forebay_mem::Region::anonymous(private.len()).unwrap());
    assert_eq!(
        client.get_into(NAMESPACE, "k", .., &other).unwrap().path,
        Path::Iwarp
    );
    let mut read = vec![0; other.len()];
    assert!(other.read(0, &mut read) && read == value);
    // Other memory still goes by the best, and a batch by what reaches all of it.
    let mapped = Region::alloc(private.len()).unwrap();
    assert_eq!(
        client.get_into(NAMESPACE, "k", .., &mapped).unwrap().path,
        Path::Shm
    );
    let gets = [&mapped, &other].map(|region| Get {
        key: b"k",
        span: Span::of(..),
        into: region.into(),
    });
    let mut paths = Vec::new();
    client
        .gather(NAMESPACE, &gets, |_, got| paths.push(got.unwrap().path))
        .unwrap();
    assert_eq!(paths, [Path::Iwarp; 2]);
    assert_eq!(server.links().len(), 2);
    // Without iWARP its payload is a body, and without any other path there is none.
    let only = connect(&server, Choice::Only(Path::Shm));
    only.get_into(NAMESPACE, "k", .., &other).unwrap_err();
}

#[test]
fn a_client_that_fell_back_finds_the_better_path_again() {
    let [s3, rpc] = harness::returning();
    let doors = ["--s3", &s3, "--rpc", &rpc];
    let (place, server) = ready_at(&[&doors[..], &["--no-direct"]].concat());
    let endpoint = server.rpc().parse().unwrap();
    let options = Options {
        better_after: Duration::from_millis(1),
        ..options(Choice::Auto)
    };
    let client = Client::connect(&endpoint, &server.credentials(), options).unwrap();
    let region = Region::alloc(100).unwrap();
    let put = client.put_from(NAMESPACE, "k", &region).unwrap();
    assert_eq!(put.path, Path::Http);
    let why = put.fallback.unwrap().to_string();
    assert!(why.contains("shm: the server does not offer it"), "{why}");
    drop(server);
    let server = place.serve(&doors);
    until("the better path", || {
        let got = client.get_into(NAMESPACE, "k", .., &region).unwrap();
        got.path == Path::Shm && got.fallback.is_none()
    });
    assert_eq!((client.path(), server.links().len()), (Path::Shm, 1));
}

/// A server that listens on all addresses tells every client the one by which that client came.
#[test]
fn any_address_is_where_the_client_found_the_server() {
    let place = Place::new();
    let every = "0.0.0.0:0";
    let flags = [
        "--insecure",
        "--s3",
        every,
        "--rpc",
        every,
        "--direct",
        every,
    ];
    let server = place.serve(&flags);
    server.ok(&["admin", "namespace", "create", NAMESPACE]);
    let port = server.doors["rpc"].rsplit_once(':').unwrap().1;
    // Another address of this host than the one that "any address" is here.
    let endpoint = format!("http://127.0.0.2:{port}").parse().unwrap();
    for path in [Path::Iwarp, Path::Http] {
        let options = options(Choice::Only(path));
        let client = Client::connect(&endpoint, &server.credentials(), options).unwrap();
        let region = Region::alloc(4096).unwrap();
        let put = client.put_from(NAMESPACE, "k", &region).unwrap();
        assert_eq!(put.path, path);
    }
}

/// Of a window that is empty.
const MALFORMED: &str =
    "00007f1234567890:00000000:aabbccdd:0000:000042:1:00000000000000000000ffff0a0a30d0";

/// Signed as without a token: another vendor's header is not `x-amz-`.
fn get_with_vendor_token(server: &Server, path: &str) -> u16 {
    let head = s3::head(server, &server.credentials(), "GET", path, 0);
    let more = format!("\r\nx-rdma-info: {MALFORMED}\r\nconnection: close\r\n\r\n");
    let mut stream = TcpStream::connect(&server.doors["s3"]).unwrap();
    stream
        .write_all(head.replace("\r\n\r\n", &more).as_bytes())
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let status = String::from_utf8_lossy(&answer);
    status.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn how_tokens_that_are_not_served_are_declined() {
    let place = Place::new();
    for (flags, status) in [
        (&[][..], 501),
        (&["--s3-decline-body"][..], 404),
        (&["--s3-vendor-tokens"][..], 400),
    ] {
        let server = place.serve(flags);
        assert_eq!(get_with_vendor_token(&server, "/none/key"), status);
    }
}
