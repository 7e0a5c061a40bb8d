//! Memory comes back only when nothing uses it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;

use forebay_fabric::shm;
use forebay_fabric::{Access, CloseReason, ErrorKind, Link, RemoteRange};
use forebay_mem::{Region, RegionSlice};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tokio::net::UnixStream;
use tokio::task::yield_now;

use crate::ends::{self, Ends, ends};
use crate::run;

const LEN: usize = 100_000;

fn memory() -> RegionSlice {
    Region::memfd(LEN).unwrap().slice(0..LEN).unwrap()
}

/// Nothing else is to be done by anybody, and it is still waiting.
async fn assert_waits(mut what: std::pin::Pin<&mut impl Future>) {
    for _ in 0..1000 {
        tokio::select! {
            biased;
            _ = what.as_mut() => panic!("it did not wait"),
            () = yield_now() => {}
        }
    }
}

async fn exposed(ends: &Ends) -> (forebay_fabric::Exposure, RemoteRange, RegionSlice) {
    let memory = memory();
    let exposure = ends
        .client
        .expose(memory.clone(), Access::ReadWrite)
        .await
        .unwrap();
    let range = RemoteRange {
        stag: exposure.stag,
        offset: exposure.base,
        len: exposure.len,
    };
    (exposure, range, memory)
}

#[test]
fn a_withdrawal_waits_for_a_device() {
    run(async {
        let ends = ends().await;
        let (exposure, range, memory) = exposed(&ends).await;
        let device = ends.server.link.mapped(range, Access::Write).unwrap();
        let mut withdrawal = pin!(ends.client.withdraw(exposure));
        assert_waits(withdrawal.as_mut()).await;
        assert!(
            ends.server.link.mapped(range, Access::Write).is_none(),
            "no new use"
        );
        assert!(device.write(0, b"late but in time"));
        drop(device);
        withdrawal.await;
        let mut there = [0; 4];
        assert!(memory.read(0, &mut there));
        assert_eq!(&there, b"late");
    });
}

#[test]
fn the_end_waits_for_a_device_whoever_closes() {
    for by_server in [true, false] {
        run(async {
            let ends = ends().await;
            let (exposure, range, _memory) = exposed(&ends).await;
            let device = ends.server.link.mapped(range, Access::Write).unwrap();
            if by_server {
                ends.sessions.close(ends.session.id());
            } else {
                ends.client.close(CloseReason::Done);
            }
            let mut closed = pin!(ends.client.closed());
            assert_waits(closed.as_mut()).await;
            let mut withdrawal = pin!(ends.client.withdraw(exposure));
            assert_waits(withdrawal.as_mut()).await;
            // The server does not wait for what it exposed nothing of.
            ends.server.link.closed().await;
            drop(device);
            let reason = closed.await;
            withdrawal.await;
            assert_eq!(reason == CloseReason::SessionEnded, by_server);
        });
    }
}

#[test]
fn a_dropped_expose_withdraws_by_itself() {
    run(async {
        let ends = ends().await;
        // More than may be exposed at once, each given up at a different stage.
        for round in 0..3000 {
            let mut expose = Box::pin(ends.client.expose(memory(), Access::Write));
            for _ in 0..round % 4 {
                tokio::select! {
                    biased;
                    _ = expose.as_mut() => break,
                    () = yield_now() => {}
                }
            }
            drop(expose);
            if round % 100 == 0 {
                let (exposure, ..) = exposed(&ends).await;
                ends.client.withdraw(exposure).await;
            }
        }
    });
}

#[test]
fn an_expose_that_is_dropped_when_its_answer_is_there_withdraws_by_itself() {
    run(async {
        let ends = ends().await;
        // More than may be exposed at once.
        for _ in 0..1100 {
            let mut given_up = pin!(ends.client.expose(memory(), Access::Write));
            tokio::select! {
                biased;
                _ = given_up.as_mut() => panic!("the peer has not answered"),
                () = std::future::ready(()) => {}
            }
            // Answers come in their order.
            let (exposure, ..) = exposed(&ends).await;
            ends.client.withdraw(exposure).await;
        }
    });
}

/// What both ends have to say of it does not fit in their sockets at once.
#[test]
fn much_is_withdrawn_at_once() {
    run(async {
        let ends = ends().await;
        let mut exposures = Vec::new();
        for _ in 0..900 {
            exposures.push(exposed(&ends).await.0);
        }
        let withdrawals = exposures.into_iter();
        let mut withdrawals: Vec<_> = withdrawals
            .map(|exposure| Box::pin(ends.client.withdraw(exposure)))
            .collect();
        poll_fn(|cx| {
            withdrawals.retain_mut(|withdrawal| withdrawal.as_mut().poll(cx).is_pending());
            match withdrawals.is_empty() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        exposed(&ends).await;
    });
}

/// Nor does it when nobody waits for that any more.
#[test]
fn much_is_withdrawn_at_once_and_given_up() {
    run(async {
        let ends = ends().await;
        let mut exposures = Vec::new();
        for _ in 0..1000 {
            exposures.push(exposed(&ends).await.0);
        }
        for exposure in exposures {
            let mut withdrawal = pin!(ends.client.withdraw(exposure));
            tokio::select! {
                biased;
                () = withdrawal.as_mut() => panic!("the peer has not answered"),
                () = std::future::ready(()) => {}
            }
        }
        let (exposure, ..) = exposed(&ends).await;
        ends.client.withdraw(exposure).await;
    });
}

#[test]
fn memory_that_is_not_a_files_is_not_exposed() {
    run(async {
        let ends = ends().await;
        let private = Region::anonymous(LEN).unwrap().slice(0..LEN).unwrap();
        let refused = ends
            .client
            .expose(private, Access::Write)
            .await
            .unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid);
        let empty = memory().slice(5..5).unwrap();
        let refused = ends.client.expose(empty, Access::Write).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid);
    });
}

