use forebay_mem::BLOCK_MAX_BYTES;

use super::subject::{Lent, Subject, UNTOUCHED, bufs, pattern};
use crate::{Access, ErrorKind, Link};

const SIZES: [usize; 8] = [
    0,
    1,
    4095,
    4096,
    4097,
    BLOCK_MAX_BYTES,
    BLOCK_MAX_BYTES + 1,
    (16 << 20) + 1,
];

pub(super) async fn run<L: Link>(subject: Subject<L>) {
    for len in SIZES {
        there(&subject, len).await;
        and_back(&subject, len).await;
    }
    a_message_after_a_write_finds_it(&subject).await;
    longer_than_the_target(&subject).await;
    what_is_mapped_is_the_same(&subject).await;
}

/// A write in the middle, and nothing but that.
async fn there<L: Link>(subject: &Subject<L>, len: usize) {
    let lent = subject.expose(len + 200, Access::Write).await;
    let bytes = pattern(len as u64 + 1, len);
    let range = lent.range(99, len as u64);
    subject
        .server
        .write(range, bufs(&bytes))
        .await
        .expect("it is written");
    let _placed = subject.server.fence().await.expect("it is placed");
    let there = lent.memory.bytes();
    assert!(there[99..99 + len] == bytes, "a write of {len} bytes");
    let beside = there[..99].iter().chain(&there[99 + len..]);
    assert!(beside.into_iter().all(|byte| *byte == UNTOUCHED));
    withdraw(subject, lent).await;
}

async fn and_back<L: Link>(subject: &Subject<L>, len: usize) {
    let lent = subject.expose(len + 1, Access::Read).await;
    let bytes = pattern(len as u64 + 2, len + 1);
    lent.memory.fill(&bytes);
    let mut got = Vec::new();
    while got.len() < len || len == 0 {
        let mut into = subject.pool.take(BLOCK_MAX_BYTES).await;
        // Behind what is there already.
        into.spare()[..10].fill(1);
        into.set_len(10.min(into.capacity()));
        let part = into.room().min(len - got.len());
        let range = lent.range(1 + got.len() as u64, part as u64);
        let into = subject.server.read(range, into).await.expect("it is read");
        assert_eq!(into.len(), 10 + part);
        assert_eq!(into[..10], [1; 10]);
        got.extend_from_slice(&into[10..]);
        if len == 0 {
            break;
        }
    }
    assert!(got == bytes[1..], "a read of {len} bytes");
    withdraw(subject, lent).await;
}

async fn a_message_after_a_write_finds_it<L: Link>(subject: &Subject<L>) {
    let lent = subject.expose(100_000, Access::ReadWrite).await;
    let range = lent.range(0, 100_000);
    let server = subject.server.clone();
    let writing = tokio::spawn(async move {
        let mut go = Vec::new();
        for number in 0..300u64 {
            let len = (number * 7919 % 100_000) as usize;
            server
                .write(range, bufs(&pattern(number, len)))
                .await
                .expect("it is written");
            server
                .send(&number.to_le_bytes())
                .await
                .expect("it is sent");
            server
                .recv(&mut go)
                .await
                .expect("it comes")
                .expect("not the end");
        }
    });
    let mut told = Vec::new();
    for number in 0..300u64 {
        subject
            .client
            .recv(&mut told)
            .await
            .expect("it comes")
            .expect("not the end");
        assert_eq!(told, number.to_le_bytes());
        let len = (number * 7919 % 100_000) as usize;
        assert!(
            lent.memory.bytes()[..len] == pattern(number, len),
            "write {number}"
        );
        subject.client.send(b"go on").await.expect("it is sent");
    }
    writing.await.expect("no panic");
    withdraw(subject, lent).await;
}

async fn longer_than_the_target<L: Link>(subject: &Subject<L>) {
    let lent = subject.expose(4096, Access::ReadWrite).await;
    let refused = subject
        .server
        .write(lent.range(0, 100), bufs(&[1; 101]))
        .await;
    assert_eq!(refused.expect_err("too long").kind, ErrorKind::Invalid);
    let into = subject.pool.take(4096).await;
    let longer = into.capacity() as u64 + 1;
    let refused = subject.server.read(lent.range(0, longer), into).await;
    assert_eq!(refused.expect_err("too long").kind, ErrorKind::Invalid);
    lent.memory.check_untouched();
    // The link is none the worse for it; less than the target is right.
    subject
        .server
        .write(lent.range(0, 100), bufs(&[1; 99]))
        .await
        .expect("it is written");
    let _placed = subject.server.fence().await.expect("it is placed");
    assert_eq!(lent.memory.bytes()[98..100], [1, UNTOUCHED]);
    withdraw(subject, lent).await;
}

async fn what_is_mapped_is_the_same<L: Link>(subject: &Subject<L>) {
    let lent = subject.expose(10_000, Access::Write).await;
    assert!(
        subject
            .server
            .mapped(lent.range(0, 10), Access::Read)
            .is_none()
    );
    assert!(
        subject
            .server
            .mapped(lent.range(0, 10_001), Access::Write)
            .is_none()
    );
    if let Some(window) = subject.server.mapped(lent.range(5000, 10), Access::Write) {
        assert_eq!(window.len(), 10);
        assert!(window.write(0, b"0123456789"));
        assert_eq!(&lent.memory.bytes()[5000..5010], b"0123456789");
    }
    withdraw(subject, lent).await;
}

async fn withdraw<L: Link>(subject: &Subject<L>, lent: Lent) {
    subject.client.withdraw(lent.exposure).await;
    lent.memory.check_guards();
}
