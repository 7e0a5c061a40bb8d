//! Processes that are told to end before they are done.

mod harness;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_io::Disk;
use forebay_io::files::Directory;
use harness::{Place, Ran};
use rustix::process::{Pid, Signal, kill_process};

/// Long for anything here.
const LONG: Duration = Duration::from_secs(30);
/// What a copy says that need not begin anew.
const GOES_ON: &str = "goes on where this one ended";

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A server that waits for who answers nothing.
#[test]
fn a_server_ends_while_it_waits_for_its_device() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let device = format!("nvme+tcp://{address}/nqn.2026-01.com.example:silent/1");
    for told in [Signal::TERM, Signal::INT] {
        let mut server = place.serve_command(&["--device", &device]).spawn().unwrap();
        let _asked = silent.accept().unwrap();
        signal(&server, told);
        assert_eq!(server.wait().unwrap().code(), Some(0));
    }
}

/// One that waits for a directory that another has.
#[test]
fn a_server_ends_while_it_waits_for_a_directory() {
    let place = Place::new();
    let held = place.path("held");
    fs::create_dir(&held).unwrap();
    let _lock = Directory::open(&held).unwrap().lock().unwrap();
    let disk = format!("{}:64MiB", held.display());
    let cache = ["--cache-memory", "16MiB", "--cache-disk", &disk];
    for (dir, flags) in [(held.clone(), &[][..]), (place.data(), &cache)] {
        let log = fs::File::create(place.path("log")).unwrap();
        let mut command = harness::forebay();
        command.arg("serve").arg(dir).args(flags);
        command.args(["--log-level", "debug"]);
        for door in ["--s3", "--rpc", "--direct", "--console", "--nvme"] {
            command.args([door, "127.0.0.1:0"]);
        }
        let mut server = command.stderr(log).spawn().unwrap();
        while !place.log().contains("is held") && server.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        signal(&server, Signal::TERM);
        assert_eq!(server.wait().unwrap().code(), Some(0), "{}", place.log());
    }
}

#[test]
fn doctor_removes_what_it_made() {
    let place = Place::new();
    let server = place.serve(&[]);
    // A process for each look would be too slow.
    let doctors = || {
        let mut stream = UnixStream::connect(&server.doors["admin"]).unwrap();
        let asked = b"GET /v1/namespaces HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(asked).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        answer.matches("\"forebay-doctor-").count()
    };
    server.ok(&["doctor"]);
    assert_eq!(doctors(), 0);

    let mut command = harness::forebay();
    command.arg("doctor").arg("--dir").arg(place.data());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut doctor = command.spawn().unwrap();
    while doctors() == 0 && doctor.try_wait().unwrap().is_none() {}
    signal(&doctor, Signal::INT);
    let ran = Ran::new(doctor.wait_with_output().unwrap()).expect(1);
    assert!(ran.err.contains("interrupted"), "{ran:?}");
    assert_eq!(doctors(), 0);
}

/// Credentials that name a server of S3.
fn profile(address: SocketAddr) -> String {
    format!(
        "[default]\naws_access_key_id = A\naws_secret_access_key = S\nendpoint_url = http://{address}\n"
    )
}

/// What a copy that is run again need not do again.
#[test]
fn a_copy_says_that_it_would_go_on() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let (folder, keys) = (place.path("folder"), place.path("keys"));
    fs::create_dir(&folder).unwrap();
    let file = folder.join("file");
    fs::write(&file, harness::bytes(1, 12 << 20)).unwrap();
    fs::write(folder.join("small"), "x").unwrap();
    fs::write(&keys, profile(address)).unwrap();
    for (flags, source, goes_on) in [
        (&["--part-size=5MiB"][..], &file, true),
        (&["--part-size=5MiB", "--no-resume"], &file, false),
        // It would be another object each time.
        (&["--part-size=5MiB", "--tag=a=b"], &file, false),
        // Of one part there is nothing to go on with, but of one of several files there is.
        (&["--part-size=16MiB"], &file, false),
        (&["--part-size=16MiB"], &folder, true),
    ] {
        let mut command = harness::forebay();
        command.arg("cp").args(flags).arg(source).arg("fb://data/");
        command.env("AWS_SHARED_CREDENTIALS_FILE", &keys);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let copy = command.spawn().unwrap();
        let _asked = silent.accept().unwrap();
        signal(&copy, Signal::INT);
        let ran = Ran::new(copy.wait_with_output().unwrap()).expect(1);
        assert!(ran.err.starts_with("forebay: interrupted"), "{ran:?}");
        assert_eq!(ran.err.contains(GOES_ON), goes_on, "{flags:?}: {ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    }
}

/// Answers the requests of one connection to a server that may be asked for its uploads, or not; says nothing to parts, and tells of them.
fn answer(mut stream: TcpStream, listed: (&str, &str), parts: &mpsc::Sender<()>) {
    while let Some(head) = request(&mut stream) {
        let begun =
            "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
        let (status, body) = match head.split_once(' ').unwrap() {
            ("HEAD", _) => ("404 Not Found", ""),
            ("GET", _) => listed,
            ("POST", _) => ("200 OK", begun),
            // The mark.
            ("PUT", target) if target.contains("partNumber=10000&") => ("200 OK", ""),
            ("PUT", _) => {
                // The test may have seen enough.
                let _ = parts.send(());
                continue;
            }
            _ => ("204 No Content", ""),
        };
        let len = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\netag: \"e\"\r\ncontent-length: {len}\r\n\r\n{body}");
        // The copy may have ended.
        let _ = stream.write_all(answer.as_bytes());
    }
}

