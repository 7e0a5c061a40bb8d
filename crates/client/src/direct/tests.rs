//! Lanes over a link whose other end is the test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_fabric::{
    Access, CloseReason, Error, ErrorKind, Exposure, Fabric, Link, Placed, RemoteRange, Result,
    Stag,
};
use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_proto::direct::{Operation, ReplyWriter, RequestWriter, peek_id};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::lane::{Lane, Pending, Stopped};
use super::loans::Use;
use super::region::Region;

/// The client's end; the test holds the other.
struct Scripted {
    sent: mpsc::UnboundedSender<Vec<u8>>,
    replies: tokio::sync::Mutex<mpsc::UnboundedReceiver<Vec<u8>>>,
    closing: watch::Sender<Option<CloseReason>>,
    /// Set by the test: nothing can land any more.
    settled: watch::Receiver<bool>,
    exposed: Mutex<Vec<u32>>,
}

/// What the test does as a server.
struct Server {
    asked: mpsc::UnboundedReceiver<Vec<u8>>,
    replies: mpsc::UnboundedSender<Vec<u8>>,
    settled: watch::Sender<bool>,
}

impl Server {
    async fn asked(&mut self) -> u64 {
        peek_id(&self.asked.recv().await.unwrap()).unwrap()
    }

    fn answer(&self, id: u64, first: u16, last: bool) {
        let mut writer = ReplyWriter::begin(Vec::new(), Operation::LongestPrefix, id, first);
        writer.prefix(u64::from(first)).unwrap();
        let message = writer.finish(last, false).to_vec();
        self.replies.send(message).unwrap();
    }
}

fn lane(slots: usize, grace: Duration) -> (Arc<Lane<Scripted>>, Server) {
    let (sent, asked) = mpsc::unbounded_channel();
    let (replies, receiver) = mpsc::unbounded_channel();
    let (settled, settles) = watch::channel(true);
    let link = Scripted {
        sent,
        replies: tokio::sync::Mutex::new(receiver),
        closing: watch::Sender::new(None),
        settled: settles,
        exposed: Mutex::default(),
    };
    let server = Server {
        asked,
        replies,
        settled,
    };
    (Lane::start(link, slots, grace), server)
}

impl Link for Scripted {
    fn fabric(&self) -> Fabric {
        Fabric::Shm
    }

    async fn expose(&self, memory: RegionSlice, _: Access) -> Result<Exposure> {
        let mut exposed = self.exposed.lock();
        let stag = exposed.len() as u32 + 1;
        exposed.push(stag);
        Ok(Exposure {
            stag: Stag(stag),
            base: 0,
            len: memory.len() as u64,
        })
    }

    async fn withdraw(&self, exposure: Exposure) {
        let mut exposed = self.exposed.lock();
        exposed.retain(|stag| *stag != exposure.stag.0);
    }

    async fn write(&self, _: RemoteRange, _: Vec<Buf>) -> Result<()> {
        Err(Error::new(ErrorKind::Invalid, "a client does not write"))
    }

    async fn read(&self, _: RemoteRange, _: BufMut) -> Result<BufMut> {
        Err(Error::new(ErrorKind::Invalid, "a client does not read"))
    }

    async fn fence(&self) -> Result<Placed> {
        Err(Error::new(ErrorKind::Invalid, "a client does not write"))
    }

    async fn send(&self, message: &[u8]) -> Result<()> {
        if self.closing.borrow().is_some() {
            return Err(Error::new(ErrorKind::Closed, "closed"));
        }
        let sent = self.sent.send(message.to_vec());
        sent.map_err(|_| Error::new(ErrorKind::Closed, "the test has ended"))
    }

    async fn recv(&self, into: &mut Vec<u8>) -> Result<Option<()>> {
        let mut replies = self.replies.lock().await;
        let mut closing = self.closing.subscribe();
        tokio::select! {
            _ = closing.wait_for(Option::is_some) => Err(Error::new(ErrorKind::Closed, "closed")),
            reply = replies.recv() => Ok(reply.map(|reply| *into = reply)),
        }
    }

    fn mapped(&self, _: RemoteRange, _: Access) -> Option<RegionSlice> {
        None
    }

    fn close(&self, reason: CloseReason) {
        self.closing.send_if_modified(|told| match told {
            Some(_) => false,
            None => {
                *told = Some(reason);
                true
            }
        });
    }

    async fn closed(&self) -> CloseReason {
        let mut closing = self.closing.subscribe();
        let told = closing.wait_for(Option::is_some).await;
        let reason = told.unwrap().clone().unwrap();
        let mut settled = self.settled.clone();
        // A test that has ended has settled.
        let _ = settled.wait_for(|settled| *settled).await;
        reason
    }
}

const LONG: Duration = Duration::from_secs(60);

async fn ask<'a>(lane: &'a Lane<Scripted>, until: Instant) -> Pending<'a, Scripted> {
    let mut pending = lane.begin(until).await.unwrap();
    let written = pending.write(|id, message| {
        let mut writer = RequestWriter::begin(message, Operation::LongestPrefix, id, "ns")?;
        writer.key(b"key")?;
        writer.finish();
        Ok::<(), forebay_proto::direct::Full>(())
    });
    written.unwrap();
    pending.send(until).await.unwrap();
    pending
}

fn answered(reply: &[u8]) -> u64 {
    let reply = forebay_proto::direct::parse_reply(reply).unwrap();
    let mut results = reply.results;
    results.next().unwrap().prefix().unwrap()
}

