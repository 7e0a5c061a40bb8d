//! Short functions run in the tasks that call them; nobody can tell, but by the time it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_exec::Limits;
use forebay_io::Clock;
use forebay_mem::Region;
use forebay_store::{ErrorKind, Execute, Executed, Input, Module, Output, Result, Store};
use tokio::time::timeout;

use crate::support::{SOON, World, assert_kind, bytes, own};

/// More than a machine that does much else needs to run something short at once.
const TRIES: usize = 1000;

/// Calls itself as often as it is told.
const DEEP: &str = "(func $deep (param i32) (result i32)
    (if (result i32) (local.get 0)
        (then (i32.add (i32.const 1) (call $deep (i32.sub (local.get 0) (i32.const 1)))))
        (else (i32.const 0))))";

/// A world in which more is short than usual: what is not optimised takes its time.
async fn world(threads: usize) -> World {
    World::within(Limits {
        threads,
        threads_per_tenant: threads,
        short: Duration::from_millis(50),
        ..Limits::default()
    })
    .await
}

/// Calls that ran in their tasks.
fn here(world: &World) -> usize {
    let text = world.metrics();
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("forebay_exec_here_total "));
    count.unwrap().parse().unwrap()
}

/// Has a call run in its task, which it does when it was short before; what that came to.
async fn known(world: &World, module: Module<'_>, keys: &[&str]) -> Result<Executed> {
    for _ in 0..TRIES {
        let before = here(world);
        let done = world.run(module, keys, b"").await;
        if here(world) > before {
            return done;
        }
    }
    panic!("no call of {TRIES} was short");
}