/// The head of the next request, whose body is read.
fn request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let len = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |len| len.parse().unwrap());
    stream.read_exact(&mut vec![0; len]).ok()?;
    Some(head)
}

/// Who may store and not list uploads would not find his own again.
#[test]
fn a_copy_promises_nothing_of_an_upload_without_a_mark() {
    let place = Place::new();
    let (file, keys) = (place.path("file"), place.path("keys"));
    fs::write(&file, harness::bytes(1, 12 << 20)).unwrap();
    let denied = "<Error><Code>AccessDenied</Code><Message>m</Message></Error>";
    for (listed, goes_on) in [
        (("403 Forbidden", denied), false),
        (("200 OK", "<ListMultipartUploadsResult/>"), true),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        fs::write(&keys, profile(listener.local_addr().unwrap())).unwrap();
        let (part, parts) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, part) = (stream.unwrap(), part.clone());
                thread::spawn(move || answer(stream, listed, &part));
            }
        });
        let mut command = harness::forebay();
        command.args(["cp", "--path=http", "--part-size=5MiB"]);
        command.arg(&file).arg("fb://data/");
        command.env("AWS_SHARED_CREDENTIALS_FILE", &keys);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let copy = command.spawn().unwrap();
        parts.recv().unwrap();
        signal(&copy, Signal::INT);
        let ran = Ran::new(copy.wait_with_output().unwrap()).expect(1);
        assert!(ran.err.starts_with("forebay: interrupted"), "{ran:?}");
        assert_eq!(ran.err.contains(GOES_ON), goes_on, "{listed:?}: {ran:?}");
    }
}

/// What it has sent, and nobody would go on with.
#[test]
fn a_copy_that_would_not_go_on_leaves_nothing() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "data"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = server.client();
    let uploads = || runtime.block_on(client.uploads("data", "")).unwrap();
    let has_parts = || {
        uploads().iter().any(|upload| {
            let parts = runtime.block_on(client.parts("data", &upload.key, &upload.id));
            parts.is_ok_and(|parts| !parts.is_empty())
        })
    };
    for (path, told) in [
        ("auto", Signal::INT),
        ("http", Signal::INT),
        ("http", Signal::TERM),
    ] {
        let mut command = harness::forebay();
        command.args([
            "cp",
            "--part-size=5MiB",
            "--path",
            path,
            "-",
            "fb://data/stream",
        ]);
        command.arg("--dir").arg(place.data()).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut copy = command.spawn().unwrap();
        let mut stdin = copy.stdin.take().unwrap();
        stdin.write_all(&harness::bytes(2, 12 << 20)).unwrap();
        while !has_parts() && copy.try_wait().unwrap().is_none() {}
        signal(&copy, told);
        let ran = Ran::new(copy.wait_with_output().unwrap()).expect(1);
        assert_eq!(ran.err, "forebay: interrupted\n");
        assert_eq!(uploads(), []);
    }
}

/// What it writes waits for somebody who reads, and it for that.
#[test]
fn a_command_that_does_not_notice_ends_all_the_same() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "data"]);
    let large = harness::bytes(3, 8 << 20);
    let stored = server.run_on(&["cp", "-", "fb://data/large"], &large);
    stored.expect(0);
    for (told, again) in [(Signal::INT, true), (Signal::TERM, false)] {
        let mut command = harness::forebay();
        command.args(["cat", "fb://data/large", "--dir"]);
        command.arg(place.data()).stdout(Stdio::piped());
        let mut cat = command.spawn().unwrap();
        let mut output = cat.stdout.take().unwrap();
        output.read_exact(&mut [0]).unwrap();
        let begun = Instant::now();
        signal(&cat, told);
        let ended = loop {
            match cat.try_wait().unwrap() {
                Some(ended) => break ended,
                None if begun.elapsed() > LONG => cat.kill().unwrap(),
                None if again => signal(&cat, told),
                None => {}
            }
            std::thread::yield_now();
        };
        assert_eq!(ended.code(), Some(1), "{told:?}");
    }
}