#[tokio::test]
async fn each_call_gets_its_own_replies_in_their_order() {
    let (lane, mut server) = lane(2, LONG);
    let until = Instant::now() + LONG;
    let (mut a, mut b) = (ask(&lane, until).await, ask(&lane, until).await);
    let (id_a, id_b) = (server.asked().await, server.asked().await);
    server.answer(id_b, 7, true);
    server.answer(id_a, 1, false);
    server.answer(id_a, 2, true);
    assert_eq!(answered(&a.reply().await.unwrap()), 1);
    assert_eq!(answered(&b.reply().await.unwrap()), 7);
    assert_eq!(answered(&a.reply().await.unwrap()), 2);
    // The slots are free again, under other ids.
    drop((a, b));
    let _c = ask(&lane, until).await;
    let id_c = server.asked().await;
    assert!(id_c != id_a && id_c != id_b);
}

#[tokio::test]
async fn a_full_lane_lets_the_next_call_wait() {
    let (lane, mut server) = lane(1, LONG);
    let until = Instant::now() + LONG;
    let first = ask(&lane, until).await;
    let waiting = tokio::spawn({
        let lane = lane.clone();
        async move { answered(&ask(&lane, until).await.reply().await.unwrap()) }
    });
    let id = server.asked().await;
    server.answer(id, 0, true);
    drop(first);
    let id = server.asked().await;
    server.answer(id, 5, true);
    assert_eq!(waiting.await.unwrap(), 5);
    let late = lane.begin(Instant::now()).await;
    assert!(late.is_ok());
    let none = lane.begin(Instant::now()).await;
    assert_eq!(none.err(), Some(Stopped::TimedOut));
}

#[tokio::test]
async fn memory_of_a_dropped_call_comes_back_with_its_reply() {
    let (lane, mut server) = lane(4, LONG);
    let until = Instant::now() + LONG;
    let region = Region::alloc(8192).unwrap();
    let call = ask(&lane, until).await;
    call.keep(region.lend(0..4096, Use::Target, until).await.unwrap());
    drop(call);
    let id = server.asked().await;
    // Its bytes are still the server's, the others are not.
    assert!(
        region
            .lend(4000..5000, Use::Target, Instant::now())
            .await
            .is_none()
    );
    assert!(
        region
            .lend(4096..8192, Use::Target, Instant::now())
            .await
            .is_some()
    );
    server.answer(id, 0, true);
    region.idle().await;
    assert!(
        region
            .lend(0..8192, Use::Target, Instant::now())
            .await
            .is_some()
    );
}

#[tokio::test]
async fn a_silent_server_loses_the_link_before_memory_comes_back() {
    let (lane, server) = lane(4, Duration::ZERO);
    let until = Instant::now() + LONG;
    let region = Region::alloc(4096).unwrap();
    server.settled.send(false).unwrap();
    let given_up = ask(&lane, until).await;
    given_up.keep(region.lend(0..4096, Use::Target, until).await.unwrap());
    let mut patient = ask(&lane, until).await;
    drop(given_up);
    // The link closes for it, but as long as something may land the memory stays lent.
    let mut closing = lane.link().closing.subscribe();
    closing.wait_for(Option::is_some).await.unwrap();
    assert!(
        region
            .lend(0..1, Use::Target, Instant::now())
            .await
            .is_none()
    );
    server.settled.send(true).unwrap();
    region.idle().await;
    assert!(matches!(patient.reply().await, Err(Stopped::Ended(_))));
    assert!(matches!(
        lane.begin(until).await.err(),
        Some(Stopped::Ended(_))
    ));
}

#[tokio::test]
async fn a_late_call_says_so_and_leaves_its_memory_to_the_lane() {
    let (lane, mut server) = lane(4, LONG);
    let region = Region::alloc(4096).unwrap();
    let until = Instant::now() + LONG;
    let mut call = ask(&lane, Instant::now()).await;
    call.keep(region.lend(0..4096, Use::Target, until).await.unwrap());
    assert_eq!(call.reply().await, Err(Stopped::TimedOut));
    drop(call);
    assert!(
        region
            .lend(0..1, Use::Source, Instant::now())
            .await
            .is_none()
    );
    let id = server.asked().await;
    server.answer(id, 0, true);
    region.idle().await;
}

#[tokio::test]
async fn a_reply_to_nothing_ends_the_link() {
    for forged in [0, 1 << 32 | 3, 2 << 32, u64::MAX] {
        let (lane, mut server) = lane(2, LONG);
        let until = Instant::now() + LONG;
        let mut call = ask(&lane, until).await;
        let id = server.asked().await;
        assert_ne!(id, forged);
        server.answer(forged, 0, true);
        let ended = call.reply().await;
        assert!(
            matches!(&ended, Err(Stopped::Ended(CloseReason::Violation(_)))),
            "{forged:x}: {ended:?}"
        );
    }
}

#[tokio::test]
async fn a_region_is_registered_once_and_withdrawn_when_it_goes() {
    let (lane, _server) = lane(2, LONG);
    let region = Region::alloc(4096).unwrap();
    let (a, b) = tokio::join!(region.on(&lane), region.on(&lane));
    assert_eq!(a.unwrap().stag, b.unwrap().stag);
    assert_eq!(lane.link().exposed.lock().len(), 1);
    region.clone().release().await;
    assert!(lane.link().exposed.lock().is_empty());
    // A clone registers it anew.
    region.on(&lane).await.unwrap();
    assert_eq!(lane.link().exposed.lock().len(), 1);
    drop(region);
    while !lane.link().exposed.lock().is_empty() {
        tokio::task::yield_now().await;
    }
}
