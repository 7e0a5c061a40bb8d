//! Clients that are slow, on a bad line or on purpose.

use std::time::Duration;

use forebay_s3::Config;
use forebay_store::suite::Around;
use forebay_store::{MemoryStore, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::yield_now;
use tokio::time::{Interval, MissedTickBehavior, interval, pause, resume, timeout};

use crate::copies::Packing;
use crate::support::{ALPHA, Answer, Ask, BETA, Client, Server, Sign, Who};

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

/// A machine that stands still for a while makes nobody faster afterwards.
fn pace(every: Duration) -> Interval {
    let mut pace = interval(every);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

/// Sends a body in pieces, one every so often, until it is answered.
pub async fn trickle(client: &mut Client, body: &[u8], piece: usize, every: Duration) -> Answer {
    let mut pieces = body.chunks(piece);
    let mut pace = pace(every);
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
    let mut pace = pace(Duration::from_millis(10));
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

/// A store whose bodies take buffers of the pool, with a bucket of each tenant's.
async fn packing() -> Server<Around<MemoryStore, Packing>> {
    let server = Packing::serve(Config::default()).await;
    for (who, bucket) in [(ALPHA, "/bucket"), (BETA, "/betas")] {
        assert_eq!(server.ask(who, Ask::new("PUT", bucket)).await.status, 200);
    }
    server
}

/// How many requests of a tenant's are in flight.
fn in_flight<S: Store<Body: Unpin>>(server: &Server<S>, who: Who) -> u64 {
    let lines = server.door.live();
    let mut lines = lines.iter().filter(|line| line.tenant == who.tenant);
    lines.next().map_or(0, |line| line.in_flight)
}

/// Until whoever can go on has.
async fn settle() {
    for _ in 0..1000 {
        yield_now().await;
    }
}

/// So many clients that send this and take nothing, as soon as their requests have what they may.
async fn stalled<S: Store<Body: Unpin>>(
    server: &Server<S>,
    who: Who,
    request: &[u8],
    count: u64,
) -> Vec<DuplexStream> {
    let before = in_flight(server, who);
    let mut clients = Vec::new();
    for _ in 0..count {
        let (mut near, far) = duplex(4096);
        let door = server.door.clone();
        tokio::spawn(door.serve_connection(far, None, false, std::future::pending::<()>()));
        near.write_all(request).await.expect("taken");
        clients.push(near);
    }
    let beginning = async {
        while in_flight(server, who) < before + count {
            yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), beginning)
        .await
        .expect("they are in flight while nothing is taken");
    settle().await;
    clients
}

/// So many readers of an object of [`ALPHA`]'s.
pub async fn readers<S: Store<Body: Unpin>>(server: &Server<S>, count: u64) -> Vec<DuplexStream> {
    let get = Ask::new("GET", "/bucket/key").signed(ALPHA, server.now_ms());
    stalled(server, ALPHA, &get, count).await
}

/// Bytes of which no two MiB are alike.
pub fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at / 251 + at) as u8).collect()
}

