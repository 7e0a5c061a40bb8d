//! Lanes over a link whose other end is the test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_fabric::{
    Access, CloseReason, Error, ErrorKind, Exposure, Fabric, Link, Placed, RemoteRange, Result,
    Stag,
};
use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_proto::direct::{Call, Operation, ReplyWriter, RequestWriter, parse_request, peek_id};
use futures_util::future::poll_immediate;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::attempt::{Failure, Tries};
use super::keys::exist_on;
use super::lane::{Lane, Pending, Stopped};
use super::lanes::Lanes;
use super::loans::Use;
use super::needs::needs;
use super::options::Path;
use super::region::Region;
use super::values::register;

/// The client's end; the test holds the other.
#[derive(Debug)]
struct Scripted {
    sent: mpsc::UnboundedSender<Vec<u8>>,
    replies: tokio::sync::Mutex<mpsc::UnboundedReceiver<Vec<u8>>>,
    closing: watch::Sender<Option<CloseReason>>,
    /// Set by the test: nothing can land any more.
    settled: watch::Receiver<bool>,
    stuck: watch::Sender<Stuck>,
    exposed: Mutex<Vec<u32>>,
}

/// Where the link's calls hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stuck {
    Nowhere,
    /// Nothing was sent or exposed.
    Before,
    /// The message was sent, the memory withdrawn.
    After,
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
    let (link, server) = link();
    (Lane::start(link, slots, grace), server)
}

fn link() -> (Scripted, Server) {
    let (sent, asked) = mpsc::unbounded_channel();
    let (replies, receiver) = mpsc::unbounded_channel();
    let (settled, settles) = watch::channel(true);
    let link = Scripted {
        sent,
        replies: tokio::sync::Mutex::new(receiver),
        closing: watch::Sender::new(None),
        settled: settles,
        stuck: watch::Sender::new(Stuck::Nowhere),
        exposed: Mutex::default(),
    };
    let server = Server {
        asked,
        replies,
        settled,
    };
    (link, server)
}

impl Scripted {
    async fn pass(&self, place: Stuck) {
        let mut stuck = self.stuck.subscribe();
        stuck.wait_for(|stuck| *stuck != place).await.unwrap();
    }
}

impl Link for Scripted {
    fn fabric(&self) -> Fabric {
        Fabric::Shm
    }

