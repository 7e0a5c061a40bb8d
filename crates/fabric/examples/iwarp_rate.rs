//! How fast one iWARP link is over loopback: values written to, and read from, a client by a server that holds one value. Each end
//! has a thread of its own.
//!
//! `cargo run --release --example iwarp_rate -- [get|put] [BYTES] [IN FLIGHT] [SECONDS] [crc]`
#![forbid(unsafe_code)]

use std::env::args;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use forebay_fabric::iwarp::{IwarpLink, Options, accept, connect};
use forebay_fabric::{Access, CloseReason, Link, RemoteRange, Stag};
use forebay_mem::{BLOCK_MAX_BYTES, Buf, Pool, Region};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::Notify;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = args().skip(1);
    let put = args.next().as_deref() == Some("put");
    let mut number = |default| {
        args.next()
            .and_then(|arg| arg.parse().ok())
            .unwrap_or(default)
    };
    let (bytes, in_flight, seconds) = (number(4096), number(8), number(3));
    let options = Options {
        crc: Some(args.next().is_some()),
        ..Options::default()
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::from_std(listener).expect("a listener");
            let (stream, _) = listener.accept().await.expect("a client");
            let (link, ()) = accept(stream, options, |_| Some(())).await.expect("a link");
            serve(Arc::new(link), put).await;
        });
    });
    let (count, took) = runtime().block_on(async {
        let stream = TcpStream::connect(address).await?;
        let link = connect(stream, b"rate", options).await?;
        drive(Arc::new(link), bytes, in_flight, seconds).await
    })?;
    server.join().map_err(|_| "the server failed")?;
    let rate = count as f64 / took.as_secs_f64();
    println!(
        "{} of {bytes} bytes, {in_flight} in flight: {rate:.0}/s, {:.2} GB/s",
        if put { "put" } else { "get" },
        rate * bytes as f64 / 1e9
    );
    Ok(())
}

fn runtime() -> tokio::runtime::Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A request is the range to write or read; its answer the same bytes.
async fn serve(link: Arc<IwarpLink>, put: bool) {
    let pool = Pool::new(64 << 20);
    let mut block = pool.take(BLOCK_MAX_BYTES).await;
    block.set_len(BLOCK_MAX_BYTES);
    let value = block.freeze();
    let mut message = Vec::new();
    while let Ok(Some(())) = link.recv(&mut message).await {
        let to = decode(&message);
        if put {
            let (link, pool, message) = (link.clone(), pool.clone(), message.clone());
            tokio::spawn(async move {
                let into = pool.take(to.len as usize).await;
                let got = link.read(to, into).await.expect("the client's bytes");
                drop(got.freeze());
                link.send(&message).await.expect("an answer");
            });
        } else {
            let value: Buf = value.slice(0..to.len as usize);
            link.write(to, vec![value]).await.expect("a write");
            link.send(&message).await.expect("an answer");
        }
    }
}

async fn drive(
    link: Arc<IwarpLink>,
    bytes: usize,
    in_flight: usize,
    seconds: usize,
) -> Result<(u64, Duration), Box<dyn Error>> {
    let region = Region::anonymous(bytes * in_flight)?;
    let memory = region.slice(0..region.len()).ok_or("no memory")?;
    assert!(memory.write(0, &vec![1; region.len()]));
    let exposure = link.expose(memory, Access::ReadWrite).await?;
    let answered: Arc<Vec<Notify>> = Arc::new((0..in_flight).map(|_| Notify::new()).collect());
    tokio::spawn({
        let (link, answered) = (link.clone(), answered.clone());
        async move {
            let mut message = Vec::new();
            while let Ok(Some(())) = link.recv(&mut message).await {
                answered[decode(&message).offset as usize / bytes].notify_one();
            }
        }
    });
    let count = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds as u64);
    let mut tasks = Vec::new();
    for slot in 0..in_flight {
        let (link, answered, count) = (link.clone(), answered.clone(), count.clone());
        let stag = exposure.stag;
        tasks.push(tokio::spawn(async move {
            let range = RemoteRange {
                stag,
                offset: (slot * bytes) as u64,
                len: bytes as u64,
            };
            while Instant::now() < end {
                link.send(&encode(range)).await.expect("a request");
                answered[slot].notified().await;
                count.fetch_add(1, Relaxed);
            }
        }));
    }
    for task in tasks {
        task.await?;
    }
    let took = start.elapsed();
    link.close(CloseReason::Done);
    Ok((count.load(Relaxed), took))
}

fn encode(range: RemoteRange) -> [u8; 20] {
    let mut message = [0; 20];
    message[..4].copy_from_slice(&range.stag.0.to_le_bytes());
    message[4..12].copy_from_slice(&range.offset.to_le_bytes());
    message[12..].copy_from_slice(&range.len.to_le_bytes());
    message
}

fn decode(message: &[u8]) -> RemoteRange {
    let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("8 bytes"));
    RemoteRange {
        stag: Stag(u32::from_le_bytes(
            message[..4].try_into().expect("4 bytes"),
        )),
        offset: word(4),
        len: word(12),
    }
}
