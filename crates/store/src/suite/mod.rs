//! The conformance suite: what every [`Store`] is held to.
//!
//! Each area is one method of [`Suite`]; [`conformance!`](crate::conformance) makes a test of each. Examples pin the contract
//! down call by call; [`Suite::model`] runs random sequences of operations on the store and on a
//! [`MemoryStore`](crate::MemoryStore) and compares every answer, shrinking what differs;
//! [`Suite::concurrent`] races tasks. What a store's [`Caps`](crate::Caps) exclude is left out.
//!
//! [`check_layer`] is for stores over a store: it finds the calls that do not arrive below.
//!
//! [`check_seed`] is for fuzzers: it holds what encoders write to what is kept as seeds.
//!
//! [`Around`] is for tests of what uses stores: one that fails or waits where a test says.

mod around;
mod away;
mod composing;
mod concurrent;
mod conditions;
mod corpus;
mod expiry;
mod layers;
mod lists;
mod model;
mod namespaces;
mod quotas;
mod script;
mod subject;
mod values;
mod versioned;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tokio::runtime::{Builder, Runtime};

pub use self::around::{Around, AroundBody, AroundUpload, Detour};
pub use self::corpus::{check_seed, corpus};
pub use self::layers::{Noting, check_layer};
use self::subject::Subject;
pub use self::subject::content;
use crate::Store;

/// A clock that only tests move. Clones share it.
#[derive(Debug, Clone)]
pub struct TestClock {
    now_ms: Arc<AtomicU64>,
}

impl Default for TestClock {
    fn default() -> TestClock {
        TestClock {
            now_ms: Arc::new(AtomicU64::new(1_800_000_000_000)),
        }
    }
}

impl TestClock {
    /// Milliseconds since 1970.
    pub fn now(&self) -> u64 {
        self.now_ms.load(SeqCst)
    }

    /// Moves on by so many milliseconds.
    pub fn advance(&self, by_ms: u64) {
        self.now_ms.fetch_add(by_ms, SeqCst);
    }
}

/// The suite over one kind of store.
///
/// `make` makes a new, empty store that tells time by the given clock, and whatever must outlive it (a directory): that is
/// dropped after the store. Every method panics at the first breach of the contract.
pub struct Suite<M> {
    make: M,
    cases: u32,
    runtime: fn() -> Runtime,
    racing_runtime: fn() -> Runtime,
}

impl<M, S, G> Suite<M>
where
    M: AsyncFn(TestClock) -> (S, G),
    S: Store,
{
    /// The suite over stores from `make`, with runtimes of its own.
    pub fn new(make: M) -> Suite<M> {
        Suite {
            make,
            cases: 48,
            runtime: current_thread,
            racing_runtime: four_threads,
        }
    }

    /// How many sequences [`model`](Suite::model) tries, unless `PROPTEST_CASES` says otherwise.
    pub fn with_cases(mut self, cases: u32) -> Suite<M> {
        self.cases = cases;
        self
    }

    /// Every area.
    pub fn run_all(&self) {
        self.values();
        self.conditions();
        self.composing();
        self.lists();
        self.versioned();
        self.namespaces();
        self.quotas();
        self.expiry();
        self.away();
        self.model();
        self.concurrent();
    }

    /// Storing and retrieving: sizes, ranges, buffers, attributes, limits, abandoned uploads, bodies that outlive their key.
    pub fn values(&self) {
        self.example(async |subject| values::run(subject).await);
    }

    /// Conditions, checked early and decided at commit.
    pub fn conditions(&self) {
        self.example(async |subject| conditions::run(subject).await);
    }

    /// Joining staged values.
    pub fn composing(&self) {
        self.example(async |subject| composing::run(subject).await);
    }

    /// Lists: order, prefix, delimiter, paging.
    pub fn lists(&self) {
        self.example(async |subject| lists::run(subject).await);
    }

    /// Versions and delete markers, when the store keeps them.
    pub fn versioned(&self) {
        self.example(async |subject| versioned::run(subject).await);
    }

    /// Namespaces and their configuration.
    pub fn namespaces(&self) {
        self.example(async |subject| namespaces::run(subject).await);
    }

    /// Usage and quotas, of namespaces and tenants.
    pub fn quotas(&self) {
        self.example(async |subject| quotas::run(subject).await);
    }

    /// Values that end by themselves.
    pub fn expiry(&self) {
        self.example(async |subject| expiry::run(subject).await);
    }

    /// Bytes that are let go and taken back, when the store can.
    pub fn away(&self) {
        self.example(async |subject| away::run(subject).await);
    }

    /// Random sequences of operations, compared with the model.
    pub fn model(&self) {
        model::run(&self.make, &(self.runtime)(), self.cases);
    }

    /// Tasks that race: one winner, no lost update, no half value.
    pub fn concurrent(&self) {
        self.on(&(self.racing_runtime)(), async |subject| {
            concurrent::run(subject).await;
        });
    }

    fn example(&self, test: impl AsyncFn(&Subject<S>)) {
        self.on(&(self.runtime)(), test);
    }

    fn on(&self, runtime: &Runtime, test: impl AsyncFn(&Subject<S>)) {
        runtime.block_on(async {
            let clock = TestClock::default();
            let (store, guard) = (self.make)(clock.clone()).await;
            let subject = Subject::new(store, clock);
            test(&subject).await;
            drop(subject);
            drop(guard);
        });
    }
}

fn current_thread() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn four_threads() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Makes one `#[test]` of every area of the suite, for the [`Suite`] that the given expression makes.
#[macro_export]
macro_rules! conformance {
    ($suite:expr) => {
        $crate::conformance!(@tests $suite,
            values conditions composing lists versioned namespaces quotas expiry away model concurrent);
    };
    (@tests $suite:expr, $($area:ident)*) => {
        $(
            #[test]
            fn $area() {
                $suite.$area();
            }
        )*
    };
}
