//! Power loss at random moments, again and again, also during recovery: what was acknowledged is there, what was not is whole or
//! absent, usage is exact, and no granule is leaked or used twice.
//!
//! `FOREBAY_SEEDS=n` tries more seeds, `FOREBAY_SEED=s` one.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::{Engine, OpenError};
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_mem::Pool;
use forebay_store::{
    Address, Attributes, DeleteOptions, Durability, ErrorKind, ListOptions, NamespaceConfig,
    Result, Scope, Seal, Source, Space, Store, StoreOptions, Usage,
};
use support::{Random, bytes, config, for_each_seed, get, put_with, tenant};

const SIZES: [usize; 9] = [0, 7, 2048, 2049, 5000, 40_000, 70_000, 300_000, 1_500_000];

/// What makes a value: seed and length of its bytes.
type Made = (u64, usize);
type State = BTreeMap<(Space, Vec<u8>), Made>;

/// What happened, as states one after the other; the store must be in one of those from `durable` on.
struct History {
    states: Vec<State>,
    durable: usize,
}

impl History {
    fn last(&self) -> State {
        self.states.last().cloned().unwrap_or_default()
    }

    fn acknowledged(&mut self, state: State, durable: bool) {
        self.states.push(state);
        if durable {
            self.durable = self.states.len() - 1;
        }
    }
}

struct World {
    random: Random,
    history: History,
    relaxed: bool,
    made: u64,
}

fn address(space: Space, key: &[u8]) -> Address<'_> {
    Address {
        namespace: "n",
        space,
        key,
    }
}

/// One change; `Err` when it failed, with what may be the state nevertheless.
async fn change(world: &mut World, engine: &Engine<SimDisk>) -> Result<()> {
    let random = &mut world.random;
    let mut next = world.history.last();
    let key = format!("k{}", random.below(6)).into_bytes();
    let part = format!("p{}", random.below(4)).into_bytes();
    let kind = random.below(8);
    let mut made = || {
        world.made += 1;
        match SIZES[random.below(SIZES.len() as u64) as usize] {
            // Nothing tells two empty values apart.
            0 => (0, 0),
            len => (world.made, len),
        }
    };
    let done = match kind {
        0 | 1 => {
            let existed = next.remove(&(Space::Objects, key.clone())).is_some();
            let target = address(Space::Objects, &key);
            let deleted = engine.delete(target, DeleteOptions::default()).await;
            deleted.map(|deleted| assert_eq!(deleted.existed, existed))
        }
        2 => {
            let made = made();
            next.insert((Space::Staging, part.clone()), made);
            put(engine, Space::Staging, &part, made, 0).await
        }
        3 => {
            let parts: Vec<(Vec<u8>, Made)> = next
                .iter()
                .filter(|((space, _), _)| *space == Space::Staging)
                .map(|((_, key), made)| (key.clone(), *made))
                .collect();
            // The model knows a joined value by its first part's seed and the parts' lengths: keep it to one part.
            let Some((source, made)) = parts.into_iter().next() else {
                return Ok(());
            };
            next.remove(&(Space::Staging, source.clone()));
            next.insert((Space::Objects, key.clone()), made);
            let options = StoreOptions::default();
            let target = address(Space::Objects, &key);
            let source = Source::any(&source);
            engine
                .compose(target, &[source], &[], options, Seal::default())
                .await
                .map(drop)
        }
        kind => {
            let made = made();
            next.insert((Space::Objects, key.clone()), made);
            // Long attributes fill segments.
            let attributes = if kind == 4 { 90_000 } else { 10 };
            put(engine, Space::Objects, &key, made, attributes).await
        }
    };
    match done {
        Ok(()) => {
            let durable = !world.relaxed;
            world.history.acknowledged(next, durable);
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
            world.history.states.push(next);
            Err(error)
        }
        Err(error) => Err(error),
    }
}

