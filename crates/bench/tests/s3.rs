//! The load generator against a small server that answers as servers do: whole, in pieces, in chunks, closing, refusing.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use clap::Parser;
use forebay_bench::{Args, Error, Measured, Point, Results};

/// How the server answers a GET.
#[derive(Clone, Copy)]
enum Manner {
    Whole,
    Pieces,
    Chunks,
    Closing,
    Corrupt,
    Refusing,
    /// No object is taken before so many connections have brought one.
    Together(usize),
}

/// Connections that have brought an object to a server that takes them together.
static GATHERED: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

type Objects = Arc<Mutex<HashMap<String, Vec<u8>>>>;

fn server(manner: Manner) -> (SocketAddr, Objects) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let objects = Objects::default();
    let shared = objects.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let objects = shared.clone();
            thread::spawn(move || serve(stream.unwrap(), manner, &objects));
        }
    });
    (address, objects)
}

/// Answers until the client goes; a client that goes in the middle of a request is no error.
fn serve(stream: TcpStream, manner: Manner, objects: &Objects) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut input = BufReader::new(stream.try_clone().ok()?);
    let mut alone = true;
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let mut words = line.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let mut length = 0;
        let mut signed = false;
        loop {
            let mut header = String::new();
            input.read_line(&mut header).ok()?;
            if let Some(value) = header.strip_prefix("content-length: ") {
                length = value.trim().parse().ok()?;
            }
            signed |= header.starts_with("authorization: AWS4-HMAC-SHA256 Credential=key/");
            if header == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        input.read_exact(&mut body).ok()?;
        if let Manner::Together(count) = manner
            && path.contains("/0")
            && std::mem::take(&mut alone)
        {
            let mut gathered = GATHERED.0.lock().unwrap();
            *gathered += 1;
            GATHERED.1.notify_all();
            drop(
                GATHERED
                    .1
                    .wait_while(gathered, |gathered| *gathered < count),
            );
        }
        answer(&stream, manner, &method, &path, signed, body, objects)?;
        if matches!(manner, Manner::Closing) && method == "GET" {
            return None;
        }
    }
}

