//! What the engine's tests share.
#![allow(dead_code, reason = "each test program uses its part")]

#[path = "../../../mem/tests/alone/mod.rs"]
pub mod alone;
pub mod watched;

use std::sync::Arc;

use forebay_engine::{Config, Engine, OpenError};
use forebay_io::sim::{SimClock, SimDisk};
use forebay_io::{Clock, Disk, File, OpenOptions};
use forebay_mem::{BufMut, PAGE_BYTES, Pool};
use forebay_store::{
    Address, Body, ByteRange, NamespaceConfig, Result, Seal, Store, StoreOptions, Stored, Upload,
    VersionId,
};

/// Small enough that a test fills segments and grows the file.
pub fn config() -> Config {
    Config {
        segment_bytes: 1 << 20,
        growth_bytes: 1 << 20,
        reserve_bytes: 0,
        cache_bytes: 8 << 20,
        index_cache_bytes: 1 << 20,
        ..Config::default()
    }
}

/// Nothing of the index is kept in memory, and it is not read as a whole when it is opened.
pub fn uncached() -> Config {
    Config {
        index_cache_bytes: 0,
        index_check_bytes: 0,
        recent_bytes: 0,
        cache_bytes: 0,
        ..config()
    }
}

pub fn try_open(disk: &SimDisk, config: Config) -> std::result::Result<Engine<SimDisk>, OpenError> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    Engine::open(disk.clone(), clock, Pool::new(32 << 20), config)
}

pub fn open<D: Disk + Clone>(disk: &D, clock: Arc<dyn Clock>, config: Config) -> Engine<D> {
    Engine::open(disk.clone(), clock, Pool::new(64 << 20), config).unwrap()
}

pub fn tenant(name: &str) -> NamespaceConfig {
    NamespaceConfig {
        tenant: name.to_owned(),
        ..NamespaceConfig::default()
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

pub fn fill(mut buf: BufMut, from: &[u8]) -> (forebay_mem::Buf, usize) {
    let len = buf.capacity().min(from.len());
    buf.set_len(len);
    buf.copy_from_slice(&from[..len]);
    (buf.freeze(), len)
}

pub async fn put<S: Store>(store: &S, address: Address<'_>, value: &[u8]) -> Result<Stored> {
    put_with(
        store,
        address,
        value,
        StoreOptions::default(),
        Seal::default(),
    )
    .await
}

pub async fn put_with<S: Store>(
    store: &S,
    address: Address<'_>,
    value: &[u8],
    options: StoreOptions,
    seal: Seal,
) -> Result<Stored> {
    let mut upload = store.store(address, options).await?;
    let mut rest = value;
    while !rest.is_empty() {
        let (buf, len) = fill(upload.buffer(rest.len()).await?, rest);
        upload.write(buf).await?;
        rest = &rest[len..];
    }
    upload.commit(seal).await
}

/// Stores a value that expires at that time.
pub async fn put_until<S: Store>(
    store: &S,
    address: Address<'_>,
    value: &[u8],
    expires: u64,
) -> Result<Stored> {
    let seal = Seal {
        expires: Some(expires),
        ..Seal::default()
    };
    put_with(store, address, value, StoreOptions::default(), seal).await
}

pub async fn get<S: Store>(store: &S, address: Address<'_>) -> Result<Vec<u8>> {
    get_range(store, address, ByteRange::Full).await
}

pub async fn get_range<S: Store>(
    store: &S,
    address: Address<'_>,
    range: ByteRange,
) -> Result<Vec<u8>> {
    let object = store.retrieve(address, None, range).await?;
    read_out(object.body).await
}

pub async fn get_version<S: Store>(
    store: &S,
    address: Address<'_>,
    version: VersionId,
) -> Result<Vec<u8>> {
    let whole = ByteRange::Full;
    let object = store.retrieve(address, Some(version), whole).await?;
    read_out(object.body).await
}

async fn read_out(mut body: impl Body) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    while let Some(buf) = body.next().await? {
        value.extend_from_slice(&buf);
    }
    Ok(value)
}

/// The length of a file of the disk, in bytes.
pub fn length(disk: &SimDisk, name: &str) -> u64 {
    let options = OpenOptions {
        create: false,
        read_only: true,
        direct: false,
    };
    disk.open(name, options).unwrap().len().unwrap()
}

/// Panics when space is taken that no value refers to, in the running store.
pub async fn check_space<D: Disk + Clone>(engine: &Engine<D>) {
    engine.checkpoint().await.unwrap();
    // Each command has the journal look for what readers let go; what they kept comes back two looks later.
    for _ in 0..4 {
        engine.sweep().await.unwrap();
    }
    let audit = engine.audit().unwrap();
    assert_eq!((audit.leaked, audit.doubled), (0, 0), "{audit:?}");
}

/// A small generator, so that a seed means the same for ever.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

fn seeds() -> Vec<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    match number("FOREBAY_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("FOREBAY_SEEDS").unwrap_or(12)).collect(),
    }
}