async fn put(
    engine: &Engine<SimDisk>,
    space: Space,
    key: &[u8],
    (seed, len): Made,
    attributes: usize,
) -> Result<()> {
    let attributes = Attributes::builder()
        .set("a", vec![seed as u8; attributes])
        .build()
        .unwrap();
    let seal = Seal {
        attributes,
        ..Seal::default()
    };
    let value = bytes(seed, len);
    put_with(
        engine,
        address(space, key),
        &value,
        StoreOptions::default(),
        seal,
    )
    .await
    .map(drop)
}

/// What the store holds; every byte is read.
async fn read_back(engine: &Engine<SimDisk>, history: &History) -> State {
    let mut state = State::new();
    for space in [Space::Objects, Space::Staging] {
        let page = engine
            .list(ListOptions {
                namespace: "n",
                space,
                prefix: b"",
                delimiter: None,
                after: forebay_store::After::Start,
                limit: 1000,
            })
            .await
            .unwrap();
        for item in page.items {
            let forebay_store::Item::Value(key, meta) = item else {
                panic!("no delimiter was given");
            };
            let value = get(engine, address(space, &key)).await.unwrap();
            assert_eq!(value.len() as u64, meta.size);
            assert_eq!(crc_fast::crc64_nvme(&value), meta.crc64nvme);
            let known = history.states[history.durable..]
                .iter()
                .filter_map(|state| state.get(&(space, key.to_vec())))
                .find(|(seed, len)| bytes(*seed, *len) == value);
            let known = known.unwrap_or_else(|| panic!("{key:?} holds what was never stored"));
            state.insert((space, key.to_vec()), *known);
        }
    }
    state
}

fn usage(state: &State) -> Usage {
    let weights = state
        .iter()
        .map(|((space, _), (_, len))| Usage::of(*space, *len as u64));
    weights.fold(Usage::default(), Usage::plus)
}

async fn check(engine: &Engine<SimDisk>, world: &mut World) {
    let state = read_back(engine, &world.history).await;
    let possible = &world.history.states[world.history.durable..];
    assert!(
        possible.contains(&state),
        "the store holds {state:?}\nwhich is none of {possible:?}"
    );
    assert_eq!(engine.usage(Scope::Namespace("n")).unwrap(), usage(&state));
    assert_eq!(engine.usage(Scope::Tenant("t")).unwrap(), usage(&state));
    let audit = engine.audit().unwrap();
    assert_eq!((audit.leaked, audit.doubled), (0, 0));
    world.history = History {
        states: vec![state],
        durable: 0,
    };
}

fn try_open(disk: &SimDisk) -> std::result::Result<Engine<SimDisk>, OpenError> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    Engine::open(disk.clone(), clock, Pool::new(16 << 20), config())
}

async fn one_seed(seed: u64) {
    let mut world = World {
        random: Random::new(seed),
        history: History {
            states: vec![State::new()],
            durable: 0,
        },
        relaxed: seed.is_multiple_of(3),
        made: seed << 32,
    };
    let mut disk = SimDisk::new(seed);
    let engine = try_open(&disk).unwrap();
    let durability = match world.relaxed {
        true => Durability::Relaxed { within_ms: 1000 },
        false => Durability::Sync,
    };
    let config = NamespaceConfig {
        durability,
        ..tenant("t")
    };
    engine.create_namespace("n", config).await.unwrap();
    let mut engine = Some(engine);
    for _generation in 0..4 {
        let steps = world.random.below(50);
        for _ in 0..steps {
            if let Some(engine) = &engine {
                change(&mut world, engine).await.unwrap();
            }
        }
        let soon = disk.operations().total() + world.random.below(60);
        disk.set_faults(Faults {
            power_off_at: Some(soon),
            ..Faults::default()
        });
        if let Some(engine) = engine.take() {
            for _ in 0..60 {
                if change(&mut world, &engine).await.is_err() {
                    break;
                }
            }
            let crash = world.random.below(u64::MAX);
            // Closing is part of what the power may interrupt.
            if world.random.below(2) == 0 {
                disk = disk.crash(crash);
                drop(engine);
            } else {
                drop(engine);
                disk = disk.crash(crash);
            }
        }
        // Recovery is interrupted now and then too.
        for _ in 0..world.random.below(3) {
            let soon = disk.operations().total() + world.random.below(40);
            disk.set_faults(Faults {
                power_off_at: Some(soon),
                ..Faults::default()
            });
            drop(try_open(&disk));
            disk = disk.crash(world.random.below(u64::MAX));
        }
        let opened = try_open(&disk).unwrap();
        check(&opened, &mut world).await;
        engine = Some(opened);
    }
}

