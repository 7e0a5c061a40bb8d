use std::future::{Future, poll_fn};
use std::task::Poll;

use forebay_mem::BLOCK_MAX_BYTES;
use tokio::task::yield_now;

use super::subject::{Subject, bufs, memory, pattern};
use crate::{Access, ErrorKind, Link};

pub(super) async fn run<L: Link>(subject: Subject<L>) {
    many_at_once(&subject).await;
    messages_wait_for_no_write(&subject).await;
    regions_come_and_go(&subject).await;
}

async fn many_at_once<L: Link>(subject: &Subject<L>) {
    const EACH: usize = 50_000;
    const TASKS: usize = 64;
    let lent = subject.expose(EACH * TASKS, Access::ReadWrite).await;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let server = subject.server.clone();
        let pool = subject.pool.clone();
        let range = lent.range((task * EACH) as u64, EACH as u64);
        tasks.push(tokio::spawn(async move {
            for round in 0..5 {
                let bytes = pattern((task * 10 + round) as u64, EACH);
                server
                    .write(range, bufs(&bytes))
                    .await
                    .expect("it is written");
                let _placed = server.fence().await.expect("it is placed");
                let into = pool.take(EACH).await;
                let got = server.read(range, into).await.expect("it is read");
                assert!(got[..] == bytes, "task {task}, round {round}");
                server.send(&bytes[..100]).await.expect("it is sent");
            }
        }));
    }
    let mut got = Vec::new();
    for _ in 0..TASKS * 5 {
        subject
            .client
            .recv(&mut got)
            .await
            .expect("it comes")
            .expect("not the end");
        assert_eq!(got.len(), 100);
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    subject.client.withdraw(lent.exposure).await;
    lent.memory.check_guards();
}

/// A task that works on several writes and waits for a message to be taken does not attend to the writes meanwhile.
async fn messages_wait_for_no_write<L: Link>(subject: &Subject<L>) {
    const EACH: usize = 1 << 20;
    let lent = subject.expose(EACH, Access::Write).await;
    let bytes = pattern(7, EACH);
    let mut waiting = Vec::new();
    for _ in 0..12 {
        let mut write = Box::pin(
            subject
                .server
                .write(lent.range(0, EACH as u64), bufs(&bytes)),
        );
        match poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await {
            Poll::Ready(written) => written.expect("it is written"),
            Poll::Pending => waiting.push(write),
        }
    }
    subject.server.send(b"meanwhile").await.expect("it is sent");
    let mut got = Vec::new();
    let came = subject.client.recv(&mut got).await.expect("it comes");
    assert!(came.is_some() && got == b"meanwhile");
    for write in waiting {
        write.await.expect("it is written");
    }
    let _placed = subject.server.fence().await.expect("it is placed");
    assert!(lent.memory.bytes() == bytes);
    subject.client.withdraw(lent.exposure).await;
}

/// What was withdrawn stays as its owner leaves it, while the server goes on writing where it can.
async fn regions_come_and_go<L: Link>(subject: &Subject<L>) {
    if !refuses_softly(subject).await {
        // The peer checks, and ends the link for a withdrawn name: then only its own order of use is right.
        return;
    }
    for round in 0..30u64 {
        let lent = subject.expose(300_000, Access::Write).await;
        let range = lent.range(0, 300_000);
        let server = subject.server.clone();
        let writing = tokio::spawn(async move {
            let bytes = pattern(round, 300_000);
            let mut writes = 0;
            while server.write(range, bufs(&bytes)).await.is_ok() {
                writes += 1;
                yield_now().await;
            }
            writes
        });
        for _ in 0..round {
            yield_now().await;
        }
        subject.client.withdraw(lent.exposure).await;
        let own = pattern(1000 + round, 300_000);
        lent.memory.fill(&own);
        writing.await.expect("no panic");
        assert!(lent.memory.bytes() == own, "written after it was withdrawn");
        lent.memory.check_guards();
    }
}

/// Whether this fabric's own end knows what is exposed.
async fn refuses_softly<L: Link>(subject: &Subject<L>) -> bool {
    let lent = subject.expose(100, Access::Write).await;
    let known = subject
        .server
        .mapped(lent.range(0, 100), Access::Write)
        .is_some();
    subject.client.withdraw(lent.exposure).await;
    known
}

pub(super) async fn bounds<L: Link>(subject: Subject<L>) {
    let memory = memory(BLOCK_MAX_BYTES);
    let mut exposed = Vec::new();
    let refused = loop {
        match subject
            .client
            .expose(memory.inner.clone(), Access::Write)
            .await
        {
            Ok(exposure) => exposed.push(exposure),
            Err(error) => break error,
        }
        assert!(exposed.len() < 1 << 20, "there is a bound");
    };
    assert_eq!(refused.kind, ErrorKind::Busy);
    let last = exposed.pop().expect("some were");
    subject.client.withdraw(last).await;
    let again = subject
        .client
        .expose(memory.inner.clone(), Access::Write)
        .await;
    exposed.push(again.expect("one was withdrawn"));
    // The link is none the worse for it.
    subject.client.send(b"hello").await.expect("it is sent");
    let mut got = Vec::new();
    subject
        .server
        .recv(&mut got)
        .await
        .expect("it comes")
        .expect("not the end");
    for exposure in exposed {
        subject.client.withdraw(exposure).await;
    }
}