    async fn expose(&self, memory: RegionSlice, _: Access) -> Result<Exposure> {
        self.pass(Stuck::Before).await;
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
        let stag = exposure.stag.0;
        self.exposed.lock().retain(|exposed| *exposed != stag);
        self.pass(Stuck::After).await;
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
        self.pass(Stuck::Before).await;
        if self.closing.borrow().is_some() {
            return Err(Error::new(ErrorKind::Closed, "closed"));
        }
        let sent = self.sent.send(message.to_vec());
        self.pass(Stuck::After).await;
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

    fn has_ended(&self) -> bool {
        self.closing.borrow().is_some()
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

    fn is_settled(&self) -> bool {
        self.closing.borrow().is_some()
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
    let mut pending = written(lane, until).await;
    pending.send(until).await.unwrap();
    pending
}

async fn written<'a>(lane: &'a Lane<Scripted>, until: Instant) -> Pending<'a, Scripted> {
    let mut pending = lane.begin(until).await.unwrap();
    let written = pending.write(|id, message| {
        let mut writer = RequestWriter::begin(message, Operation::LongestPrefix, id, "ns")?;
        writer.key(b"key")?;
        writer.finish();
        Ok::<(), forebay_proto::direct::Full>(())
    });
    written.unwrap();
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
    let mut call = ask(&lane, until).await;
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
    let mut given_up = ask(&lane, until).await;
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
    all_withdrawn(&lane).await;
}

async fn all_withdrawn(lane: &Lane<Scripted>) {
    let withdrawn = async {
        while !lane.link().exposed.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let withdrawn = tokio::time::timeout(LONG / 10, withdrawn).await;
    assert!(withdrawn.is_ok(), "memory stays exposed");
}

#[tokio::test]
async fn a_release_that_is_given_up_goes_on_without_its_caller() {
    let region = Region::alloc(4096).unwrap();
    let lanes = [(); 3].map(|()| lane(2, LONG));
    for (lane, _) in &lanes {
        region.on(lane).await.unwrap();
        lane.link().stuck.send_replace(Stuck::After);
    }
    let release = region.clone().release();
    assert!(poll_immediate(release).await.is_none());
    for (lane, _) in &lanes {
        all_withdrawn(lane).await;
    }
    drop(region);
}

#[tokio::test]
async fn a_call_dropped_before_it_was_sent_harms_nobody() {
    let (lane, mut server) = lane(2, Duration::ZERO);
    let until = Instant::now() + LONG;
    let region = Region::alloc(4096).unwrap();
    let mut patient = ask(&lane, until).await;
    let id = server.asked().await;
    lane.link().stuck.send_replace(Stuck::Before);
    let mut dropped = written(&lane, until).await;
    dropped.keep(region.lend(0..4096, Use::Target, until).await.unwrap());
    let sending = tokio::time::timeout(Duration::from_millis(20), dropped.send(until));
    assert!(sending.await.is_err());
    drop(dropped);
    // The server knows nothing of it: its bytes and its slot are free at once.
    assert!(region.try_lend(0..4096, Use::Target).is_some());
    assert!(lane.try_begin().unwrap().is_some());
    // Long enough for somebody to miss its answer.
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.answer(id, 3, true);
    assert_eq!(answered(&patient.reply().await.unwrap()), 3);
}

#[tokio::test]
async fn a_call_whose_answer_overtakes_its_sending_is_waited_for() {
    let (lane, mut server) = lane(1, LONG);
    let until = Instant::now() + LONG;
    let region = Region::alloc(4096).unwrap();
    lane.link().stuck.send_replace(Stuck::After);
    let mut call = written(&lane, until).await;
    call.keep(region.lend(0..4096, Use::Target, until).await.unwrap());
    let mut sending = Box::pin(call.send(until));
    let id = tokio::select! {
        _ = &mut sending => unreachable!(),
        id = server.asked() => id,
    };
    server.answer(id, 1, false);
    let more = tokio::time::timeout(Duration::from_millis(50), sending);
    assert!(more.await.is_err());
    drop(call);
    // The server has it, and its bytes.
    assert!(region.try_lend(0..1, Use::Target).is_none());
    server.answer(id, 2, true);
    region.idle().await;
    assert!(lane.ended().is_none());
}

#[tokio::test]
async fn a_link_that_takes_nothing_costs_no_more_than_the_deadline() {
    let (lane, _server) = lane(1, LONG);
    let region = Region::alloc(4096).unwrap();
    lane.link().stuck.send_replace(Stuck::Before);
    let tries = Tries::new(Duration::from_millis(50), 0);
    let mut call = written(&lane, tries.until).await;
    let sent = tokio::time::timeout(LONG / 10, call.send(tries.until)).await;
    assert_eq!(sent.expect("an end"), Err(Stopped::TimedOut));
    drop(call);
    assert!(lane.try_begin().unwrap().is_some());
    let window = region.window(0..4096);
    let placed = register(&lane, Path::Shm, &window, &tries);
    let placed = tokio::time::timeout(LONG / 10, placed).await;
    assert!(matches!(
        placed.expect("an end"),
        Err(Failure::Final(crate::Error::TimedOut(_)))
    ));
}

#[tokio::test]
async fn many_keys_need_one_slot() {
    // About three messages of them.
    let keys: Vec<String> = (0..400).map(|key| format!("{key:0>100}")).collect();
    for slots in [1, 2, 64] {
        let (lane, mut server) = lane(slots, LONG);
        let serving = tokio::spawn(async move {
            while let Some(message) = server.asked.recv().await {
                let request = parse_request(&message).unwrap();
                let Call::Exist(keys) = request.call else {
                    panic!("{request:?}");
                };
                let sizes = keys.map(|key| Some(key.0.len() as u64));
                let mut writer = ReplyWriter::begin(Vec::new(), Operation::Exist, request.id, 0);
                writer.sizes(sizes).unwrap();
                server
                    .replies
                    .send(writer.finish(true, false).to_vec())
                    .unwrap();
            }
        });
        let tries = Tries::new(Duration::from_secs(60), 0);
        let sizes = exist_on(&lane, Path::Shm, "ns", &keys, &tries).await;
        assert_eq!(sizes.unwrap(), vec![Some(100); keys.len()]);
        serving.abort();
    }
}

#[tokio::test]
async fn who_holds_slots_waits_for_none() {
    let (lane, _server) = lane(2, LONG);
    let until = Instant::now() + LONG;
    let region = Region::alloc(4096).unwrap();
    let window = region.window(0..4096);
    let first = needs(&lane, &[&window], Use::Target, until, true).await;
    let first = first.unwrap().unwrap();
    // The bytes are the first one's. What was not to be had leaves nothing behind.
    let second = needs(&lane, &[&window], Use::Target, until, false).await;
    assert!(second.unwrap().is_none());
    let other = lane.begin(until).await.unwrap();
    let none = needs(&lane, &[], Use::Target, until, false).await;
    assert!(none.unwrap().is_none());
    drop((first, other));
    let now = needs(&lane, &[&window], Use::Target, until, false).await;
    assert!(now.unwrap().is_some());
}

#[tokio::test]
async fn who_waits_for_bytes_holds_no_slot() {
    let (lane, _server) = lane(1, LONG);
    let until = Instant::now() + LONG;
    let region = Region::alloc(4096).unwrap();
    let window = region.window(0..4096);
    // A single call: bytes first, then a slot.
    let bytes = region.try_lend(0..4096, Use::Target).unwrap();
    let windows = [&window];
    let many = needs(&lane, &windows, Use::Target, until, true);
    tokio::pin!(many);
    let waits = tokio::time::timeout(Duration::from_millis(20), &mut many);
    assert!(waits.await.is_err());
    let slot = lane.try_begin().unwrap();
    assert!(slot.is_some());
    drop((slot, bytes));
    assert!(many.await.unwrap().is_some());
}

#[tokio::test]
async fn windows_are_taken_in_one_order_whatever_the_callers() {
    let (lane, _server) = lane(4, LONG);
    let until = Instant::now() + LONG;
    let region = Region::alloc(3 * 4096).unwrap();
    let [a, b, c] = [0, 4096, 8192].map(|start| region.window(start..start + 4096));
    let held = region.try_lend(8192..12_288, Use::Target).unwrap();
    let take = async |windows: &[&super::Window<'_>]| {
        let needs = needs(&lane, windows, Use::Target, until, true).await;
        drop(needs.unwrap().unwrap());
    };
    let (forwards, backwards) = ([&a, &c, &b], [&b, &a]);
    let both = async {
        tokio::join!(take(&forwards), take(&backwards), async {
            tokio::task::yield_now().await;
            drop(held);
        })
    };
    let both = tokio::time::timeout(LONG / 10, both).await;
    assert!(both.is_ok(), "each waits for the other");
}

#[tokio::test]
async fn links_made_before_one_that_fails_are_closed() {
    let mut closings = Vec::new();
    let mut servers = Vec::new();
    let mut dial = || {
        let (link, server) = link();
        servers.push(server);
        closings.push(link.closing.subscribe());
        let third = servers.len() == 3;
        async move {
            match third {
                true => Err("nobody there".to_owned()),
                false => Ok(link),
            }
        }
    };
    let failed = Lanes::dialled(3, 4, &mut dial).await;
    assert_eq!(failed.unwrap_err(), "nobody there");
    assert_eq!(closings.len(), 3);
    for closing in &closings[..2] {
        assert_eq!(closing.borrow().clone(), Some(CloseReason::Done));
    }
}

#[tokio::test]
async fn links_made_before_the_caller_gave_up_are_closed() {
    let (first, _server) = link();
    let closing = first.closing.subscribe();
    let mut first = Some(first);
    let dial = || {
        let link = first.take();
        async move {
            match link {
                Some(link) => Ok(link),
                None => std::future::pending().await,
            }
        }
    };
    let given_up = tokio::time::timeout(Duration::from_millis(20), Lanes::dialled(2, 4, dial));
    assert!(given_up.await.is_err());
    assert_eq!(closing.borrow().clone(), Some(CloseReason::Done));
}
