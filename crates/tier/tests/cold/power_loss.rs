//! Power loss at random moments while values go and come back: each is whole, here or there, and no copy is left over.
//!
//! `FOREBAY_SEEDS=n` tries more seeds, `FOREBAY_SEED=s` one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use forebay_engine::Engine;
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_mem::{Buf, Pool};
use forebay_store::suite::TestClock;
use forebay_store::{
    Address, ByteRange, DeleteOptions, Durability, ErrorKind, NamespaceConfig, Result, Seal, Store,
    StoreOptions, Upload,
};
use forebay_tier::cold::Cold;

use crate::far::Far;
use crate::support::{content, drain, object, over, swept_twice, versions};

const SIZES: [usize; 5] = [7, 2049, 40_000, 300_000, 1_500_000];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

/// Seed and length of a value's bytes.
type Made = Option<(u64, usize)>;

/// What each key may hold: what was acknowledged last, and what came after it without an answer; all of it in a relaxed namespace.
type Possible = BTreeMap<String, Vec<Made>>;

fn open(disk: &SimDisk) -> Engine<SimDisk> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let config = forebay_engine::Config {
        segment_bytes: 1 << 20,
        growth_bytes: 1 << 20,
        reserve_bytes: 0,
        cache_bytes: 4 << 20,
        index_cache_bytes: 1 << 20,
        ..forebay_engine::Config::default()
    };
    Engine::open(disk.clone(), clock, Pool::new(32 << 20), config).expect("open")
}

async fn put(cold: &Cold<Engine<SimDisk>>, key: &str, made: Made) -> Result<()> {
    let Some((seed, len)) = made else {
        let deleted = cold.delete(object(key), DeleteOptions::default());
        return deleted.await.map(drop);
    };
    let mut upload = cold.store(object(key), StoreOptions::default()).await?;
    upload.write(Buf::from(content(seed, len))).await?;
    upload.commit(Seal::default()).await.map(drop)
}

/// One step; tells whether the store still takes changes.
async fn step(
    cold: &Cold<Engine<SimDisk>>,
    random: &mut Random,
    possible: &mut Possible,
    relaxed: bool,
    made: &mut u64,
) -> bool {
    let mover = cold.mover().expect("a bucket");
    let key = format!("k{}", random.below(6));
    let alive = |error: &forebay_store::StoreError| {
        !matches!(
            error.kind(),
            ErrorKind::OutcomeUnknown | ErrorKind::ReadOnly | ErrorKind::Io
        )
    };
    match random.below(9) {
        0..=2 => {
            *made += 1;
            let size = SIZES[random.below(SIZES.len() as u64) as usize];
            let next = (random.below(5) > 0).then_some((*made, size));
            let states = possible.entry(key.clone()).or_insert_with(|| vec![None]);
            match put(cold, &key, next).await {
                Ok(()) if relaxed => states.push(next),
                Ok(()) => *states = vec![next],
                Err(error) => {
                    states.push(next);
                    return alive(&error);
                }
            }
            true
        }
        3..=5 => match cold.stat(object(&key), None).await {
            Ok(meta) => match mover.move_out(object(&key), &meta).await {
                Ok(()) => true,
                Err(error) => alive(&error),
            },
            Err(error) => alive(&error),
        },
        6 => match mover.recall(object(&key), None).await {
            Ok(_) => true,
            Err(error) => alive(&error),
        },
        7 => mover.tidy().await,
        _ => match mover.sweep().await {
            Ok(_) => true,
            Err(error) => alive(&error),
        },
    }
}

async fn check(cold: &Cold<Engine<SimDisk>>, far: &Far, possible: &mut Possible) {
    let mover = cold.mover().expect("a bucket");
    swept_twice(mover).await;
    let mut away = HashSet::new();
    for (key, meta) in versions(cold, "ns").await {
        let address = Address::object("ns", &key);
        if mover
            .is_cold(address, Some(meta.version))
            .await
            .expect("there")
        {
            away.insert(key);
        }
    }
    assert_eq!(
        far.names().await.len(),
        away.len(),
        "a copy for each, and no other"
    );
    for (key, states) in possible {
        let found = match cold.retrieve(object(key), None, ByteRange::Full).await {
            Ok(found) => Some(drain(found).await.expect("whole")),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
                None
            }
        };
        let holds = |made: &&Made| made.map(|(seed, len)| content(seed, len)) == found;
        let known = states.iter().find(holds);
        let known = *known.unwrap_or_else(|| panic!("{key} holds what it never held: {states:?}"));
        *states = vec![known];
    }
}

async fn one_seed(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    let relaxed = seed.is_multiple_of(3);
    let clock = TestClock::default();
    let far = Far::default();
    let mut disk = SimDisk::new(seed);
    let mut engine = open(&disk);
    let config = NamespaceConfig {
        tenant: "acme".to_owned(),
        durability: match relaxed {
            true => Durability::Relaxed { within_ms: 1000 },
            false => Durability::Sync,
        },
        ..NamespaceConfig::default()
    };
    engine.create_namespace("ns", config).await.expect("create");
    let mut possible = Possible::new();
    let mut made = seed << 32;
    for _generation in 0..4 {
        let cold = over(Arc::new(engine.clone()), &far, &clock);
        for _ in 0..random.below(30) {
            assert!(step(&cold, &mut random, &mut possible, relaxed, &mut made).await);
        }
        disk.set_faults(Faults {
            power_off_at: Some(disk.operations().total() + random.below(60)),
            ..Faults::default()
        });
        for _ in 0..60 {
            if !step(&cold, &mut random, &mut possible, relaxed, &mut made).await {
                break;
            }
        }
        disk = disk.crash(random.below(u64::MAX));
        drop((cold, engine));
        engine = open(&disk);
        // Before anything changes.
        let audit = engine.audit().expect("audit");
        assert_eq!((audit.leaked, audit.doubled), (0, 0));
        let cold = over(Arc::new(engine.clone()), &far, &clock);
        check(&cold, &far, &mut possible).await;
    }
}

#[test]
fn values_survive_wherever_their_bytes_are() {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        text.parse::<u64>().ok()
    };
    let seeds = match number("FOREBAY_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("FOREBAY_SEEDS").unwrap_or(6),
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        eprintln!("FOREBAY_SEED={seed}");
        runtime.block_on(one_seed(seed));
    }
}

/// Deletes are answered an hour before they are durable.
#[tokio::test]
async fn a_process_that_ends_leaves_no_copy_of_what_ended_before() {
    let (far, clock) = (Far::default(), TestClock::default());
    let engine = open(&SimDisk::new(7));
    let config = NamespaceConfig {
        tenant: "acme".to_owned(),
        durability: Durability::Relaxed {
            within_ms: 3_600_000,
        },
        ..NamespaceConfig::default()
    };
    engine.create_namespace("ns", config).await.expect("create");
    let cold = over(Arc::new(engine), &far, &clock);
    let mover = cold.mover().expect("a bucket");
    for key in ["stays", "ends"] {
        put(&cold, key, Some((1, 40_000))).await.expect("put");
        let meta = cold.stat(object(key), None).await.expect("there");
        mover.move_out(object(key), &meta).await.expect("move");
    }
    put(&cold, "ends", None).await.expect("delete");
    assert!(mover.tidy().await);
    assert_eq!(far.names().await.len(), 2, "a crash may bring it back");
    assert!(mover.close().await);
    assert_eq!(far.names().await.len(), 1);
}
