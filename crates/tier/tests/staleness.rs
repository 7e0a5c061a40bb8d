//! Two tiers over one store, with notices that are late or lost: how old what they serve may be.
#![forbid(unsafe_code)]

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use forebay_store::suite::TestClock;
use forebay_store::{Address, ErrorKind, NamespaceConfig, Notice, Store};
use forebay_tier::{Tier, Trust};
use proptest::prelude::*;
use support::{Below, NS, OnTheWay, Probe};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

const BOUND_MS: u64 = 1000;
const KEYS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize, usize),
    Delete(usize, usize),
    Read(usize, usize),
    Stat(usize, usize),
    Pass(u64),
    /// So many notices arrive at a tier.
    Arrive(usize, usize),
    /// All on their way to a tier are lost; whether it hears that.
    Lose(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let tier = 0..2_usize;
    let key = 0..KEYS.len();
    prop_oneof![
        3 => (tier.clone(), key.clone(), 0..3_000_usize).prop_map(|(t, k, len)| Step::Write(t, k, len)),
        1 => (tier.clone(), key.clone()).prop_map(|(t, k)| Step::Delete(t, k)),
        6 => (tier.clone(), key.clone()).prop_map(|(t, k)| Step::Read(t, k)),
        2 => (tier.clone(), key).prop_map(|(t, k)| Step::Stat(t, k)),
        3 => (0..700_u64).prop_map(Step::Pass),
        1 => (tier.clone(), 0..4_usize).prop_map(|(t, n)| Step::Arrive(t, n)),
        1 => (tier, any::<bool>()).prop_map(|(t, told)| Step::Lose(t, told)),
    ]
}

/// What a key held, and since when; nothing before the first.
type History = Vec<(u64, Option<Vec<u8>>)>;

struct World {
    clock: TestClock,
    tiers: Vec<Tier<Below>>,
    wires: Vec<UnboundedSender<Notice>>,
    on_the_way: Vec<OnTheWay>,
    tending: Vec<JoinHandle<()>>,
    histories: BTreeMap<usize, History>,
    /// By tier and key: the history's length when the tier last changed it.
    own: BTreeMap<(usize, usize), usize>,
    seeds: u64,
    bound: u64,
}

impl World {
    async fn new(trust: Trust) -> World {
        let clock = TestClock::default();
        let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
        let mut world = World {
            tiers: Vec::new(),
            wires: Vec::new(),
            on_the_way: vec![VecDeque::new(); 2],
            tending: Vec::new(),
            histories: (0..KEYS.len()).map(|key| (key, vec![(0, None)])).collect(),
            own: BTreeMap::new(),
            seeds: 0,
            bound: match trust {
                Trust::Strict => 0,
                Trust::Within(ms) => ms,
            },
            clock,
        };
        for _ in 0..2 {
            let (probe, wire) = Probe::with_wire();
            let mut config = support::config(1 << 20, &world.clock);
            config.trust = trust;
            let tier = support::tier(&store, &probe, config);
            let tended = tier.clone();
            world.tending.push(tokio::spawn(async move {
                tended.tend().await;
            }));
            world.tiers.push(tier);
            world.wires.push(wire);
        }
        settle().await;
        world
    }

    fn changed(&mut self, by: usize, key: usize, value: Option<Vec<u8>>) {
        let history = self.histories.entry(key).or_default();
        history.push((self.clock.now(), value));
        self.own.insert((by, key), history.len() - 1);
        for (tier, queue) in self.on_the_way.iter_mut().enumerate() {
            if tier != by {
                queue.push_back(Notice::Changed {
                    namespace: NS.to_owned(),
                    key: KEYS[key].into(),
                });
            }
        }
    }

    /// Whether a tier may answer this now.
    fn may_be(&self, tier: usize, key: usize, seen: &dyn Fn(&Option<Vec<u8>>) -> bool) -> bool {
        let history = &self.histories[&key];
        let own = self.own.get(&(tier, key)).copied().unwrap_or(0);
        let from = self.clock.now() - self.bound;
        history
            .iter()
            .enumerate()
            .skip(own)
            .any(|(at, (_, value))| {
                // It was current until the next one came.
                let current = history
                    .get(at + 1)
                    .is_none_or(|next| next.0 >= from && self.bound > 0);
                current && seen(value)
            })
    }

