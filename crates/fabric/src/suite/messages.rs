use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::task::yield_now;

use super::subject::{Subject, pattern};
use crate::{CloseReason, ErrorKind, Link, MESSAGE_BYTES_MAX};

/// More than any link keeps on the way.
const MANY: u64 = 5000;

const SIZES: [usize; 9] = [
    0,
    1,
    7,
    8,
    9,
    100,
    4096,
    MESSAGE_BYTES_MAX - 1,
    MESSAGE_BYTES_MAX,
];

pub(super) async fn run<L: Link>(subject: Subject<L>) {
    sizes(&subject).await;
    in_order_both_ways(&subject).await;
    a_slow_receiver_holds_the_sender_back(&subject).await;
    a_dropped_receive_loses_nothing(&subject).await;
    finishing(&subject).await;
}

async fn sizes<L: Link>(subject: &Subject<L>) {
    let mut got = b"something long that was there before".to_vec();
    for len in SIZES {
        let message = pattern(len as u64, len);
        subject.client.send(&message).await.expect("it is sent");
        subject
            .server
            .recv(&mut got)
            .await
            .expect("it comes")
            .expect("not the end");
        assert!(got == message, "a message of {len} bytes");
    }
    let longer = vec![0; MESSAGE_BYTES_MAX + 1];
    let refused = subject.client.send(&longer).await.expect_err("too long");
    assert_eq!(refused.kind, ErrorKind::Invalid);
}

fn numbered(number: u64) -> Vec<u8> {
    let mut message = number.to_le_bytes().to_vec();
    let len = (number * 37 % 700) as usize;
    message.extend(pattern(
        number,
        if number.is_multiple_of(100) {
            9000
        } else {
            len
        },
    ));
    message
}

async fn in_order_both_ways<L: Link>(subject: &Subject<L>) {
    let ends = [&subject.server, &subject.client];
    let mut tasks = Vec::new();
    for end in ends {
        let (sender, receiver) = (end.clone(), end.clone());
        tasks.push(tokio::spawn(async move {
            for number in 0..MANY {
                sender.send(&numbered(number)).await.expect("it is sent");
            }
        }));
        tasks.push(tokio::spawn(async move {
            let mut got = Vec::new();
            for number in 0..MANY {
                receiver
                    .recv(&mut got)
                    .await
                    .expect("it comes")
                    .expect("not the end");
                assert!(got == numbered(number), "message {number}");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}

async fn a_slow_receiver_holds_the_sender_back<L: Link>(subject: &Subject<L>) {
    let sender = subject.server.clone();
    let sending = tokio::spawn(async move {
        for number in 0..MANY {
            sender.send(&numbered(number)).await.expect("it is sent");
        }
    });
    for _ in 0..1000 {
        yield_now().await;
    }
    let mut got = Vec::new();
    for number in 0..MANY {
        subject
            .client
            .recv(&mut got)
            .await
            .expect("it comes")
            .expect("not the end");
        assert!(got == numbered(number), "message {number}");
    }
    sending.await.expect("no panic");
}

async fn a_dropped_receive_loses_nothing<L: Link>(subject: &Subject<L>) {
    let mut got = Vec::new();
    for number in 0..200 {
        {
            let mut wait = pin!(subject.server.recv(&mut got));
            let mut context = Context::from_waker(Waker::noop());
            // Nothing was sent: it waits, and is given up at some stage of waiting.
            for _ in 0..number % 7 {
                assert!(matches!(wait.as_mut().poll(&mut context), Poll::Pending));
                yield_now().await;
            }
        }
        subject
            .client
            .send(&numbered(number))
            .await
            .expect("it is sent");
        subject
            .server
            .recv(&mut got)
            .await
            .expect("it comes")
            .expect("not the end");
        assert!(got == numbered(number), "message {number}");
    }
    // There is always something, and who receives is given up whenever he waits all the same.
    let sender = subject.client.clone();
    let sending = tokio::spawn(async move {
        for number in 0..200 {
            sender.send(&numbered(number)).await.expect("it is sent");
        }
    });
    for number in 0..200 {
        loop {
            let mut once = pin!(subject.server.recv(&mut got));
            match once.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(received) => break received.expect("it comes").expect("not the end"),
                Poll::Pending => yield_now().await,
            }
        }
        assert!(got == numbered(number), "message {number}");
    }
    sending.await.expect("no panic");
}

async fn finishing<L: Link>(subject: &Subject<L>) {
    for number in 0..20 {
        subject
            .client
            .send(&numbered(number))
            .await
            .expect("it is sent");
    }
    subject.client.close(CloseReason::Done);
    let mut got = Vec::new();
    for number in 0..20 {
        subject
            .server
            .recv(&mut got)
            .await
            .expect("it comes")
            .expect("not the end");
        assert!(
            got == numbered(number),
            "message {number}, sent before the end"
        );
    }
    let end = subject.server.recv(&mut got).await.expect("no error");
    assert!(end.is_none());
    assert_eq!(subject.server.closed().await, CloseReason::Done);
    let refused = subject
        .client
        .send(b"late")
        .await
        .expect_err("it has ended");
    assert_eq!(refused.kind, ErrorKind::Closed);
}
