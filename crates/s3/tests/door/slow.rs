//! Clients that are slow, on a bad line or on purpose.

use std::time::Duration;

use forebay_s3::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::task::yield_now;
use tokio::time::{interval, timeout};

use crate::support::{ALPHA, Answer, Ask, Client, Server, Who};

/// Who knows an access key and not its secret.
const LIAR: Who = Who {
    secret: "guessed",
    ..ALPHA
};

async fn start(requests_in_flight: usize, body_timeout: Duration) -> Server {
    let config = Config {
        requests_in_flight,
        body_timeout,
        ..Config::default()
    };
    let server = Server::with(config, u64::MAX).await;
    server.make_bucket("bucket").await;
    server
}

/// Sends a body in pieces, one every so often, until it is answered.
async fn trickle(client: &mut Client, body: &[u8], piece: usize, every: Duration) -> Answer {
    let mut pieces = body.chunks(piece);
    let mut pace = interval(every);
    loop {
        tokio::select! {
            answer = client.answer(false) => return answer,
            _ = pace.tick() => client.send(pieces.next().unwrap_or_default()).await,
        }
    }
}

/// Takes a response bit by bit; returns how much came.
async fn sip(server: &Server, target: &str) -> usize {
    let (mut near, far) = duplex(4096);
    let door = server.door.clone();
    tokio::spawn(door.serve_connection(far, None, false, std::future::pending::<()>()));
    let ask = Ask::new("GET", target).header("connection", "close");
    near.write_all(&ask.signed(ALPHA, server.now_ms()))
        .await
        .expect("taken");
    let mut pace = interval(Duration::from_millis(10));
    let mut taken = 0;
    let mut buf = [0; 4096];
    loop {
        pace.tick().await;
        match near.read(&mut buf).await {
            Ok(0) | Err(_) => return taken,
            Ok(count) => taken += count,
        }
    }
}

#[tokio::test]
async fn a_body_may_be_slow_and_not_slower() {
    let server = start(1024, Duration::from_secs(1)).await;
    let ask = Ask::new("PUT", "/bucket/key").body(vec![1; 60_000]);
    let (head, body) = ask.parts(ALPHA, server.now_ms());
    let mut slow = server.connect().await;
    slow.send(head.as_bytes()).await;
    let answer = trickle(&mut slow, &body, 4096, Duration::from_millis(100)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut slower = server.connect().await;
    slower.send(head.as_bytes()).await;
    trickle(&mut slower, &body, 100, Duration::from_millis(50))
        .await
        .is(400, "RequestTimeout");
    server.finish().await;
}

#[tokio::test]
async fn a_refused_body_is_not_waited_for_however_it_comes() {
    let server = start(1024, Duration::from_millis(200)).await;
    let ask = Ask::new("PUT", "/bucket/key").body(vec![1; 12 << 20]);
    let (head, body) = ask.parts(LIAR, server.now_ms());
    let mut client = server.connect().await;
    client.send(head.as_bytes()).await;
    let answer = trickle(&mut client, &body, 4096, Duration::from_millis(10));
    let answer = timeout(Duration::from_secs(15), answer).await;
    answer
        .expect("refused by now")
        .is(403, "SignatureDoesNotMatch");
    server.finish().await;
}

#[tokio::test]
async fn a_refused_body_keeps_nobody_out() {
    let server = start(1, Duration::from_secs(30)).await;
    let ask = Ask::new("PUT", "/bucket/key").body(vec![1; 100_000]);
    let (head, body) = ask.parts(LIAR, server.now_ms());
    let mut liar = server.connect().await;
    liar.send(head.as_bytes()).await;
    liar.send(&body[..5000]).await;
    for _ in 0..1000 {
        // Until it is refused.
        yield_now().await;
    }
    let others = async { while server.get("/bucket").await.status != 200 {} };
    tokio::select! {
        () = others => {}
        refusal = liar.answer(false) => panic!("others waited for {refusal:?}"),
    }
    drop(liar);
    server.finish().await;
}

#[tokio::test]
async fn a_slow_sender_is_waited_for_unless_others_wait_for_memory() {
    let server = start(1024, Duration::from_secs(1)).await;
    let ask = Ask::new("PUT", "/bucket/key").body(vec![1; 200_000]);
    let (head, body) = ask.parts(ALPHA, server.now_ms());
    let every = Duration::from_millis(40);
    let mut slow = server.connect().await;
    slow.send(head.as_bytes()).await;
    let answer = trickle(&mut slow, &body, 4096, every).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut slow = server.connect().await;
    slow.send(head.as_bytes()).await;
    slow.send(&body[..4096]).await;
    for _ in 0..1000 {
        // Until it has a buffer.
        yield_now().await;
    }
    let mut all = Vec::new();
    while let Ok(buf) = server.pool.try_take(1 << 20) {
        all.push(buf);
    }
    let sending = async {
        let answer = trickle(&mut slow, &body[4096..], 4096, every);
        let answer = timeout(Duration::from_secs(15), answer).await;
        drop(all);
        answer.expect("others wait for it")
    };
    let put = server.ask(ALPHA, Ask::new("PUT", "/bucket/other").body("x"));
    let (slow, put) = tokio::join!(sending, put);
    slow.is(400, "RequestTimeout");
    assert_eq!(put.status, 200, "{}", put.text());
    server.finish().await;
}

#[tokio::test]
async fn a_slow_reader_is_served_unless_others_wait_for_memory() {
    const SIZE: usize = 1 << 20;
    let server = start(1024, Duration::from_secs(1)).await;
    server.put("/bucket/key", &vec![1; SIZE]).await;
    assert!(sip(&server, "/bucket/key").await > SIZE);
    let mut all = Vec::new();
    while let Ok(buf) = server.pool.try_take(1 << 20) {
        all.push(buf);
    }
    let reading = async {
        let taken = sip(&server, "/bucket/key").await;
        drop(all);
        taken
    };
    let put = server.ask(ALPHA, Ask::new("PUT", "/bucket/other").body(b"x"));
    let (taken, put) = tokio::join!(reading, put);
    assert!(taken < SIZE, "{taken}");
    assert_eq!(put.status, 200, "{}", put.text());
    server.finish().await;
}