/// Several clients at once, each with keys of its own: every key holds what its client was last told, or the change after it.
async fn one_seed_of_many_clients(seed: u64) {
    let mut random = Random::new(seed);
    let mut disk = SimDisk::new(seed);
    let mut engine = try_open(&disk).unwrap();
    engine.create_namespace("n", tenant("t")).await.unwrap();
    let mut possible = BTreeMap::<Vec<u8>, Vec<Option<Made>>>::new();
    let mut made = seed << 32;
    for _generation in 0..3 {
        let quiet = random.below(10);
        for step in 0..quiet + 30 {
            if step == quiet {
                disk.set_faults(Faults {
                    power_off_at: Some(disk.operations().total() + random.below(80)),
                    ..Faults::default()
                });
            }
            let mut tasks = Vec::new();
            for client in 0..1 + random.below(8) {
                made += 1;
                let key = format!("{client}/{}", random.below(3)).into_bytes();
                let next = match random.below(4) {
                    0 => None,
                    _ => match SIZES[random.below(SIZES.len() as u64) as usize] {
                        0 => Some((0, 0)),
                        len => Some((made, len)),
                    },
                };
                let engine = engine.clone();
                tasks.push(tokio::spawn(async move {
                    let done = match next {
                        Some(made) => put(&engine, Space::Objects, &key, made, 2000).await,
                        None => {
                            let target = address(Space::Objects, &key);
                            let options = DeleteOptions::default();
                            engine.delete(target, options).await.map(drop)
                        }
                    };
                    (key, next, done)
                }));
            }
            let mut dead = false;
            for task in tasks {
                let (key, next, done) = task.await.unwrap();
                let states = possible.entry(key).or_insert_with(|| vec![None]);
                match done {
                    Ok(()) => *states = vec![next],
                    Err(error) => {
                        dead = true;
                        if error.kind() == ErrorKind::OutcomeUnknown {
                            states.push(next);
                        }
                    }
                }
            }
            if dead {
                break;
            }
        }
        disk = disk.crash(random.below(u64::MAX));
        drop(engine);
        engine = try_open(&disk).unwrap();
        let mut held = Usage::default();
        for (key, states) in &mut possible {
            let found = match get(&engine, address(Space::Objects, key)).await {
                Ok(value) => {
                    held.objects += 1;
                    held.bytes += value.len() as u64;
                    let same = |made: &Made| bytes(made.0, made.1) == value;
                    let known = states.iter().flatten().find(|made| same(made));
                    Some(*known.unwrap_or_else(|| panic!("{key:?} holds what was never stored")))
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
                    None
                }
            };
            assert!(
                states.contains(&found),
                "{key:?} holds {found:?}, not one of {states:?}"
            );
            *states = vec![found];
        }
        assert_eq!(engine.usage(Scope::Namespace("n")).unwrap(), held);
        let audit = engine.audit().unwrap();
        assert_eq!((audit.leaked, audit.doubled), (0, 0));
    }
}

#[test]
fn acknowledged_changes_survive_power_loss() {
    for_each_seed(one_seed);
}

#[test]
fn changes_of_many_clients_survive_power_loss() {
    for_each_seed(one_seed_of_many_clients);
}
