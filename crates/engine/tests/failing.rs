//! A disk that fails and fills up at random: what was acknowledged stays, what failed is as it was, or new where the store says that it
//! does not know, and bytes are right or refused. Once the disk works again so does the store, at the latest when it is opened again.
//!
//! `FOREBAY_SEEDS=n` tries more seeds, `FOREBAY_SEED=s` one.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::{Engine, OpenError};
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_mem::Pool;
use forebay_store::{Address, DeleteOptions, ErrorKind, Result, Scope, Store, Usage};
use support::{Random, bytes, config, for_each_seed, get, length, put, tenant};

const SIZES: [usize; 7] = [7, 2048, 2049, 40_000, 70_000, 300_000, 1_100_000];
const KEYS: u64 = 8;

/// What makes a value: seed and length of its bytes.
type Made = (u64, usize);

struct World {
    random: Random,
    disk: SimDisk,
    engine: Engine<SimDisk>,
    /// What each key may hold.
    possible: BTreeMap<Vec<u8>, Vec<Option<Made>>>,
    made: u64,
}

fn try_open(disk: &SimDisk) -> std::result::Result<Engine<SimDisk>, OpenError> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    Engine::open(disk.clone(), clock, Pool::new(16 << 20), config())
}

/// What a disk that fails leads to.
fn is_of_the_disk(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::ReadOnly | ErrorKind::OutcomeUnknown
    )
}

impl World {
    fn key(&mut self) -> Vec<u8> {
        format!("k{}", self.random.below(KEYS)).into_bytes()
    }

    /// Stores or deletes something; the model follows.
    async fn change(&mut self) -> Result<()> {
        let key = self.key();
        let address = Address::object("n", &key);
        self.made += 1;
        let next = match self.random.below(4) {
            0 => None,
            _ => Some((self.made, SIZES[self.random.below(7) as usize])),
        };
        let done = match next {
            Some((seed, len)) => put(&self.engine, address, &bytes(seed, len))
                .await
                .map(drop),
            None => {
                let options = DeleteOptions::default();
                self.engine.delete(address, options).await.map(drop)
            }
        };
        let states = self.possible.entry(key).or_insert_with(|| vec![None]);
        match &done {
            Ok(()) => *states = vec![next],
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => states.push(next),
            Err(_) => {}
        }
        done
    }

    /// Reads a key; what comes must be possible.
    async fn look(&self, key: &[u8]) -> Result<Option<Made>> {
        let unknown = vec![None];
        let states = self.possible.get(key).unwrap_or(&unknown);
        let found = match get(&self.engine, Address::object("n", key)).await {
            Ok(value) => {
                let same = |made: &Made| made.1 == value.len() && bytes(made.0, made.1) == value;
                let known = states.iter().flatten().copied().find(same);
                Some(known.unwrap_or_else(|| panic!("{key:?} holds what it cannot: {states:?}")))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        assert!(states.contains(&found), "{key:?}: {found:?} of {states:?}");
        Ok(found)
    }

    /// Errors from now on, of kinds and probabilities that are chosen.
    fn break_disk(&mut self) {
        let mut chance = |odds: u64| match self.random.below(odds) {
            0 => [0.005, 0.05, 0.5][self.random.below(3) as usize],
            _ => 0.0,
        };
        let faults = Faults {
            read_error: chance(2),
            write_error: chance(2),
            sync_error: chance(4),
            ..Faults::default()
        };
        self.disk.set_faults(faults);
        if self.random.below(3) == 0 {
            let held: u64 = ["data", "index"]
                .map(|name| length(&self.disk, name))
                .iter()
                .sum();
            self.disk
                .set_capacity(Some(held + self.random.below(4 << 20)));
        }
    }

    fn mend_disk(&self) {
        self.disk.set_faults(Faults::default());
        self.disk.set_capacity(None);
    }

    /// The store is opened again, perhaps after power loss or on a disk that still fails.
    fn reopen(&mut self) {
        self.engine.close();
        if self.random.below(2) == 0 {
            self.disk = self.disk.crash(self.random.below(u64::MAX));
        }
        for _ in 0..self.random.below(3) {
            self.break_disk();
            match try_open(&self.disk) {
                Ok(engine) => engine.close(),
                Err(OpenError::Io { .. } | OpenError::Journal { .. }) => {}
                Err(OpenError::Store(error) | OpenError::Index(error)) => {
                    assert!(is_of_the_disk(error.kind()), "{error:?}");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        self.mend_disk();
        self.engine = try_open(&self.disk).unwrap();
    }

    /// Everything is what it may be, and accounts are exact.
    async fn check(&mut self) {
        let mut held = Usage::default();
        let keys: Vec<_> = self.possible.keys().cloned().collect();
        for key in keys {
            let found = self.look(&key).await.unwrap();
            if let Some((_, len)) = found {
                held.objects += 1;
                held.bytes += len as u64;
            }
            self.possible.insert(key, vec![found]);
        }
        assert_eq!(self.engine.usage(Scope::Namespace("n")).unwrap(), held);
        assert_eq!(self.engine.usage(Scope::Tenant("t")).unwrap(), held);
        let audit = self.engine.audit().unwrap();
        assert_eq!((audit.leaked, audit.doubled), (0, 0));
        assert!(self.engine.findings().is_empty());
    }
}

async fn one_seed(seed: u64) {
    let disk = SimDisk::new(seed);
    let engine = try_open(&disk).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let mut world = World {
        random: Random::new(seed),
        disk,
        engine,
        possible: BTreeMap::new(),
        made: seed << 32,
    };
    for _generation in 0..4 {
        for _ in 0..world.random.below(20) {
            world.change().await.unwrap();
        }
        world.break_disk();
        for _ in 0..40 {
            if let Err(error) = world.change().await {
                assert!(is_of_the_disk(error.kind()), "{error:?}");
            }
            let key = world.key();
            if let Err(error) = world.look(&key).await {
                assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
            }
        }
        world.mend_disk();
        for key in world.possible.keys() {
            world.look(key).await.unwrap();
        }
        match world.engine.metrics().read_only {
            true => {
                let error = world.change().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error:?}");
            }
            false => world.change().await.unwrap(),
        }
        world.reopen();
        world.check().await;
    }
}

#[test]
fn errors_of_the_disk_lose_nothing_that_was_acknowledged() {
    for_each_seed(one_seed);
}

/// What a failed sync let go of is still seen when the store is opened again: once it was told it has to stay.
async fn an_error_then_power_loss(seed: u64) {
    for at in 0..12 {
        let disk = SimDisk::new(seed);
        let engine = try_open(&disk).unwrap();
        engine.create_namespace("n", tenant("t")).await.unwrap();
        let address = Address::object("n", b"k");
        disk.set_faults(Faults {
            error_at: Some(disk.operations().total() + at),
            ..Faults::default()
        });
        put(&engine, address, &bytes(seed, 300_000)).await.ok();
        drop(engine);
        let seen = get(&try_open(&disk).unwrap(), address).await;
        for crash in 0..4 {
            let engine = try_open(&disk.crash(crash)).unwrap();
            let found = get(&engine, address).await;
            assert_eq!(
                found.map_err(|error| error.kind()),
                seen.as_ref().map(Vec::clone).map_err(|error| error.kind())
            );
        }
    }
}

#[test]
fn what_was_told_after_a_failed_sync_stays() {
    for_each_seed(an_error_then_power_loss);
}