/// Runs a test for each seed; one that fails is printed.
pub fn for_each_seed(test: impl AsyncFn(u64)) {
    for seed in seeds() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let run = std::panic::AssertUnwindSafe(|| runtime.block_on(test(seed)));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("FOREBAY_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// All bytes of a file; zeroes where they cannot be read.
pub fn content(disk: &SimDisk, name: &str) -> Vec<u8> {
    let options = OpenOptions {
        create: false,
        read_only: true,
        direct: false,
    };
    let file = disk.open(name, options).unwrap();
    let mut content = vec![0; file.len().unwrap() as usize];
    if file.read_exact_at(0, &mut content).is_err() {
        for (at, sector) in content.chunks_mut(512).enumerate() {
            let read = file.read_exact_at(512 * at as u64, sector);
            read.unwrap_or_else(|_| sector.fill(0));
        }
    }
    content
}

/// Where the index holds these bytes.
fn places_in_index(disk: &SimDisk, needle: &[u8]) -> Vec<u64> {
    let index = content(disk, "index");
    let windows = index.windows(needle.len()).enumerate();
    let places = windows.filter(|(_, window)| *window == needle);
    let places: Vec<_> = places.map(|(at, _)| at as u64).collect();
    assert!(!places.is_empty());
    places
}

/// Flips a bit wherever the index holds these bytes.
pub fn rot_in_index(disk: &SimDisk, needle: &[u8]) {
    for at in places_in_index(disk, needle) {
        disk.rot("index", at, 3).unwrap();
    }
}

/// Makes sectors of the index unreadable that hold these bytes.
pub fn spoil_in_index(disk: &SimDisk, needle: &[u8]) {
    for at in places_in_index(disk, needle) {
        disk.spoil("index", at).unwrap();
    }
}

/// Where the row of the map is in the index: its value, behind its key, in a page of its own.
pub fn places_of_map(disk: &SimDisk) -> Vec<u64> {
    // A run of granules that are taken.
    const TAKEN: [u8; 64] = [0xff; 64];
    let index = content(disk, "index");
    let windows = index.windows(16 + TAKEN.len()).enumerate();
    // Where keys and values end in a page with one row of a bitmap, and the row.
    let row = [&[20, 0, 0, 0, 24, 16, 0, 0], &[0; 8][..], &TAKEN].concat();
    let taken = windows.filter(|(_, window)| *window == row);
    let places: Vec<u64> = taken.map(|(at, _)| at as u64 + 16).collect();
    assert!(!places.is_empty());
    places
}

/// Where the groups in the journal of a store that was just made begin.
pub fn groups(disk: &SimDisk) -> Vec<usize> {
    let journal = 2 * PAGE_BYTES + 2 * config().segment_bytes as usize;
    let data = content(disk, "data");
    (2 * PAGE_BYTES..journal)
        .step_by(PAGE_BYTES)
        .filter(|at| data[*at..].starts_with(b"FBGR"))
        .collect()
}

/// Another content for a file, on the medium.
pub fn replace(disk: &SimDisk, name: &str, content: &[u8]) {
    let options = OpenOptions {
        create: true,
        read_only: false,
        direct: false,
    };
    let file = disk.open(name, options).unwrap();
    file.set_len(content.len() as u64).unwrap();
    file.write_all_at(0, content).unwrap();
    file.sync_data().unwrap();
}