#[test]
fn memory_that_may_vanish_is_copied_not_mapped() {
    run(async {
        let ends = ends().await;
        let file = memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LEN as u64).unwrap();
        let hand = file.try_clone().unwrap();
        let memory = Region::from_fd(file).unwrap().slice(0..LEN).unwrap();
        let exposure = ends
            .client
            .expose(memory.clone(), Access::ReadWrite)
            .await
            .unwrap();
        let range = RemoteRange {
            stag: exposure.stag,
            offset: 10,
            len: 60_000,
        };
        let link = &ends.server.link;
        assert!(link.mapped(range, Access::Write).is_none());
        link.write(range, vec![vec![7; 60_000].into()])
            .await
            .unwrap();
        let mut there = [0; 3];
        assert!(memory.read(9, &mut there));
        assert_eq!(there, [0, 7, 7]);

        ftruncate(&hand, 4096).unwrap();
        let gone = link
            .write(range, vec![vec![8; 60_000].into()])
            .await
            .unwrap_err();
        assert_eq!(gone.kind, ErrorKind::NotReachable);
        let pool = forebay_mem::Pool::new(1 << 20);
        let gone = link.read(range, pool.take(60_000).await).await.unwrap_err();
        assert_eq!(gone.kind, ErrorKind::NotReachable);
        // Only that memory is the worse for it.
        link.send(b"hello").await.unwrap();
        ends.client.recv(&mut Vec::new()).await.unwrap().unwrap();
        ends.client.withdraw(exposure).await;
    });
}

/// So much takes its time to unmap: its pages go with it.
const MUCH: usize = 64 << 20;

/// Runs with one thread that may wait.
fn run_with_one_that_waits(future: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(future);
}

#[test]
fn much_memory_is_unmapped_beside_the_link() {
    run_with_one_that_waits(async {
        let ends = ends().await;
        let (little, ..) = exposed(&ends).await;
        let much = Region::memfd(MUCH).unwrap().slice(0..MUCH).unwrap();
        let much = ends.client.expose(much, Access::Write).await.unwrap();
        // The only thread that may wait does so already.
        let (go_on, wait) = mpsc::channel::<()>();
        let waiting = tokio::task::spawn_blocking(move || wait.recv());
        ends.client.withdraw(little).await;
        let mut withdrawal = pin!(ends.client.withdraw(much));
        assert_waits(withdrawal.as_mut()).await;
        ends.client.send(b"hello").await.unwrap();
        let mut message = Vec::new();
        ends.server.link.recv(&mut message).await.unwrap().unwrap();
        drop(go_on);
        withdrawal.await;
        waiting.await.unwrap().unwrap_err();
    });
}

/// Also what is little each by itself.
#[test]
fn what_is_much_together_is_unmapped_beside_the_link_at_its_end() {
    const HALF: usize = MUCH / 2;
    run_with_one_that_waits(async {
        let ends = ends().await;
        let mut exposures = Vec::new();
        for _ in 0..2 {
            let half = Region::memfd(HALF).unwrap().slice(0..HALF).unwrap();
            exposures.push(ends.client.expose(half, Access::Write).await.unwrap());
        }
        let (go_on, wait) = mpsc::channel::<()>();
        let waiting = tokio::task::spawn_blocking(move || wait.recv());
        ends.client.close(CloseReason::Done);
        let mut closed = pin!(ends.client.closed());
        assert_waits(closed.as_mut()).await;
        drop(go_on);
        closed.await;
        waiting.await.unwrap().unwrap_err();
    });
}

/// Also when the runtime that served the client's end is gone.
#[test]
fn the_end_of_a_runtime_waits_for_a_device() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let (server, client) = (
        builder.enable_all().build().unwrap(),
        builder.build().unwrap(),
    );
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_nonblocking(true).unwrap();
    let sessions = ends::sessions();
    let session = ends::session_of(&sessions, "tenant");
    let proof = session.proof();
    let (tell, told) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let connecting = std::thread::spawn(move || {
        let link = client.block_on(async {
            let stream = UnixStream::from_std(there).unwrap();
            let link = shm::connect(stream, &proof).await.unwrap();
            let exposure = link.expose(memory(), Access::Write).await.unwrap();
            (link, exposure)
        });
        tell.send(link.1.stag).unwrap();
        wait.recv().unwrap();
        drop(client);
        link
    });
    server.block_on(async {
        let stream = UnixStream::from_std(here).unwrap();
        let accepted = shm::accept(stream, &sessions).await.unwrap();
        let stag = loop {
            match told.try_recv() {
                Ok(stag) => break stag,
                Err(_) => yield_now().await,
            }
        };
        let range = RemoteRange {
            stag,
            offset: 0,
            len: 10,
        };
        let device = accepted.link.mapped(range, Access::Write).unwrap();
        go.send(()).unwrap();
        while !connecting.is_finished() {
            yield_now().await;
        }
        let (link, exposure) = connecting.join().unwrap();
        let mut closed = pin!(link.closed());
        assert_waits(closed.as_mut()).await;
        drop(device);
        assert_eq!(closed.await, CloseReason::Lost);
        link.withdraw(exposure).await;
    });
}
