//! Measures messages and payload over shared memory between two threads.
//!
//! `cargo run --release -p forebay-fabric --example shm_rate [SECONDS [pinned]]`; pinned, each thread has a processor.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_fabric::sessions::{Limits, Principal};
use forebay_fabric::shm::{self, ShmLink};
use forebay_fabric::{
    Access, Clock, CloseReason, Connection, Link, RemoteRange, Sessions, SystemClock,
};
use forebay_mem::{Pool, Region};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

const PRINCIPAL: Principal<'_> = Principal {
    tenant: "tenant",
    id: "key",
    secret: "secret",
};

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(2.0));
    round_trips(time);
    one_way(time, 64);
    one_way(time, 4096);
    idle_links(1000);
    payload(time, 4096);
    payload(time, 1 << 20);
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// Keeps this thread on one processor, if that was asked for.
fn pin(processor: usize) {
    if std::env::args().nth(2).as_deref() == Some("pinned") {
        let mut set = rustix::thread::CpuSet::new();
        set.set(processor);
        rustix::thread::sched_setaffinity(None, &set).expect("a processor");
    }
}

/// Runs `server` on a thread with one end of a link, and `client` here with the other.
fn between<T>(
    server: impl AsyncFnOnce(Connection) + Send + 'static,
    client: impl AsyncFnOnce(Arc<ShmLink>) -> T,
) -> T {
    let (here, there) = std::os::unix::net::UnixStream::pair().expect("sockets");
    here.set_nonblocking(true).expect("sockets");
    there.set_nonblocking(true).expect("sockets");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let sessions = Arc::new(Sessions::new(clock, Limits::default()));
    let session = sessions
        .open_with_random_key(PRINCIPAL, Duration::from_secs(600))
        .expect("a session");
    let serving = thread::spawn(move || {
        pin(1);
        runtime().block_on(async {
            let stream = UnixStream::from_std(here).expect("a socket");
            let accepted = shm::accept(stream, &sessions).await.expect("a link");
            server(accepted.link).await;
        });
    });
    pin(0);
    let result = runtime().block_on(async {
        let stream = UnixStream::from_std(there).expect("a socket");
        let link = shm::connect(stream, &session.proof())
            .await
            .expect("a link");
        let link = Arc::new(link);
        let result = client(link.clone()).await;
        link.close(CloseReason::Done);
        result
    });
    serving.join().expect("no panic");
    result
}

async fn echo(link: Connection) {
    let mut message = Vec::new();
    while let Ok(Some(())) = link.recv(&mut message).await {
        if link.send(&message).await.is_err() {
            return;
        }
    }
}

fn round_trips(time: Duration) {
    let mut times = between(echo, async |link| {
        let mut times = Vec::new();
        let mut message = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < time {
            let sent = Instant::now();
            link.send(&[7; 64]).await.expect("sent");
            link.recv(&mut message).await.expect("received");
            times.push(sent.elapsed());
        }
        times
    });
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_nanos() as f64 / 1e3;
    println!(
        "round trip of 64 B: p50 {:.2} us, p99 {:.2} us, p99.9 {:.2} us ({} trips)",
        at(0.5),
        at(0.99),
        at(0.999),
        times.len()
    );
}

fn one_way(time: Duration, len: usize) {
    let began = cpu();
    let (count, took) = between(
        async |link| {
            let mut message = Vec::new();
            let mut count = 0u64;
            while let Ok(Some(())) = link.recv(&mut message).await {
                count += 1;
                if message[0] == 1 {
                    link.send(&count.to_le_bytes()).await.expect("sent");
                }
            }
        },
        async |link| {
            let mut message = vec![0; len];
            let begin = Instant::now();
            while begin.elapsed() < time {
                for _ in 0..256 {
                    link.send(&message).await.expect("sent");
                }
            }
            message[0] = 1;
            link.send(&message).await.expect("sent");
            let mut count = Vec::new();
            link.recv(&mut count).await.expect("received");
            let count = u64::from_le_bytes(*count.first_chunk().expect("a number"));
            (count, begin.elapsed())
        },
    );
    println!(
        "one way, {len} B: {:.2} M messages/s, {} ns of processor time each",
        count as f64 / took.as_secs_f64() / 1e6,
        each(began, count)
    );
}

/// Processor time that this process has used, in clock ticks of 10 ms.
fn cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let mut fields = text.split(' ').skip(13);
    let mut ticks = || fields.next().and_then(|ticks| ticks.parse::<u64>().ok());
    ticks().expect("a number") + ticks().expect("a number")
}

/// Processor time of both threads since `began`, in nanoseconds for each of `count`.
fn each(began: u64, count: u64) -> u64 {
    (cpu() - began) * 10_000_000 / count
}

/// What an idle link costs: memory of the process, and processor time.
fn idle_links(count: usize) {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
        let pages = text
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse::<u64>().ok());
        pages.expect("a number") * 4
    };
    runtime().block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let sessions = Sessions::new(clock, Limits::default());
        let before = resident();
        let mut kept = Vec::new();
        for _ in 0..count {
            let session = sessions
                .open_with_random_key(PRINCIPAL, Duration::from_secs(600))
                .expect("a session");
            let (here, there) = UnixStream::pair().expect("sockets");
            let proof = session.proof();
            let (server, client) =
                tokio::join!(shm::accept(here, &sessions), shm::connect(there, &proof));
            let (server, client) = (server.expect("a link"), client.expect("a link"));
            let link = server.link.clone();
            tokio::spawn(async move { link.recv(&mut Vec::new()).await.map(drop) });
            kept.push((server, client));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let each = (resident() - before) as f64 / count as f64;
        let began = cpu();
        tokio::time::sleep(Duration::from_secs(2)).await;
        println!(
            "idle: {each:.1} KiB for both ends of a link, {} ticks of processor time in 2 s for {count}",
            cpu() - began
        );
    });
}

fn payload(time: Duration, len: usize) {
    let began = cpu();
    let (count, took) = between(
        async move |link| {
            let pool = Pool::new(64 << 20);
            let mut buf = pool.take(len).await;
            buf.set_len(len.min(buf.capacity()));
            let buf = buf.freeze();
            let mut message = Vec::new();
            while let Ok(Some(())) = link.recv(&mut message).await {
                let to = RemoteRange {
                    stag: forebay_fabric::Stag(u32::from_le_bytes(
                        *message.first_chunk().expect("a name"),
                    )),
                    offset: 0,
                    len: len as u64,
                };
                link.write(to, vec![buf.clone()]).await.expect("written");
                link.send(b"done").await.expect("sent");
            }
        },
        async |link| {
            let region = Region::memfd(len).expect("memory");
            let memory = region.slice(0..len).expect("all of it");
            let exposure = link.expose(memory, Access::Write).await.expect("exposed");
            let stag = exposure.stag.0.to_le_bytes();
            let mut message = Vec::new();
            let begin = Instant::now();
            let mut count = 0u64;
            for _ in 0..32 {
                link.send(&stag).await.expect("sent");
            }
            while begin.elapsed() < time {
                link.recv(&mut message).await.expect("received");
                link.send(&stag).await.expect("sent");
                count += 1;
            }
            for _ in 0..32 {
                link.recv(&mut message).await.expect("received");
            }
            let took = begin.elapsed();
            link.withdraw(exposure).await;
            (count + 32, took)
        },
    );
    let rate = count as f64 / took.as_secs_f64();
    println!(
        "asked for and written, {len} B, 32 in flight: {:.0} k/s, {:.2} GB/s, {} ns of processor time each",
        rate / 1e3,
        rate * len as f64 / 1e9,
        each(began, count)
    );
}
