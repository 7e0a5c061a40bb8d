//! Random scripts, played on a store and on the model.

use std::fmt::Write;

use forebay_mem::Pool;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use tokio::runtime::Runtime;

use super::TestClock;
use super::script::{Actor, KEYS, NAMESPACES, Op, PREFIXES, Pick, Place, SLOTS, Value, When};
use crate::{ByteRange, MemoryStore, Store};

const MODEL_POOL_BYTES: usize = 16 << 20;
const OPS_MAX: usize = 60;

pub(super) fn run<M, S, G>(make: &M, runtime: &Runtime, cases: u32)
where
    M: AsyncFn(TestClock) -> (S, G),
    S: Store,
{
    let chunk = runtime.block_on(async {
        let (store, guard) = make(TestClock::default()).await;
        let chunk = store.caps().chunk_bytes;
        drop(store);
        drop(guard);
        chunk
    });
    let mut config = Config {
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => rand_seed(),
    };
    config.rng_seed = RngSeed::Fixed(seed);
    let played = TestRunner::new(config).run(&vec(op(chunk), 1..OPS_MAX), |script| {
        runtime.block_on(compare(make, &script))
    });
    if let Err(failure) = played {
        panic!("{failure}\nagain with PROPTEST_RNG_SEED={seed}");
    }
}

/// A seed that differs from run to run, without a source of randomness of our own.
fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one("seed")
}

async fn compare<M, S, G>(make: &M, script: &[Op]) -> Result<(), TestCaseError>
where
    M: AsyncFn(TestClock) -> (S, G),
    S: Store,
{
    let clock = TestClock::default();
    let told = clock.clone();
    let model = MemoryStore::new(Pool::new(MODEL_POOL_BYTES), move || told.now());
    let (store, guard) = make(clock.clone()).await;
    let mut model = Actor::new(model, clock.clone()).await;
    let mut subject = Actor::new(store, clock.clone()).await;
    let mut played = String::new();
    for op in script.iter().chain(&[Op::Usage]) {
        if let Op::Advance(by_ms) = op {
            clock.advance(*by_ms);
        }
        let wanted = model.play(op).await;
        let answered = subject.play(op).await;
        let _ = writeln!(played, "{op:?}");
        if !answered.agrees(&wanted) {
            return Err(TestCaseError::fail(format!(
                "after\n{played}the model says\n{wanted:?}\nthe store says\n{answered:?}"
            )));
        }
    }
    drop(subject);
    drop(guard);
    Ok(())
}

fn place() -> impl Strategy<Value = Place> + Clone {
    (
        0..NAMESPACES.len(),
        prop::bool::weighted(0.15),
        0..KEYS.len(),
    )
        .prop_map(|(namespace, staging, key)| Place {
            namespace,
            staging,
            key,
        })
}

fn object() -> impl Strategy<Value = Place> {
    place().prop_map(|place| Place {
        staging: false,
        ..place
    })
}

fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        4 => Just(Pick::Current),
        1 => Just(Pick::Null),
        3 => (0..8_usize).prop_map(Pick::Seen),
        1 => Just(Pick::Unknown),
    ]
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        6 => Just(When::Always),
        1 => Just(When::Absent),
        1 => Just(When::Present),
        2 => (0..3_u8).prop_map(When::Tag),
    ]
}

fn value(chunk: usize) -> impl Strategy<Value = Value> {
    let len = prop_oneof![
        12 => 0..200_usize,
        6 => 3000..6000_usize,
        2 => prop::sample::select(vec![4095, 4096, 4097, 65_536, 65_537]),
        1 => prop::sample::select(vec![chunk - 1, chunk, chunk + 1, 2 * chunk + 4097]),
    ];
    let piece = option::weighted(0.3, 700..70_000_usize);
    let tag = option::weighted(0.7, 0..3_u8);
    let expires_in = option::weighted(0.5, 0..2000_u64);
    (0..250_u64, len, piece, any::<bool>(), tag, expires_in).prop_map(
        |(seed, len, piece, declared, tag, expires_in)| Value {
            seed,
            len,
            piece,
            declared,
            tag,
            expires_in,
        },
    )
}

fn range() -> impl Strategy<Value = ByteRange> {
    let offset = || prop_oneof![0..250_u64, 0..10_000_u64, 0..3_000_000_u64];
    prop_oneof![
        2 => Just(ByteRange::Full),
        1 => offset().prop_map(ByteRange::From),
        2 => (offset(), offset()).prop_map(|(a, b)| ByteRange::Inclusive(a, b)),
        1 => offset().prop_map(ByteRange::Suffix),
    ]
}

fn op(chunk: usize) -> impl Strategy<Value = Op> {
    let slot = 0..SLOTS;
    let parts = || vec(0..KEYS.len(), 0..4);
    let staged = (place(), value(chunk)).prop_map(|(place, value)| {
        let staging = true;
        Op::Put(Place { staging, ..place }, value, When::Always)
    });
    let begin =
        (slot.clone(), place(), value(chunk), when()).prop_map(|(slot, place, value, when)| {
            // Room for uploads under way is reserved by each store's own rule, so not where it is scarce.
            let namespace = match NAMESPACES[place.namespace] {
                "small" => 0,
                _ => place.namespace,
            };
            Op::Begin(slot, Place { namespace, ..place }, value, when)
        });
    let list = (
        0..NAMESPACES.len(),
        prop::bool::weighted(0.2),
        0..PREFIXES.len(),
        any::<bool>(),
        option::weighted(0.3, 0..KEYS.len()),
        1..5_usize,
    )
        .prop_map(
            |(namespace, staging, prefix, slash, after, limit)| Op::List {
                namespace,
                staging,
                prefix,
                slash,
                after,
                limit,
            },
        );
    let versions = (
        0..NAMESPACES.len() - 1,
        0..PREFIXES.len(),
        any::<bool>(),
        1..5_usize,
    )
        .prop_map(|(namespace, prefix, slash, limit)| Op::Versions {
            namespace,
            prefix,
            slash,
            limit,
        });
    let compose = (object(), parts(), parts(), when())
        .prop_map(|(place, sources, consumed, when)| Op::Compose(place, sources, consumed, when));
    let several = prop_oneof![
        6 => begin,
        6 => slot.clone().prop_map(Op::Commit),
        2 => slot.clone().prop_map(Op::Abandon),
        4 => (slot.clone(), place()).prop_map(|(slot, place)| Op::Open(slot, place)),
        4 => slot.prop_map(Op::Drain),
        2 => any::<bool>().prop_map(Op::Suspend),
        1 => (0..NAMESPACES.len() - 1).prop_map(Op::Remake),
        4 => (1..1500_u64).prop_map(Op::Advance),
        4 => Just(Op::Usage),
    ];
    prop_oneof![
        12 => (object(), value(chunk), when()).prop_map(|(place, value, when)| Op::Put(place, value, when)),
        6 => staged,
        5 => (place(), pick(), range()).prop_map(|(place, pick, range)| Op::Get(place, pick, range)),
        2 => (place(), range()).prop_map(|(place, range)| Op::GetInto(place, range)),
        2 => vec(place(), 0..6).prop_map(Op::Exist),
        3 => (place(), pick()).prop_map(|(place, pick)| Op::Stat(place, pick)),
        7 => (place(), pick(), when()).prop_map(|(place, pick, when)| Op::Delete(place, pick, when)),
        5 => compose,
        2 => (place(), pick(), any::<u8>()).prop_map(|(place, pick, mark)| Op::Amend(place, pick, mark)),
        5 => list,
        5 => versions,
        12 => several,
    ]
}
