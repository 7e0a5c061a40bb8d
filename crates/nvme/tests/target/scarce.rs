//! Commands that want more buffers than there are: each comes to its end.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use forebay_mem::Pool;
use forebay_nvme::target::Viewer;
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use forebay_proto::nvme::{IoCommand, Status};
use futures_util::future::{MaybeDone, join_all, maybe_done};
use tokio::time::timeout;

use crate::support::*;

/// All blocks there are.
const ALL: Blocks = Blocks {
    first: 0,
    count: BLOCKS as u32,
};
const ALL_BYTES: usize = BLOCKS as usize * BLOCK_BYTES;
/// Nothing here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Over a pool that has 32 buffers for all blocks.
async fn scarce() -> (Fixture, Pool) {
    let pool = Pool::new(1 << 20);
    (Fixture::over(pool.clone()).await, pool)
}

fn checked(fixture: &mut Fixture, command: NvmCommand, fuse: u8) -> IoCommand {
    let entry = command.entry(1, BLOCK).with_fuse(fuse);
    fixture.controller.io(0, 1, &entry).unwrap()
}

/// Lets it go on as far as it can without anything else.
fn advance<F: Future>(future: F) -> Pin<Box<MaybeDone<F>>> {
    let mut future = Box::pin(maybe_done(future));
    for _ in 0..16 {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = future.as_mut().poll(&mut cx);
    }
    future
}

async fn finish<F: Future>(mut future: Pin<Box<MaybeDone<F>>>) -> F::Output {
    future.as_mut().await;
    future.as_mut().take_output().expect("an output")
}

#[tokio::test]
async fn compares_hold_no_buffer_while_they_wait_for_another() {
    let (mut fixture, _pool) = scarce().await;
    let compare = checked(&mut fixture, NvmCommand::Compare { blocks: ALL }, 0);
    let each = (0..100).map(|_| async {
        let mut data = Data::of(Way::Stream, &[0; ALL_BYTES]);
        let execute = fixture
            .target
            .execute(&fixture.session, &compare, &mut data);
        execute.await.0
    });
    let all = timeout(PATIENCE, join_all(each)).await.expect("an end");
    assert!(all.iter().all(|status| status.is_success()));
}

#[tokio::test]
async fn nor_do_fused_operations() {
    let (mut fixture, _pool) = scarce().await;
    let write = NvmCommand::Write {
        blocks: ALL,
        fua: true,
    };
    let compare = checked(&mut fixture, NvmCommand::Compare { blocks: ALL }, 1);
    let write = checked(&mut fixture, write, 2);
    let target = &fixture.target;
    let sessions: Vec<_> = (0..8)
        .map(|_| target.attach(Viewer::Everything).unwrap())
        .collect();
    let each = (0..64).map(|number| {
        let (session, compare, write) = (&sessions[number % 8], &compare, &write);
        async move {
            let mut compared = Data::of(Way::Stream, &[0; ALL_BYTES]);
            let mut written = Data::of(Way::Stream, &[0; ALL_BYTES]);
            let halves = ((compare, &mut compared), (write, &mut written));
            target.execute_fused(session, halves.0, halves.1).await
        }
    });
    let all = timeout(PATIENCE, join_all(each)).await.expect("an end");
    assert!(
        all.iter()
            .all(|both| *both == (Status::SUCCESS, Status::SUCCESS))
    );
}

#[tokio::test]
async fn write_zeroes_keeps_nobody_waiting_while_it_waits_for_a_buffer() {
    let (mut fixture, pool) = scarce().await;
    let zeroes = NvmCommand::WriteZeroes {
        blocks: ALL,
        deallocate: false,
        fua: false,
    };
    let write = NvmCommand::Write {
        blocks: ALL,
        fua: false,
    };
    let zeroes = checked(&mut fixture, zeroes, 0);
    let compare = checked(&mut fixture, NvmCommand::Compare { blocks: ALL }, 1);
    let replace = checked(&mut fixture, write, 2);
    let write = checked(&mut fixture, write, 0);
    let (target, session) = (&fixture.target, &fixture.session);

    let taken: Vec<_> = std::iter::from_fn(|| pool.try_take(ALL_BYTES).ok()).collect();
    let mut nothing = Data::none();
    let zero = advance(target.execute(session, &zeroes, &mut nothing));
    drop(taken);
    // It does not look yet, and others take all that there is.
    let mut compared = Data::of(Way::Stream, &[0; ALL_BYTES]);
    let mut replaced = Data::of(Way::Stream, &[1; ALL_BYTES]);
    let halves = ((&compare, &mut compared), (&replace, &mut replaced));
    let fused = advance(target.execute_fused(session, halves.0, halves.1));
    let mut data: Vec<_> = (0..64)
        .map(|_| Data::of(Way::Stream, &[2; ALL_BYTES]))
        .collect();
    let writes: Vec<_> = data
        .iter_mut()
        .map(|data| advance(target.execute(session, &write, data)))
        .collect();
    let all = async {
        let writes = join_all(writes.into_iter().map(finish));
        let (zeroed, fused, written) = tokio::join!(finish(zero), finish(fused), writes);
        assert!(zeroed.0.is_success() && fused.0.is_success() && fused.1.is_success());
        assert!(written.iter().all(|(status, _)| status.is_success()));
    };
    timeout(PATIENCE, all).await.expect("an end");
}