fn answer(
    mut stream: &TcpStream,
    manner: Manner,
    method: &str,
    path: &str,
    signed: bool,
    body: Vec<u8>,
    objects: &Objects,
) -> Option<()> {
    let plain = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
    if !signed {
        return stream.write_all(plain("403 Forbidden").as_bytes()).ok();
    }
    if method == "PUT" {
        objects.lock().unwrap().insert(path.to_owned(), body);
        return stream.write_all(plain("200 OK").as_bytes()).ok();
    }
    let found = if path.contains("list-type=2") {
        Some(b"<ListBucketResult/>".to_vec())
    } else {
        objects.lock().unwrap().get(path).cloned()
    };
    let Some(mut value) = found else {
        return stream.write_all(plain("404 Not Found").as_bytes()).ok();
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", value.len());
    if method == "HEAD" {
        return stream.write_all((head + "\r\n").as_bytes()).ok();
    }
    match manner {
        Manner::Whole | Manner::Together(_) => stream
            .write_all(&[(head + "\r\n").as_bytes(), &value].concat())
            .ok(),
        Manner::Pieces => {
            let whole = [(head + "\r\n").as_bytes(), &value].concat();
            whole
                .chunks(37)
                .try_for_each(|piece| stream.write_all(piece))
                .ok()
        }
        Manner::Chunks => {
            let mut whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for chunk in value.chunks(100) {
                write!(whole, "{:x}\r\n", chunk.len()).ok()?;
                whole.extend_from_slice(chunk);
                whole.extend_from_slice(b"\r\n");
            }
            whole.extend_from_slice(b"0\r\n\r\n");
            stream.write_all(&whole).ok()
        }
        Manner::Closing => stream
            .write_all(&[(head + "Connection: close\r\n\r\n").as_bytes(), &value].concat())
            .ok(),
        Manner::Corrupt => {
            if let Some(byte) = value.first_mut() {
                *byte ^= 1;
            }
            stream
                .write_all(&[(head + "\r\n").as_bytes(), &value].concat())
                .ok()
        }
        // The object that preparation looks at is given; every other GET is refused.
        Manner::Refusing if path.ends_with("/0000000007") => stream
            .write_all(&[(head + "\r\n").as_bytes(), &value].concat())
            .ok(),
        Manner::Refusing => stream
            .write_all(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 8\r\n\r\nSlowDown")
            .ok(),
    }
}

/// Runs with `more` arguments, and with small ones for whatever they do not say.
fn bench(address: SocketAddr, more: &str) -> Result<Vec<Point>, Error> {
    let mut words: Vec<String> = format!("bench s3 --endpoint http://{address} {more}")
        .split(' ')
        .map(str::to_owned)
        .collect();
    for (flag, value) in [
        ("--access-key", "key"),
        ("--secret-key", "-secret"),
        ("--seconds", "0.2"),
        ("--warm-up", "0"),
        ("--objects", "8"),
        ("--concurrency", "3"),
        ("--threads", "2"),
    ] {
        if !words.iter().any(|word| word == flag) {
            words.extend([flag.to_owned(), value.to_owned()]);
        }
    }
    let (results, mut measured) = Results::channel();
    let args = Args::try_parse_from(words).map_err(|error| Error::Usage(error.to_string()))?;
    forebay_bench::run(&args, &results)?;
    drop(results);
    let load = |measured| match measured {
        Measured::Load(point) => *point,
        _ => unreachable!("nothing else was asked for"),
    };
    Ok(std::iter::from_fn(|| measured.blocking_recv())
        .map(load)
        .collect())
}

#[test]
fn every_operation_is_measured() {
    let (address, objects) = server(Manner::Whole);
    let points = bench(address, "--op get,put,head,list,mixed --size 0,7,4KiB").unwrap();
    let expected: Vec<_> = ["get", "put", "head", "list", "mixed"]
        .iter()
        .flat_map(|op| [0, 7, 4096].map(|size| (*op, size)))
        .collect();
    let told: Vec<_> = points.iter().map(|point| (point.op, point.size)).collect();
    assert_eq!(told, expected);
    for point in &points {
        assert_eq!((point.errors, &point.first_error), (0, &None), "{point}");
        assert!(
            point.ops_per_s > 0.0 && point.p50_us <= point.p999_us,
            "{point}"
        );
        assert_eq!(
            point.client_cpu_s_per_gb.is_some(),
            point.mb_per_s > 0.0,
            "{point}"
        );
        assert_eq!(point.server_cpu_s_per_gb, None);
    }
    let objects = objects.lock().unwrap();
    assert_eq!(objects.len(), 1 + 3 * 8);
    let bodies: std::collections::HashSet<_> =
        objects.values().filter(|body| body.len() == 4096).collect();
    assert_eq!(bodies.len(), 8, "bodies differ");
}

#[test]
fn answers_may_come_in_any_manner() {
    for manner in [Manner::Pieces, Manner::Chunks, Manner::Closing] {
        let (address, _) = server(manner);
        for point in bench(address, "--op get,list --size 4KiB --quick-ack").unwrap() {
            assert_eq!((point.errors, &point.first_error), (0, &None), "{point}");
            assert!(point.ops_per_s > 0.0, "{point}");
        }
    }
}

#[test]
fn bodies_larger_than_a_socket_take_them_pass() {
    let (address, objects) = server(Manner::Whole);
    for point in bench(address, "--op put,get --size 8MiB --signed-payload").unwrap() {
        assert_eq!((point.errors, &point.first_error), (0, &None), "{point}");
    }
    assert!(
        objects
            .lock()
            .unwrap()
            .values()
            .any(|body| body.len() == 8 << 20)
    );
}

#[test]
fn every_connection_has_something_to_write() {
    let (address, _) = server(Manner::Together(8));
    let more = "--op put --size 64 --objects 1 --threads 4 --concurrency 8";
    let points = bench(address, more).unwrap();
    assert_eq!((points[0].errors, points[0].concurrency), (0, 8));
}

#[test]
fn refusals_are_counted_and_told() {
    let (address, _) = server(Manner::Refusing);
    let points = bench(address, "--op get --size 64").unwrap();
    assert!(points[0].errors > 0);
    let first = points[0].first_error.as_deref();
    assert_eq!(first, Some("503 SlowDown"));
}

#[test]
fn wrong_bytes_are_not_measured() {
    let (address, _) = server(Manner::Corrupt);
    let result = bench(address, "--op get --size 64");
    assert!(matches!(result, Err(Error::Protocol { .. })), "{result:?}");
}

#[test]
fn a_wrong_key_is_told_before_anything_is_measured() {
    let (address, _) = server(Manner::Whole);
    let result = bench(address, "--access-key other");
    assert!(
        matches!(result, Err(Error::Refused { status: 403, .. })),
        "{result:?}"
    );
}

#[test]
fn a_point_is_written_as_documented() {
    let (address, _) = server(Manner::Whole);
    let points = bench(address, "--op head --size 1").unwrap();
    let json = serde_json::to_value(&points[0]).unwrap();
    let names: Vec<_> = json
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut expected = [
        "bench",
        "op",
        "size",
        "concurrency",
        "path",
        "seconds",
        "ops_per_s",
        "mb_per_s",
        "p50_us",
        "p99_us",
        "p999_us",
        "client_cpu_s_per_gb",
        "server_cpu_s_per_gb",
        "errors",
    ];
    expected.sort_unstable();
    let mut names = names;
    names.sort_unstable();
    assert_eq!(names, expected);
    assert!(json["server_cpu_s_per_gb"].is_null());
}

#[test]
fn nonsense_is_refused() {
    let (address, _) = server(Manner::Whole);
    for more in [
        "--size 5GiB",
        "--concurrency 0",
        "--seconds 0",
        "--seconds nan",
        "--seconds 1e19",
        "--warm-up -1",
        "--concurrency 17592186044416",
        "--objects 0",
    ] {
        let result = bench(address, more);
        assert!(matches!(result, Err(Error::Usage(_))), "{more}: {result:?}");
    }
}

#[test]
fn a_running_endpoint_needs_keys() {
    for (given, missing) in [
        ("", "--access-key"),
        ("--access-key key", "--secret-key"),
        ("--secret-key secret", "--access-key"),
    ] {
        for bench in ["s3", "direct", "kv"] {
            let line = format!("bench {bench} --endpoint http://127.0.0.1:1 {given}");
            let args = Args::parse_from(line.split_whitespace());
            let Err(Error::Usage(said)) = forebay_bench::run(&args, &Results::channel().0) else {
                panic!("{line}: not refused");
            };
            assert!(said.contains(missing), "{line}: {said}");
        }
    }
}