    async fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Write(tier, key, len) => {
                self.seeds += 1;
                let value = support::bytes(self.seeds, len);
                support::put(&self.tiers[tier], KEYS[key], &value).await;
                self.changed(tier, key, Some(value));
            }
            Step::Delete(tier, key) => {
                support::delete(&self.tiers[tier], KEYS[key]).await;
                self.changed(tier, key, None);
            }
            Step::Read(tier, key) => {
                let seen = match support::get(&self.tiers[tier], KEYS[key]).await {
                    Ok(bytes) => Some(bytes),
                    Err(error) if error.kind() == ErrorKind::NotFound => None,
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                };
                prop_assert!(
                    self.may_be(tier, key, &|value| *value == seen),
                    "read {key} by {tier}"
                );
            }
            Step::Stat(tier, key) => {
                let address = Address::object(NS, KEYS[key].as_bytes());
                let seen = self.tiers[tier].stat(address, None).await.ok();
                let crc =
                    |value: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, value);
                let same = |value: &Option<Vec<u8>>| {
                    value.as_deref().map(crc) == seen.as_ref().map(|meta| meta.crc64nvme)
                };
                prop_assert!(self.may_be(tier, key, &same), "stat {key} by {tier}");
            }
            Step::Pass(ms) => self.clock.advance(ms),
            Step::Arrive(tier, count) => {
                for _ in 0..count {
                    if let Some(notice) = self.on_the_way[tier].pop_front() {
                        self.wires[tier].send(notice).expect("it listens");
                    }
                }
                settle().await;
            }
            Step::Lose(tier, told) => {
                self.on_the_way[tier].clear();
                if told {
                    self.wires[tier].send(Notice::Lost).expect("it listens");
                    settle().await;
                }
            }
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.tending.iter().for_each(JoinHandle::abort);
    }
}

async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
}

fn check(trust: Trust, steps: &[Step]) -> Result<(), TestCaseError> {
    runtime().block_on(async {
        let mut world = World::new(trust).await;
        for step in steps {
            world.run(step).await?;
        }
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nothing_older_than_the_bound_is_served(steps in prop::collection::vec(step(), 1..80)) {
        check(Trust::Within(BOUND_MS), &steps)?;
    }

    #[test]
    fn strict_serves_nothing_old(steps in prop::collection::vec(step(), 1..80)) {
        check(Trust::Strict, &steps)?;
    }
}

/// A notice that arrives is worth the wait: what it names is looked at before the next hit, long before the bound.
#[test]
fn a_notice_puts_a_value_in_doubt_at_once() {
    runtime().block_on(async {
        let mut world = World::new(Trust::Within(BOUND_MS)).await;
        for step in [
            Step::Write(0, 0, 10),
            Step::Read(1, 0),
            Step::Write(0, 0, 20),
        ] {
            world.run(&step).await.expect("within the bound");
        }
        let old = support::get(&world.tiers[1], KEYS[0]).await.expect("held");
        assert_eq!(old.len(), 10, "nobody told it yet");
        let arrive = Step::Arrive(1, 8);
        world.run(&arrive).await.expect("it listens");
        let new = support::get(&world.tiers[1], KEYS[0]).await.expect("read");
        assert_eq!(new.len(), 20);
        let lost = [Step::Write(0, 0, 30), Step::Lose(1, true)];
        for step in &lost {
            world.run(step).await.expect("within the bound");
        }
        let new = support::get(&world.tiers[1], KEYS[0]).await.expect("read");
        assert_eq!(new.len(), 30, "it knows that it does not know");
    });
}

/// What was said by a clock that was ahead is worth nothing when that time has come.
#[test]
fn what_was_current_by_a_clock_that_went_back_is_asked_for_again() {
    runtime().block_on(async {
        let clock = TestClock::default();
        let store = support::with_namespace(&clock, NamespaceConfig::default()).await;
        let behind = Arc::new(AtomicU64::new(0));
        let config = forebay_tier::Config::new(1 << 20, {
            let (clock, behind) = (clock.clone(), behind.clone());
            Arc::new(move || clock.now() - behind.load(SeqCst))
        });
        let tier = support::tier(&store, &Probe::default(), config);
        clock.advance(100_000);
        support::put(&tier, "a", b"old").await;
        behind.store(50_000, SeqCst);
        assert_eq!(support::get(&tier, "a").await.expect("held"), b"old");
        support::put(&store, "a", b"new").await;
        clock.advance(50_000);
        assert_eq!(support::get(&tier, "a").await.expect("read"), b"new");
    });
}