/// Writes and logs `a`, does `then` when there are arguments, and writes `b`.
fn sometimes(then: &str) -> String {
    let body = format!(
        "(call $write (i32.const 100) (i32.const 1))
         (call $log (i32.const 100) (i32.const 1))
         (if (call $arguments (i32.const 0) (i32.const 0)) (then {then}))
         (call $write (i32.const 101) (i32.const 1))"
    );
    own(&body, r#"(data (i32.const 100) "ab")"#)
}

#[tokio::test]
async fn what_is_known_to_be_short_needs_no_thread() {
    let world = world(1).await;
    let short = world.module(&sometimes("")).await;
    known(&world, short, &[]).await.unwrap();
    let endless = own("(loop $again (br $again))", "");
    let endless = world.module_for("bob", &endless).await;
    let taken = world
        .store
        .execute(Execute::inline("bob", endless, &[], b"", 1));
    let free = async {
        while !world.metrics().contains("forebay_exec_running 1") {
            tokio::task::yield_now().await;
        }
        world.run(short, &[], b"").await
    };
    let done = tokio::select! {
        _ = taken => panic!("it does not end by itself so soon"),
        done = timeout(SOON, free) => done.expect("no thread is to be had, and none is needed"),
    };
    assert_eq!(bytes(&done.unwrap()), b"ab");
}

#[tokio::test]
async fn what_turns_out_long_starts_again_on_a_thread() {
    let world = world(2).await;
    let much = "(local.set $a (i32.const 20000000))
        (loop $again (br_if $again (local.tee $a (i32.sub (local.get $a) (i32.const 1)))))";
    let work = "(drop (call $crc32c (i32.const 0) (i32.const 0) (i32.const 65536)))".repeat(9);
    // Instructions go over all of the memory at once.
    let grown = "(drop (memory.grow (i32.const 100)))";
    for long in [much, &work, grown] {
        let module = world.module(&sometimes(long)).await;
        known(&world, module, &[]).await.unwrap();
        let before = here(&world);
        let done = world.run(module, &[], b"x").await.unwrap();
        assert_eq!(
            (bytes(&done), &done.logs[..]),
            (b"ab".to_vec(), &b"a\n"[..])
        );
        // It has to be short often before it is tried again.
        for _ in 0..20 {
            world.run(module, &[], b"").await.unwrap();
        }
        assert_eq!(here(&world), before);
    }
    let endless = sometimes("(loop $again (br $again))");
    let endless = world.module(&endless).await;
    known(&world, endless, &[]).await.unwrap();
    let call = Execute {
        deadline: Some(Duration::from_millis(200)),
        ..Execute::inline("alice", endless, &[], b"x", 1 << 20)
    };
    let stopped = timeout(SOON, world.store.execute(call)).await;
    assert_kind(&stopped.unwrap().unwrap_err(), ErrorKind::ProgramStopped);
    known(&world, endless, &[]).await.unwrap();
}

/// A clock that stands still, or by which so many milliseconds pass whenever somebody looks.
#[derive(Debug, Default)]
struct Stopped {
    millis: AtomicU64,
    step: AtomicU64,
}

impl Clock for Stopped {
    fn unix_millis(&self) -> u64 {
        self.millis.load(Relaxed)
    }

    fn monotonic(&self) -> Duration {
        let step = self.step.load(Relaxed);
        Duration::from_millis(self.millis.fetch_add(step, Relaxed))
    }
}

/// A world by such a clock, and a module of it that has as much credit as there can be. A call is late by this clock alone: what really
/// takes so long may be met by a tick, and runs in no task then.
async fn trusted(clock: &Arc<Stopped>) -> (World, Module<'static>) {
    let limits = Limits {
        short: Duration::from_millis(1),
        ..Limits::default()
    };
    let world = World::by(clock.clone(), limits).await;
    let module = world.module(&sometimes("")).await;
    for _ in 0..TRIES {
        world.run(module, &[], b"").await.unwrap();
    }
    (world, module)
}

#[tokio::test]
async fn what_ends_late_often_runs_in_no_task_and_what_seldom_does_goes_on() {
    let clock = Arc::new(Stopped::default());
    let (world, module) = trusted(&clock).await;
    let late = async || {
        clock.step.store(2, Relaxed);
        world.run(module, &[], b"x").await.unwrap();
        clock.step.store(0, Relaxed);
    };
    let before = here(&world);
    late().await;
    late().await;
    world.run(module, &[], b"").await.unwrap();
    assert_eq!(here(&world), before + 3, "two late ones are an accident");
    for _ in 0..4 {
        late().await;
    }
    let before = here(&world);
    for _ in 0..10 {
        world.run(module, &[], b"").await.unwrap();
    }
    assert_eq!(here(&world), before, "six of them are not");
}

#[tokio::test]
async fn what_held_its_task_for_long_without_a_look_at_the_time_runs_in_none() {
    let clock = Arc::new(Stopped::default());
    let (world, module) = trusted(&clock).await;
    let before = here(&world);
    clock.step.store(10, Relaxed);
    world.run(module, &[], b"x").await.unwrap();
    clock.step.store(0, Relaxed);
    assert_eq!(here(&world), before + 1);
    for _ in 0..100 {
        world.run(module, &[], b"").await.unwrap();
    }
    assert_eq!(here(&world), before + 1, "once is enough");
}

#[tokio::test]
async fn what_has_much_code_in_one_function_runs_in_no_task() {
    let world = world(2).await;
    // Four bytes each.
    let code = |count: usize| sometimes(&"(local.set $a (i32.const 0))".repeat(count));
    let module = world.module(&code(30_000)).await;
    known(&world, module, &[]).await.unwrap();
    let before = here(&world);
    let module = world.module(&code(34_000)).await;
    for _ in 0..100 {
        world.run(module, &[], b"").await.unwrap();
    }
    assert_eq!(here(&world), before);
}

#[tokio::test]
async fn what_has_to_wait_runs_on_a_thread() {
    let world = world(2).await;
    world.put("hers", "short", &[1; 1000]).await;
    world.put("hers", "long", &[2; 300_000]).await;
    let text = own(
        "(local.set $b (call $size (i32.const 0)))
         (drop (call $pass (i32.const 0) (i64.const 0) (local.get $b)))",
        "",
    );
    let module = world.module(&text).await;
    let done = known(&world, module, &["short"]).await.unwrap();
    assert_eq!(bytes(&done), [1; 1000]);
    let before = here(&world);
    let done = world.run(module, &["long"], b"").await.unwrap();
    assert!(bytes(&done) == [2; 300_000]);
    assert_eq!(here(&world), before);
}

#[tokio::test]
async fn output_goes_into_memory_from_a_task_too() {
    let world = world(2).await;
    let module = world.module(&sometimes("")).await;
    known(&world, module, &[]).await.unwrap();
    let region = Region::anonymous(4096).unwrap();
    let memory = region.slice(0..4096).unwrap();
    let inputs: [Input<'_>; 0] = [];
    let before = here(&world);
    for _ in 0..TRIES {
        let call = Execute {
            output: Output::Into(memory.clone()),
            ..Execute::inline("alice", module, &inputs, b"", 0)
        };
        assert_eq!(world.store.execute(call).await.unwrap().len, 2);
        let mut written = [0; 3];
        assert!(memory.read(0, &mut written));
        assert_eq!(written, *b"ab\0");
        if here(&world) > before {
            return;
        }
    }
    panic!("no call of {TRIES} was short");
}

#[tokio::test]
async fn a_call_ends_in_its_task_as_it_does_on_a_thread() {
    let world = world(2).await;
    world.put("hers", "in", b"some bytes").await;
    for body in [
        "(unreachable)",
        "(drop (i32.load (i32.const -4)))",
        "(drop (call $deep (i32.const 1000000000)))",
        "(drop (call $read (i32.const 0) (i64.const 0) (i32.const -4) (i32.const 8)))",
        "(call $log (i32.const 0) (i32.const 4)) (call $fail (i32.const 7) (i32.const 0) (i32.const 4))",
        "(if (i32.eq (memory.grow (i32.const 10000)) (i32.const -1)) (then (unreachable)))",
        "(call $write (i32.const 0) (call $read (i32.const 0) (i64.const 5) (i32.const 0) (i32.const 9)))",
        "(call $write (i32.const 0) (i32.const 60000))",
    ] {
        let module = world.module(&own(body, DEEP)).await;
        let tell = |done: Result<Executed>| match done {
            Ok(done) => Ok((
                done.len,
                bytes(&done),
                done.logs,
                done.effort.read,
                done.effort.memory,
            )),
            Err(error) => Err((error.kind(), format!("{error:?}"))),
        };
        let on_a_thread = tell(world.run(module, &["in"], b"").await);
        let in_its_task = tell(known(&world, module, &["in"]).await);
        assert_eq!(on_a_thread, in_its_task, "{body}");
    }
    world.is_unharmed().await;
}
