//! Whatever a call waits for, it ends by its deadline; what is being committed by then is waited for.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use forebay_exec::{Exec, Limits};
use forebay_io::Clock;
use forebay_mem::{Buf, Region};
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, Body, ByteRange, ErrorKind, Execute, Executed, Input, MemoryStore, Module, Object,
    Output, Result, Seal, Store, StoreError, StoreOptions, Stored, Upload, VersionId,
};
use tokio::task::yield_now;
use tokio::time::{Instant, advance, pause, resume, timeout};

use crate::support::{MODULES, SOON, World, assert_kind, own};

/// What of a store never answers; a commit does so when the call's time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stalls {
    Module,
    Input,
    Body,
    Store,
    Write,
    Commit,
}

impl Detour<MemoryStore> for Stalls {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<<MemoryStore as Store>::Body>> {
        let stalls = match address.namespace {
            MODULES => *self == Stalls::Module,
            _ => *self == Stalls::Input,
        };
        match stalls {
            true => pending().await,
            false => store.retrieve(address, version, range).await,
        }
    }

    async fn next(&self, body: &mut <MemoryStore as Store>::Body, _: usize) -> Result<Option<Buf>> {
        match self {
            Stalls::Body => pending().await,
            _ => body.next().await,
        }
    }

    async fn store(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: StoreOptions,
    ) -> Result<<MemoryStore as Store>::Upload> {
        match self {
            Stalls::Store => pending().await,
            _ => store.store(address, options).await,
        }
    }

    async fn write(&self, upload: &mut <MemoryStore as Store>::Upload, buf: Buf) -> Result<()> {
        match self {
            Stalls::Write => pending().await,
            _ => upload.write(buf).await,
        }
    }

    async fn commit(&self, upload: <MemoryStore as Store>::Upload, seal: Seal) -> Result<Stored> {
        if *self == Stalls::Commit {
            pause();
            advance(2 * LONG).await;
            resume();
            // Whoever did not wait would go now.
            yield_now().await;
        }
        upload.commit(seal).await
    }
}

/// The runtime's time, which passes as a test says.
#[derive(Debug)]
struct Told(Instant);

impl Clock for Told {
    fn unix_millis(&self) -> u64 {
        0
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

const SHORT: Duration = Duration::from_millis(200);
/// Longer than a call takes that does not stall, on however busy a machine.
const LONG: Duration = Duration::from_secs(600);

/// A call with a deadline that reads a short input and stores its output, over a store that stalls.
async fn stalled(world: &World, stalls: Stalls, deadline: Duration) -> Result<Executed> {
    world.put("hers", "in", b"in").await;
    let text = own(
        "(drop (call $read (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 2)))
         (call $write (i32.const 0) (i32.const 2))",
        "",
    );
    let module = world.module(&text).await;
    if stalls != Stalls::Module {
        // It is ready then.
        world.run(module, &["in"], b"").await.unwrap();
    }
    let store = Around {
        store: world.store.below().clone(),
        detour: stalls,
    };
    let store = Exec::new(store, world.store.executor().cloned());
    let inputs = [Input::whole("hers", b"in")];
    let call = Execute {
        output: Output::Store {
            address: Address::object("hers", b"out"),
            options: StoreOptions::default(),
            seal: Seal::default(),
        },
        deadline: Some(deadline),
        ..Execute::inline("alice", module, &inputs, b"", 0)
    };
    store.execute(call).await
}

#[track_caller]
fn assert_out_of_time(error: &StoreError) {
    assert_kind(error, ErrorKind::ProgramStopped);
    assert!(error.message().contains("time"), "{error}");
}

#[tokio::test]
async fn a_store_that_stalls_does_not_hold_a_call() {
    for stalls in [
        Stalls::Module,
        Stalls::Input,
        Stalls::Body,
        Stalls::Store,
        Stalls::Write,
    ] {
        let world = World::new().await;
        let executing = timeout(6 * SOON, stalled(&world, stalls, SHORT));
        let executed = executing.await.expect("an end in time");
        assert_out_of_time(&executed.unwrap_err());
        let out = Address::object("hers", b"out");
        let error = world.store.stat(out, None).await.unwrap_err();
        assert_kind(&error, ErrorKind::NotFound);
    }
}

#[tokio::test]
async fn what_is_being_committed_is_waited_for() {
    let limits = Limits {
        deadline: LONG,
        ..Limits::default()
    };
    let world = World::by(Arc::new(Told(Instant::now())), limits).await;
    let executed = stalled(&world, Stalls::Commit, LONG).await.unwrap();
    assert_eq!(executed.stored.unwrap().meta.size, 2);
}

#[tokio::test]
async fn a_thread_is_not_waited_for_beyond_the_deadline() {
    let limits = Limits {
        threads: 1,
        threads_per_tenant: 1,
        deadline: Duration::from_secs(3600),
        ..Limits::default()
    };
    let world = Arc::new(World::within(limits).await);
    let endless = r#"(func (export "endless") (result i32) (loop $l (br $l)) (i32.const 0))"#;
    let text = own("(call $write (i32.const 0) (i32.const 1))", endless);
    let module = world.module(&text).await;
    world.run(module, &[], b"").await.unwrap();
    let load = async |load: (usize, usize)| {
        while world.store.executor().unwrap().load() != load {
            tokio::task::yield_now().await;
        }
    };
    load((0, 0)).await;
    let other = world.clone();
    let endless = tokio::spawn(async move {
        let call = Execute {
            function: Some("endless"),
            ..Execute::inline("alice", module, &[], b"", 0)
        };
        other.store.execute(call).await.map(|done| done.len)
    });
    load((0, 1)).await;
    let region = Region::anonymous(4096).unwrap();
    for output in [
        Output::Inline { capacity: 1 },
        Output::Into(region.slice(0..4096).unwrap()),
    ] {
        let call = Execute {
            output,
            deadline: Some(Duration::from_millis(50)),
            ..Execute::inline("alice", module, &[], b"", 0)
        };
        let executing = world.store.execute(call);
        let executed = timeout(SOON, executing).await.expect("an end in time");
        assert_out_of_time(&executed.unwrap_err());
        // It takes no place among those that wait.
        assert_eq!(world.store.executor().unwrap().load(), (0, 1));
    }
    // When the thread is free these calls do not begin.
    endless.abort();
    assert!(endless.await.unwrap_err().is_cancelled());
    world.is_unharmed().await;
    let calls = "forebay_exec_calls_total{outcome=\"stopped\"} 2\n";
    assert!(world.metrics().contains(calls), "{}", world.metrics());
}

#[tokio::test]
async fn a_module_is_made_though_its_call_has_no_time_for_it() {
    let world = World::new().await;
    let steps = "(local.set $b (i64.add (i64.mul (local.get $b) (i64.const 3)) (i64.const 1)))";
    let more = format!("(func (local $b i64) {})", steps.repeat(100)).repeat(100);
    let module: Module<'_> = world.module(&own("", &more)).await;
    let once = "forebay_exec_modules_compiled_total 1\n";
    let made = async {
        while !world.metrics().contains(once) {
            // Long enough for a thread to begin, not to be done.
            let call = Execute {
                deadline: Some(Duration::from_millis(5)),
                ..Execute::inline("alice", module, &[], b"", 0)
            };
            if let Err(error) = world.store.execute(call).await {
                assert_out_of_time(&error);
            }
        }
    };
    let in_time = timeout(6 * SOON, made).await;
    in_time.expect("a module that is made");
    world.run(module, &[], b"").await.unwrap();
    assert!(world.metrics().contains(once), "{}", world.metrics());
}
