use std::sync::Arc;

use forebay_mem::BLOCK_MAX_BYTES;
use tokio::task::yield_now;

use super::subject::{Subject, bufs, pattern};
use crate::{Access, CloseReason, ErrorKind, Link};

/// How a link is ended while transfers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    ServerCloses,
    ClientCloses,
    ClientVanishes,
    Idle,
}

pub(super) const CASES: [Case; 4] = [
    Case::ServerCloses,
    Case::ClientCloses,
    Case::ClientVanishes,
    Case::Idle,
];

pub(super) async fn run<L: Link>(subject: Subject<L>, case: Case) {
    match case {
        Case::Idle => waiting_calls_end(subject).await,
        _ => no_late_byte(subject, case).await,
    }
}

async fn no_late_byte<L: Link>(subject: Subject<L>, case: Case) {
    const LEN: usize = 4 << 20;
    let target = subject.expose(LEN, Access::Write).await;
    let source = subject.expose(BLOCK_MAX_BYTES, Access::Read).await;
    let (write_to, read_from) = (
        target.range(0, LEN as u64),
        source.range(0, BLOCK_MAX_BYTES as u64),
    );
    let mut tasks = Vec::new();
    for task in 0..4 {
        let (server, pool) = (subject.server.clone(), subject.pool.clone());
        tasks.push(tokio::spawn(async move {
            let bytes = pattern(task, LEN);
            loop {
                let moved = if task % 2 == 0 {
                    server.write(write_to, bufs(&bytes)).await
                } else {
                    let into = pool.take(BLOCK_MAX_BYTES).await;
                    server.read(read_from, into).await.map(drop)
                };
                if let Err(error) = moved {
                    assert_eq!(error.kind, ErrorKind::Closed, "{error}");
                    return;
                }
                yield_now().await;
            }
        }));
    }
    let listening = tokio::spawn({
        let server = subject.server.clone();
        async move { server.recv(&mut Vec::new()).await }
    });
    for _ in 0..50 {
        yield_now().await;
    }
    let client = match case {
        Case::ClientVanishes => {
            drop(Arc::into_inner(subject.client).expect("nobody else holds it"));
            None
        }
        Case::ClientCloses => {
            subject.client.close(CloseReason::Done);
            Some(subject.client)
        }
        _ => {
            subject.server.close(CloseReason::SessionEnded);
            let late = subject.server.mapped(write_to, Access::Write);
            assert!(late.is_none(), "given out after the end");
            Some(subject.client)
        }
    };
    let Some(client) = client else {
        for task in tasks {
            task.await.expect("no panic");
        }
        assert_ne!(subject.server.closed().await, CloseReason::SessionEnded);
        return;
    };
    let reason = client.closed().await;
    if case == Case::ServerCloses {
        // A stream that ends amid a transfer has no place for a reason.
        assert!(
            matches!(reason, CloseReason::SessionEnded | CloseReason::Lost),
            "{reason}"
        );
    }
    // Now the memory is the client's own again, though calls of the server may not have returned yet.
    let own = pattern(77, LEN);
    target.memory.fill(&own);
    for task in tasks {
        task.await.expect("no panic");
    }
    assert!(target.memory.bytes() == own, "written after the end");
    target.memory.check_guards();
    source.memory.check_guards();
    // The server ended or lost the link, or the client finished it.
    if case == Case::ServerCloses {
        assert_eq!(
            listening
                .await
                .expect("no panic")
                .expect_err("it has ended")
                .kind,
            ErrorKind::Closed
        );
    } else {
        match listening.await.expect("no panic") {
            Ok(end) => assert!(end.is_none()),
            // A stream that ends amid a transfer looks as if it were lost.
            Err(error) => assert_eq!(error.kind, ErrorKind::Closed),
        }
    }
    // Withdrawing after the end returns.
    client.withdraw(target.exposure).await;
    client.withdraw(source.exposure).await;
    let late = client
        .expose(target.memory.inner.clone(), Access::Write)
        .await;
    assert_eq!(late.expect_err("it has ended").kind, ErrorKind::Closed);
}

async fn waiting_calls_end<L: Link>(subject: Subject<L>) {
    let (server, client) = (subject.server.clone(), subject.client.clone());
    let receiving = tokio::spawn(async move { client.recv(&mut Vec::new()).await.is_err() });
    // The server receives nothing, so the sender comes to wait.
    let client = subject.client.clone();
    let sending = tokio::spawn(async move {
        loop {
            if let Err(error) = client.send(&[0; 8192]).await {
                return error.kind;
            }
        }
    });
    let watching = tokio::spawn(async move { server.closed().await });
    for _ in 0..200 {
        yield_now().await;
    }
    subject.server.close(CloseReason::SessionEnded);
    subject.server.close(CloseReason::Done);
    assert!(receiving.await.expect("no panic"));
    assert_eq!(sending.await.expect("no panic"), ErrorKind::Closed);
    assert_eq!(watching.await.expect("no panic"), CloseReason::SessionEnded);
    assert_eq!(subject.client.closed().await, CloseReason::SessionEnded);
    let fenced = subject.server.fence().await;
    assert_eq!(fenced.expect_err("it has ended").kind, ErrorKind::Closed);
}