#[tokio::test]
async fn readers_of_one_tenant_leave_memory_to_others() {
    // All of the shorter one is on its way at once.
    for size in [1 << 20, 8 << 20] {
        let server = packing().await;
        server.put("/bucket/key", &vec![1; size]).await;
        // As many as have all buffers.
        let mut readers = readers(&server, 80).await;
        for ask in [
            Ask::new("PUT", "/betas/key").body(vec![1; 4 << 20]),
            Ask::new("GET", "/betas/key"),
        ] {
            let answer = timeout(Duration::from_secs(20), server.ask(BETA, ask)).await;
            let answer = answer.expect("it waits for another tenant's clients");
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        // Those that wait for their own tenant's are served when these have gone.
        let mut last = readers.pop().expect("a reader");
        let mut taken = vec![0; size + (1 << 20)];
        let ending = async {
            let mut count = 0;
            while count < size {
                match last.read(&mut taken[count..]).await.expect("served") {
                    0 => panic!("cut"),
                    more => count += more,
                }
            }
        };
        drop(readers);
        timeout(Duration::from_secs(20), ending)
            .await
            .expect("served");
        drop(last);
        server.finish().await;
    }
}

#[tokio::test]
async fn what_a_tenant_keeps_is_counted_by_whole_buffers() {
    let server = packing().await;
    server.put("/bucket/key", &vec![1; 8 << 20]).await;
    let get = Ask::new("GET", "/bucket/key").header("range", "bytes=524288-");
    let get = get.signed(ALPHA, server.now_ms());
    let put = Ask::new("PUT", "/bucket/key").body(vec![1; (512 << 10) + 1]);
    let (head, body) = put.parts(ALPHA, server.now_ms());
    let put = [head.as_bytes(), &body[..1000]].concat();
    for request in [get, put] {
        let mut clients = stalled(&server, ALPHA, &request, 80).await;
        for client in &mut clients {
            // So much that the next buffer waits behind the rest of the first one.
            let mut taken = vec![0; 200_000];
            tokio::select! {
                _ = client.read_exact(&mut taken) => {}
                () = settle() => {}
            }
        }
        let usage = server.pool.usage();
        assert!(usage.in_use <= usage.limit / 2, "{usage:?}");
        drop(clients);
        while in_flight(&server, ALPHA) > 0 {
            yield_now().await;
        }
    }
    server.finish().await;
}

/// As many as a tenant alone is read ahead for.
pub const AHEAD: u64 = 8;

#[tokio::test]
async fn a_reader_beside_many_of_its_tenant_is_served_in_slices() {
    let server = packing().await;
    let object = bytes((5 << 20) + 12_345);
    server.put("/bucket/key", &object).await;
    let stalled = readers(&server, AHEAD).await;
    let whole = server.get("/bucket/key").await;
    assert!(whole.status == 200 && whole.body == object);
    for (first, last) in [
        (700_000, 2_500_000),
        (1 << 19, 1 << 20),
        (0, object.len() - 1),
    ] {
        let range = format!("bytes={first}-{last}");
        let ask = Ask::new("GET", "/bucket/key").header("range", &range);
        let part = server.ask(ALPHA, ask).await;
        assert!(
            part.status == 206 && part.body == object[first..=last],
            "{range}"
        );
    }
    server.put("/bucket/none", b"").await;
    assert_eq!(server.get("/bucket/none").await.body, b"");
    drop(stalled);
    server.finish().await;
}

#[tokio::test]
async fn slices_of_an_object_that_is_replaced_are_cut_short() {
    let server = packing().await;
    let object = bytes(5 << 20);
    server.put("/bucket/key", &object).await;
    let stalled = readers(&server, AHEAD).await;
    let mut last = readers(&server, 1).await.pop().expect("a reader");
    server.put("/bucket/key", &vec![1; 5 << 20]).await;
    let mut taken = Vec::new();
    last.read_to_end(&mut taken).await.expect("served");
    let head = taken.windows(4).position(|end| end == b"\r\n\r\n");
    let body = &taken[head.expect("a head") + 4..];
    assert!(body.len() < object.len(), "it is cut short");
    assert!(*body == object[..body.len()]);
    drop(stalled);
    server.finish().await;
}

/// As many as a tenant alone has in slices besides.
const SLICED: u64 = 8;

#[tokio::test]
async fn slow_clients_of_a_tenant_make_room_for_its_other_requests() {
    let get = Ask::new("GET", "/bucket/key");
    let put = Ask::new("PUT", "/bucket/key").body(vec![1; 4 << 20]);
    // As many of each as have all that the tenant may.
    for (ask, count) in [(get, AHEAD + SLICED), (put, 16)] {
        let server = packing().await;
        server.put("/bucket/key", &vec![1; 4 << 20]).await;
        let other = Ask::new("PUT", "/betas/key").body(vec![1; 4 << 20]);
        assert_eq!(server.ask(BETA, other).await.status, 200);
        let (head, body) = ask.parts(ALPHA, server.now_ms());
        let mut slow = stalled(&server, ALPHA, head.as_bytes(), count).await;
        let other = Ask::new("GET", "/betas/key").signed(BETA, server.now_ms());
        let mut other = stalled(&server, BETA, &other, 1).await;
        // Nothing that is timed from here on goes through sockets.
        pause();
        let going_on = async {
            let mut pace = interval(Duration::from_secs(20));
            loop {
                pace.tick().await;
                let _ = other[0].read(&mut [0]).await;
                for client in &mut slow {
                    // Also one that was given up.
                    let _ = match body.is_empty() {
                        true => client.read(&mut [0]).await.map(drop),
                        false => client.write_all(&body[..4096]).await,
                    };
                }
            }
        };
        let (mut near, far) = duplex(8 << 20);
        let door = server.door.clone();
        tokio::spawn(door.serve_connection(far, None, false, std::future::pending::<()>()));
        let ask = ask.header("connection", "close");
        near.write_all(&ask.signed(ALPHA, server.now_ms()))
            .await
            .expect("taken");
        let mut answer = Vec::new();
        tokio::select! {
            _ = near.read_to_end(&mut answer) => {}
            _ = going_on => {}
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        settle().await;
        assert!(in_flight(&server, ALPHA) < count, "none was given up");
        assert_eq!(in_flight(&server, BETA), 1, "another tenant's was");
        resume();
        drop((slow, other));
        server.finish().await;
    }
}

#[tokio::test]
async fn a_tenant_takes_no_more_requests_than_are_free_beside_its_own() {
    let server = start(4, Duration::from_secs(30)).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let ask = Ask::new("PUT", "/bucket/key").header("expect", "100-continue");
        let (head, _) = ask.body(b"abc").parts(ALPHA, server.now_ms());
        let mut client = server.connect().await;
        client.send(head.as_bytes()).await;
        // The 100 says that it is being served.
        assert_eq!(client.answer(false).await.status, 100);
        held.push(client);
    }
    server.get("/bucket").await.is(503, "SlowDown");
    // Others find a place, and so do those without a key.
    assert_eq!(server.ask(BETA, Ask::new("GET", "/")).await.status, 200);
    let anybody = server.anonymous(Ask::new("GET", "/bucket/key")).await;
    anybody.is(403, "AccessDenied");
    held[0].send(b"abc").await;
    assert_eq!(held[0].answer(false).await.status, 200);
    while server.get("/bucket").await.status != 200 {}
    drop(held);
    server.finish().await;
}

#[tokio::test]
async fn documents_of_one_tenant_leave_memory_for_those_of_others() {
    let server = start(1024, Duration::from_secs(30)).await;
    let own = server.ask(BETA, Ask::new("PUT", "/betas")).await;
    assert_eq!(own.status, 200, "{}", own.text());
    // As long as one may be: no list of keys, but that shows when all of it is here.
    let large = |bucket: &str| {
        let ask = Ask::new("POST", &format!("/{bucket}?delete")).sign(Sign::Unsigned);
        ask.body(vec![b' '; 2 << 20])
    };
    let mut held = Vec::new();
    for _ in 0..16 {
        let (head, body) = large("bucket").parts(ALPHA, server.now_ms());
        let mut client = server.connect().await;
        client.send(head.as_bytes()).await;
        client.send(&body[1..]).await;
        held.push(client);
    }
    // Only when all of them are here is there no room for more, and none of them is refused in the place of what comes then.
    let sent = 16 * ((2 << 20) - 1);
    let received = || -> u64 {
        let lines = server.door.live();
        lines.iter().map(|line| line.received_bytes).sum()
    };
    while received() < sent {
        yield_now().await;
    }
    let refused = server.ask(ALPHA, large("bucket")).await;
    refused.is(503, "SlowDown");
    let other = server.ask(BETA, large("betas")).await;
    other.is(400, "MalformedXML");
    for mut client in held {
        client.send(b" ").await;
        client.answer(false).await.is(400, "MalformedXML");
    }
    server
        .ask(ALPHA, large("bucket"))
        .await
        .is(400, "MalformedXML");
    server.finish().await;
}
