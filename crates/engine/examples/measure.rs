//! Rates and CPU time of the engine by itself: `measure DIR [SECONDS]`. CPU is that of the whole process, device threads included.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_engine::{Config, Engine};
use forebay_io::SystemClock;
use forebay_io::files::Directory;
use forebay_mem::Pool;
use forebay_store::{
    Address, Body, ByteRange, NamespaceConfig, Result, Seal, Store, StoreOptions, Upload,
};

type Leaf = Engine<Directory>;

fn open(path: &PathBuf, cache_bytes: u64) -> Leaf {
    let config = Config {
        cache_bytes,
        ..Config::default()
    };
    let disk = Directory::open(path).expect("a directory");
    let clock = Arc::new(SystemClock::default());
    Engine::open(disk, clock, Pool::new(1 << 30), config).expect("a store")
}

async fn put(store: &Leaf, key: &[u8], len: usize) -> Result<()> {
    let options = StoreOptions {
        size: Some(len as u64),
        ..StoreOptions::default()
    };
    let mut upload = store.store(Address::object("n", key), options).await?;
    let mut rest = len;
    while rest > 0 {
        let mut buf = upload.buffer(rest).await?;
        let taken = buf.capacity().min(rest);
        buf.set_len(taken);
        upload.write(buf.freeze()).await?;
        rest -= taken;
    }
    upload.commit(Seal::default()).await.map(drop)
}

async fn get(store: &Leaf, key: &[u8]) -> Result<()> {
    let address = Address::object("n", key);
    let mut object = store.retrieve(address, None, ByteRange::Full).await?;
    while let Some(buf) = object.body.next().await? {
        std::hint::black_box(buf.len());
    }
    Ok(())
}

/// Ticks of CPU time, of 10 ms each.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

struct Point {
    op: &'static str,
    size: usize,
    in_flight: usize,
    seconds: u64,
    /// Distinct keys.
    keys: u64,
}

async fn measure(store: &Leaf, point: Point) {
    let Point {
        op,
        size,
        in_flight,
        seconds,
        keys,
    } = point;
    let next = Arc::new(AtomicU64::new(0));
    let (begin, cpu_begin, before) = (Instant::now(), cpu(), store.metrics());
    let end = begin + Duration::from_secs(seconds);
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| {
            let (store, next) = (store.clone(), next.clone());
            tokio::spawn(async move {
                while Instant::now() < end {
                    let number = next.fetch_add(1, Relaxed);
                    let key = format!("{size}/{:010}", number.wrapping_mul(7919) % keys);
                    match op {
                        "put" => put(&store, key.as_bytes(), size).await.expect("a put"),
                        _ => get(&store, key.as_bytes()).await.expect("a get"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task");
    }
    let (wall, cpu) = (
        begin.elapsed().as_secs_f64(),
        (cpu() - cpu_begin).as_secs_f64(),
    );
    let done = next.load(Relaxed) as f64;
    let after = store.metrics();
    println!(
        "{op} {size} x{in_flight}: {:.0}/s {:.0} MB/s, {:.2} us CPU each, {:.1} records a group",
        done / wall,
        done * size as f64 / wall / 1e6,
        cpu * 1e6 / done,
        (after.records - before.records) as f64 / (after.groups - before.groups).max(1) as f64,
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().expect("a directory"));
    let seconds = args.next().and_then(|text| text.parse().ok()).unwrap_or(3);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let small = 20_000;
        let begin = Instant::now();
        let store = open(&path, 256 << 20);
        let replayed = store.metrics().replayed_groups;
        println!(
            "opened in {:?}, {replayed} groups replayed",
            begin.elapsed()
        );
        if store.namespace("n").is_err() {
            let config = NamespaceConfig {
                tenant: "t".to_owned(),
                ..NamespaceConfig::default()
            };
            store
                .create_namespace("n", config)
                .await
                .expect("a namespace");
        }
        let point = |op, size, in_flight, keys| Point {
            op,
            size,
            in_flight,
            seconds,
            keys,
        };
        measure(&store, point("put", 4096, 64, small)).await;
        measure(&store, point("put", 4096, 1, small)).await;
        measure(&store, point("put", 1 << 20, 8, 2000)).await;
        for number in 0..small {
            put_missing(&store, 4096, number).await;
        }
        for number in 0..2000 {
            put_missing(&store, 1 << 20, number).await;
        }
        measure(&store, point("get", 4096, 1, 1000)).await;
        measure(&store, point("get", 4096, 1, 1000)).await;
        store.close();
        drop(store);
        let begin = Instant::now();
        let store = open(&path, 0);
        println!("opened in {:?}", begin.elapsed());
        measure(&store, point("get", 1 << 20, 16, 2000)).await;
        measure(&store, point("get", 4096, 32, small)).await;
        store.close();
    });
}

async fn put_missing(store: &Leaf, size: usize, number: u64) {
    let key = format!("{size}/{number:010}");
    let address = Address::object("n", key.as_bytes());
    if store.stat(address, None).await.is_err() {
        put(store, key.as_bytes(), size).await.expect("a put");
    }
}
