//! Many values in one call, completed in the caller's order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_fabric::Connection;
use forebay_proto::direct::{
    Condition, Full, INLINE_BYTES_MAX, Operation, Outcome, Reply, RequestWriter, Status,
    parse_reply,
};
use futures_util::stream::{FuturesOrdered, StreamExt};

use super::attempt::{Failure, Tries, odd, refused, stopped};
use super::client::Client;
use super::connected::Connected;
use super::http;
use super::lane::{Lane, Pending, Stopped};
use super::loans::Use;
use super::needs::needs;
use super::seat::Memory;
use super::transfer::Transfer;
use super::values::{Get, Put, about, register, source, too_described, too_long};
use super::window::{Window, argument};
use crate::client::pause;
use crate::{Error, Refusal, Result};

/// Messages of one call in flight: enough that the server never waits for the next.
const MESSAGES_MAX: usize = 8;
/// Elements of a message: the first bytes arrive while later elements are still being written down.
const ELEMENTS_MAX: usize = 128;
/// Requests in flight when a batch goes by HTTP.
const HTTP_MAX: usize = 16;

/// What became of elements that were to be sent.
enum Asked<'a> {
    /// They are on their way.
    Sent(Batch<'a>),
    /// They would have to wait.
    NotNow,
    /// The first of them fits no message, or the link cannot carry it.
    Never(Failure),
}

/// What is asked for.
#[derive(Clone, Copy)]
enum Elements<'a, 'b> {
    Gets(&'a [Get<'b>]),
    Puts(&'a [Put<'b>]),
}

/// A message in flight: its slot, the elements not answered yet, and the checksums of those that are stores.
struct Batch<'a> {
    pending: Pending<'a, Connection>,
    left: Range<usize>,
    crcs: VecDeque<Option<u64>>,
}

impl Batch<'_> {
    /// Waits until the server is done with it.
    async fn settle(&mut self, stop: impl Fn(Stopped) -> Failure) -> Result<(), Failure> {
        loop {
            let reply = self.pending.reply().await.map_err(&stop)?;
            let last = parse_reply(&reply)?.last;
            self.pending.recycle(reply);
            if last {
                return Ok(());
            }
        }
    }
}

impl<'a> Elements<'a, '_> {
    fn len(self) -> usize {
        match self {
            Elements::Gets(gets) => gets.len(),
            Elements::Puts(puts) => puts.len(),
        }
    }

    fn check(self) -> Result<()> {
        match self {
            Elements::Gets(gets) => {
                for get in gets {
                    get.into.check()?;
                    get.span.check()?;
                }
                check_apart(gets)
            }
            Elements::Puts(puts) => puts.iter().try_for_each(|put| put.from.check()),
        }
    }

    /// Who can reach all of their memory.
    fn memory(self) -> Memory {
        let all_mappable = match self {
            Elements::Gets(gets) => gets
                .iter()
                .all(|get| get.into.region.memory() == Memory::Mappable),
            Elements::Puts(puts) => puts
                .iter()
                .all(|put| put.from.region.memory() == Memory::Mappable),
        };
        match all_mappable {
            true => Memory::Mappable,
            false => Memory::Private,
        }
    }

    /// The length of all of their memory.
    fn bytes(self) -> usize {
        match self {
            Elements::Gets(gets) => gets.iter().map(|get| get.into.len()).sum(),
            Elements::Puts(puts) => puts.iter().map(|put| put.from.len()).sum(),
        }
    }

    /// The memory of some of them.
    fn windows(self, which: Range<usize>) -> Vec<&'a Window<'a>> {
        match self {
            Elements::Gets(gets) => gets[which].iter().map(|get| &get.into).collect(),
            Elements::Puts(puts) => puts[which].iter().map(|put| &put.from).collect(),
        }
    }

    /// What the server is asked to do, and what it does with memory for that.
    fn operation(self) -> (Operation, Use) {
        match self {
            Elements::Gets(_) => (Operation::Retrieve, Use::Target),
            Elements::Puts(_) => (Operation::Store, Use::Source),
        }
    }

    /// What it means that one of them fits no message.
    fn too_long(self, index: usize, full: Full) -> Failure {
        match self {
            Elements::Puts(puts) if puts[index].described(&mut Vec::new()).is_err() => {
                too_described(full)
            }
            Elements::Puts(_) | Elements::Gets(_) => too_long(full),
        }
    }

    /// Whether asking twice is the same as asking once.
    fn repeatable(self) -> bool {
        match self {
            Elements::Gets(_) => true,
            Elements::Puts(puts) => puts.iter().all(|put| put.condition == Condition::None),
        }
    }
}

/// Windows that share bytes would wait for each other.
fn check_apart(gets: &[Get<'_>]) -> Result<()> {
    let mut windows: Vec<_> = gets
        .iter()
        .map(|get| (get.into.region.place(), &get.into.range))
        .filter(|(_, range)| !range.is_empty())
        .collect();
    windows.sort_unstable_by_key(|(region, range)| (*region, range.start));
    let overlap = |pair: &&[(usize, &Range<usize>)]| {
        let ((region, range), (next_region, next)) = (pair[0], pair[1]);
        region == next_region && next.start < range.end
    };
    match windows.windows(2).find(overlap) {
        None => Ok(()),
        Some(pair) => Err(argument(format_args!(
            "bytes {:?} and {:?} of a region overlap",
            pair[0].1, pair[1].1
        ))),
    }
}

impl Client {
    /// Places many values, or parts of them, in registered memory. `each` is called for every element, in their order, as soon as
    /// its bytes are in place or it has failed; an element that fails does not stop the others.
    ///
    /// # Errors
    /// [`Error::Local`] when two windows overlap. Else when the call as a whole cannot go on; `each` was called for the elements before
    /// that.
    pub async fn gather(
        &self,
        namespace: &str,
        elements: &[Get<'_>],
        each: impl FnMut(usize, Result<Transfer>),
    ) -> Result<()> {
        self.many(namespace, Elements::Gets(elements), each).await
    }

    /// Stores many values from registered memory; else as [`Client::gather`].
    ///
    /// # Errors
    /// As [`Client::gather`]. Elements that were not reported may be stored or not.
    pub async fn scatter(
        &self,
        namespace: &str,
        elements: &[Put<'_>],
        each: impl FnMut(usize, Result<Transfer>),
    ) -> Result<()> {
        self.many(namespace, Elements::Puts(elements), each).await
    }

    async fn many(
        &self,
        namespace: &str,
        elements: Elements<'_, '_>,
        mut each: impl FnMut(usize, Result<Transfer>),
    ) -> Result<()> {
        elements.check()?;
        let mut tries = self.tries(elements.bytes());
        let mut done = 0;
        while done < elements.len() {
            let connected = self.reaching(elements.memory(), &tries).await;
            let before = done;
            let mut report = |result: Result<Transfer, Failure>| {
                // Whoever makes progress may go on trying.
                let made = if done > before { 1 } else { tries.made };
                let result = match result {
                    Ok(transfer) => Ok(transfer),
                    Err(Failure::Final(error)) => Err(error),
                    // It is asked for again with all that follow, if that changes nothing; else it has failed, and stops no other.
                    Err(Failure::Again(error) | Failure::Unclear(error)) => {
                        match elements.repeatable() && self.may_try_again(made, &tries) {
                            true => return Err(Failure::Again(error)),
                            false => Err(error),
                        }
                    }
                    Err(failure) => return Err(failure),
                };
                each(done, result);
                done += 1;
                Ok(())
            };
            let asked = match connected.lane() {
                Some(lane) => {
                    self.many_on(
                        lane,
                        &connected,
                        namespace,
                        elements,
                        before,
                        &tries,
                        &mut report,
                    )
                    .await
                }
                None => {
                    many_by_http(&connected, namespace, elements, before, &tries, &mut report).await
                }
            };
            let Err(failure) = asked else {
                break;
            };
            if done > before {
                tries.made = 1;
            }
            match failure {
                // Its retry is paid for.
                Failure::Again(_) => {
                    pause(tries.made).await;
                    tries.made += 1;
                }
                failure => {
                    self.again(&connected, failure, elements.repeatable(), &mut tries)
                        .await?;
                }
            }
        }
        self.earn();
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one call")]
    async fn many_on(
        &self,
        lane: &Arc<Lane<Connection>>,
        connected: &Connected,
        namespace: &str,
        elements: Elements<'_, '_>,
        from: usize,
        tries: &Tries,
        report: &mut impl FnMut(Result<Transfer, Failure>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut asked = from;
        let mut batches: VecDeque<Batch<'_>> = VecDeque::new();
        loop {
            if asked < elements.len() && batches.len() < MESSAGES_MAX {
                let patient = batches.is_empty();
                let ask = self.ask(lane, connected, namespace, elements, asked, tries, patient);
                match ask.await? {
                    Asked::Sent(batch) => {
                        asked = batch.left.end;
                        batches.push_back(batch);
                        continue;
                    }
                    // In its turn: by HTTP what the link cannot carry.
                    Asked::Never(why) if batches.is_empty() => {
                        report(match why {
                            Failure::Unable(why) if self.may_use_http(connected) => {
                                let why = Some(why);
                                by_http(connected, namespace, elements, asked, why, tries).await
                            }
                            Failure::Unable(what) => {
                                let endpoint = connected.path.to_string();
                                Err(Failure::Final(Error::Transport { endpoint, what }))
                            }
                            why => Err(why),
                        })?;
                        asked += 1;
                        continue;
                    }
                    Asked::Never(_) | Asked::NotNow => {}
                }
            }
            let Some(batch) = batches.front_mut() else {
                return Ok(());
            };
            let stop = |why| stopped(connected.path, tries, why);
            let reply = batch.pending.reply().await.map_err(stop)?;
            let answer = parse_reply(&reply)?;
            let last = answer.last;
            let told = self.tell(connected, namespace, elements, batch, answer, report);
            batch.pending.recycle(reply);
            let done = batch.left.is_empty();
            match told {
                Ok(()) if done => drop(batches.pop_front()),
                Ok(()) => {}
                Err(failure) => {
                    if last {
                        batches.pop_front();
                    }
                    // A store that went on while its element is sent again could come after what is put there later.
                    if let Elements::Puts(_) = elements {
                        for batch in &mut batches {
                            batch.settle(stop).await?;
                        }
                    }
                    return Err(failure);
                }
            }
        }
    }

    /// Reports what a reply says of the elements that were not answered yet.
    fn tell(
        &self,
        connected: &Connected,
        namespace: &str,
        elements: Elements<'_, '_>,
        batch: &mut Batch<'_>,
        answer: Reply<'_>,
        report: &mut impl FnMut(Result<Transfer, Failure>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut refusal = None;
        for outcome in answer.results {
            let index = batch.left.next();
            let index = index.ok_or_else(|| odd("more was answered than was asked"))?;
            let crc = batch.crcs.pop_front().flatten();
            report(self.outcome(connected, namespace, elements, index, &outcome, crc))?;
            refusal = Some(outcome).filter(|outcome| outcome.status != Status::Ok);
        }
        if answer.last {
            // A message that is refused as a whole has one result, which is every element's.
            for index in batch.left.by_ref() {
                let refusal = refusal.as_ref();
                let refusal = refusal.ok_or_else(|| odd("less was answered than was asked"))?;
                report(self.outcome(connected, namespace, elements, index, refusal, None))?;
            }
        }
        Ok(())
    }

    /// What came of one element.
    fn outcome(
        &self,
        connected: &Connected,
        namespace: &str,
        elements: Elements<'_, '_>,
        index: usize,
        outcome: &Outcome<'_>,
        crc: Option<u64>,
    ) -> Result<Transfer, Failure> {
        let key = match elements {
            Elements::Gets(gets) => gets[index].key,
            Elements::Puts(puts) => puts[index].key,
        };
        let about = || about(namespace, key);
        match (outcome.status, elements) {
            (Status::Ok, Elements::Gets(gets)) => {
                self.got(connected, &gets[index], &outcome.value()?, about)
            }
            (Status::Ok, Elements::Puts(puts)) => {
                Ok(connected.stored(&puts[index], &outcome.value()?, crc))
            }
            // A batch goes on without what this path cannot carry.
            _ => match refused(outcome, &about()) {
                Failure::Unable(message) => Err(Failure::Final(Error::Refused(Refusal {
                    status: 501,
                    code: outcome.status.name().to_owned(),
                    message,
                    resource: about(),
                    request_id: String::new(),
                }))),
                failure => Err(failure),
            },
        }
    }

    /// Sends as many elements from `first` on as fit one message and as the link can carry, unless that would have to wait and the call
    /// is not `patient`.
    #[expect(clippy::too_many_arguments, reason = "the parts of one call")]
    async fn ask<'l>(
        &self,
        lane: &'l Arc<Lane<Connection>>,
        connected: &Connected,
        namespace: &str,
        elements: Elements<'_, '_>,
        first: usize,
        tries: &Tries,
        patient: bool,
    ) -> Result<Asked<'l>, Failure> {
        let stop = |why| stopped(connected.path, tries, why);
        let mut end = elements.len().min(first + ELEMENTS_MAX);
        let mut places = Vec::with_capacity(end - first);
        for index in first..end {
            let place = match elements {
                Elements::Gets(gets) => register(lane, connected.path, &gets[index].into, tries)
                    .await
                    .map(Some),
                Elements::Puts(puts) => source(lane, connected.path, &puts[index], tries).await,
            };
            match place {
                Ok(place) => places.push(place),
                // It is the first of what is asked next.
                Err(Failure::Unable(_)) if index > first => {
                    end = index;
                    break;
                }
                Err(why @ Failure::Unable(_)) => return Ok(Asked::Never(why)),
                Err(failure) => return Err(failure),
            }
        }
        let (operation, what) = elements.operation();
        let windows = elements.windows(first..end);
        let needs = needs(lane, &windows, what, tries.until, patient).await;
        let Some((mut pending, loans)) = needs.map_err(stop)? else {
            return Ok(Asked::NotNow);
        };
        let mut crcs = VecDeque::new();
        let mut count = 0;
        let written = pending.write(|id, message| {
            let mut inline = [0; INLINE_BYTES_MAX];
            let mut encoded = Vec::new();
            let mut writer = RequestWriter::begin(message, operation, id, namespace)?;
            for (index, place) in (first..end).zip(places) {
                let appended = match (elements, place) {
                    (Elements::Gets(gets), Some(place)) => {
                        writer.retrieve(&self.retrieve(&gets[index], place))
                    }
                    (Elements::Gets(_), None) => break,
                    (Elements::Puts(puts), place) => {
                        let put = &puts[index];
                        let crc = self.sum(put);
                        crcs.push_back(crc);
                        let attributes = put.described(&mut encoded);
                        attributes.and_then(|attributes| {
                            writer.store(&put.element(place, crc, attributes, &mut inline))
                        })
                    }
                };
                match appended {
                    Ok(()) => count += 1,
                    // The next message takes it, unless no message could.
                    Err(full) if count == 0 => return Err(full),
                    Err(_) => break,
                }
            }
            crcs.truncate(count);
            writer.finish();
            Ok(())
        });
        if let Err(full) = written {
            return Ok(Asked::Never(elements.too_long(first, full)));
        }
        // What did not fit is for later messages to borrow.
        let kept = loans.into_iter().filter(|(index, _)| *index < count);
        kept.for_each(|(_, loan)| pending.keep(loan));
        match pending.send(tries.until).await.map_err(stop) {
            Ok(()) => {}
            Err(why @ Failure::Unable(_)) => return Ok(Asked::Never(why)),
            Err(failure) => return Err(failure),
        }
        Ok(Asked::Sent(Batch {
            pending,
            left: first..first + count,
            crcs,
        }))
    }
}

/// One element; `why` is the reason why the link cannot carry it.
async fn by_http(
    connected: &Connected,
    namespace: &str,
    elements: Elements<'_, '_>,
    index: usize,
    why: Option<String>,
    tries: &Tries,
) -> Result<Transfer, Failure> {
    match elements {
        Elements::Gets(gets) => http::get(connected, namespace, &gets[index], why, tries).await,
        Elements::Puts(puts) => http::put(connected, namespace, &puts[index], why, tries).await,
    }
}

async fn many_by_http(
    connected: &Connected,
    namespace: &str,
    elements: Elements<'_, '_>,
    from: usize,
    tries: &Tries,
    report: &mut impl FnMut(Result<Transfer, Failure>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut left = from..elements.len();
    let mut transfers = FuturesOrdered::new();
    loop {
        let room = HTTP_MAX - transfers.len();
        let more = left.by_ref().take(room);
        transfers
            .extend(more.map(|index| by_http(connected, namespace, elements, index, None, tries)));
        let Some(transfer) = transfers.next().await else {
            return Ok(());
        };
        if let Err(failure) = report(transfer) {
            // As by a link.
            if let Elements::Puts(_) = elements {
                while transfers.next().await.is_some() {}
            }
            return Err(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use forebay_fabric::sessions::{Limits, Principal};
    use forebay_fabric::{Link, Sessions, SystemClock, shm};
    use forebay_proto::direct::{Call, Hop, ReplyWriter, Value, parse_request};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;
    use crate::Attributes;
    use crate::direct::{Choice, Options, Path, Region, Span};

    const NOTHING: Value<'_> = Value {
        size: 0,
        moved: 0,
        first: 0,
        version: 0,
        modified: 0,
        expires: None,
        crc64nvme: None,
        part_crc64nvme: None,
        replaced: false,
        etag: "",
        bytes: None,
    };

    /// Says of all values that they are empty, and of all bytes that they are stored. The key `busy` is so at first.
    async fn serve(link: Connection, _sessions: Sessions) {
        let mut message = Vec::new();
        let mut busy = true;
        while let Ok(Some(())) = link.recv(&mut message).await {
            let request = parse_request(&message).unwrap();
            let keys: Vec<&[u8]> = match request.call {
                Call::Retrieve(gets) => gets.map(|get| get.key).collect(),
                Call::Store(puts) => puts.map(|put| put.key).collect(),
                _ => panic!("{request:?}"),
            };
            let operation = request.call.operation();
            let mut writer = ReplyWriter::begin(Vec::new(), operation, request.id, 0);
            for key in keys {
                let said = match key == b"busy" && std::mem::take(&mut busy) {
                    true => writer.failed(Status::Busy, Hop::None, "too much at once"),
                    false => writer.value(&NOTHING),
                };
                said.unwrap();
            }
            link.send(writer.finish(true, false)).await.unwrap();
        }
    }

    /// An S3 door that stores whatever comes; how often.
    async fn s3() -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let stored = Arc::new(AtomicUsize::new(0));
        let count = stored.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap().to_lowercase();
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "));
                let mut body = vec![0; length.unwrap().parse().unwrap()];
                stream.read_exact(&mut body).await.unwrap();
                count.fetch_add(1, Relaxed);
                let answer = "HTTP/1.1 200 OK\r\netag: \"tag\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (address, stored)
    }

    async fn client(in_flight_max: usize, s3: &str) -> Client {
        let sessions = Sessions::new(Arc::new(SystemClock::default()), Limits::default());
        let principal = Principal {
            tenant: "tenant",
            id: "KEY",
            secret: "secret",
        };
        let session = sessions.open_with_random_key(principal, Duration::from_secs(60));
        let proof = session.unwrap().proof();
        let (here, there) = UnixStream::pair().unwrap();
        let ends = tokio::join!(shm::accept(here, &sessions), shm::connect(there, &proof));
        tokio::spawn(serve(ends.0.unwrap().link, sessions));
        let link = Connection::Shm(Arc::new(ends.1.unwrap()));
        let options = Options {
            checksum: false,
            deadline: Duration::from_secs(5),
            in_flight_max,
            ..Options::default()
        };
        Client::over(&link, s3, options).await
    }

    #[tokio::test]
    async fn many_messages_need_one_slot() {
        let region = Region::alloc(4 * ELEMENTS_MAX).unwrap();
        let gets: Vec<Get<'_>> = (0..region.len())
            .map(|at| Get {
                key: b"key",
                span: Span::of(..),
                into: region.window(at..at + 1),
            })
            .collect();
        for slots in [1, 2, 64] {
            let client = client(slots, "http://127.0.0.1:1").await;
            let mut told = 0;
            let each = |index, got: Result<Transfer>| {
                assert_eq!(index, told);
                assert_eq!(got.unwrap().bytes, 0);
                told += 1;
            };
            client.gather("ns", &gets, each).await.unwrap();
            assert_eq!(told, gets.len());
        }
    }

    /// Memory that may only be read is exposed for nothing more: this library asks for both.
    fn read_only(len: usize) -> Region {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let region = Region::from_memfd(file.into()).unwrap();
        assert!(region.len() >= len);
        region
    }

    #[tokio::test]
    async fn elements_that_the_link_cannot_carry_go_by_http() {
        let (region, unable) = (Region::alloc(4096).unwrap(), read_only(8));
        let long = "x".repeat(5000);
        let attributes = Attributes {
            metadata: vec![("long".to_owned(), long)],
            ..Attributes::default()
        };
        let plain = Put::new(b"key", region.window(0..8));
        let unreachable = Put::new(b"key", unable.window(0..8));
        let described = Put {
            attributes: Some(&attributes),
            ..plain.clone()
        };
        let (a, b, c) = (&plain, &unreachable, &described);
        let puts = [a, a, b, c, a, b, b].map(Put::clone);
        for slots in [1, 64] {
            let (address, stored) = s3().await;
            let client = client(slots, &address).await;
            let mut paths = Vec::new();
            let each = |index, put: Result<Transfer>| {
                assert_eq!(index, paths.len());
                let put = put.unwrap();
                assert_eq!(put.fallback.is_some(), put.path == Path::Http);
                paths.push(put.path);
            };
            client.scatter("bucket", &puts, each).await.unwrap();
            use Path::{Http, Shm};
            assert_eq!(paths, [Shm, Shm, Http, Http, Shm, Http, Http]);
            assert_eq!(stored.load(Relaxed), 4);
        }
    }

    /// Longer than anybody waits before another attempt.
    const WHILE: Duration = Duration::from_millis(500);

    #[tokio::test]
    async fn no_store_goes_on_while_its_element_is_sent_again() {
        let region = Region::alloc(8).unwrap();
        let put = Put::new(b"key", region.window(0..8));
        let puts = vec![put; ELEMENTS_MAX + 1];
        let options = Options::default();
        let (client, server, _sessions) = Client::linked("http://127.0.0.1:1", options).await;
        let scatter = client.scatter("ns", &puts, |_, put| drop(put.unwrap()));
        let next = async || {
            let mut message = Vec::new();
            server.recv(&mut message).await.unwrap().unwrap();
            let request = parse_request(&message).unwrap();
            let Call::Store(puts) = request.call else {
                panic!("{request:?}");
            };
            (request.id, puts.count())
        };
        let answer = async |(id, count): (u64, usize), busy: bool| {
            let mut writer = ReplyWriter::begin(Vec::new(), Operation::Store, id, 0);
            for _ in 0..count {
                let said = match busy {
                    true => writer.failed(Status::Busy, Hop::None, "too much at once"),
                    false => writer.value(&NOTHING),
                };
                said.unwrap();
            }
            server.send(writer.finish(true, false)).await.unwrap();
        };
        let serve = async {
            let (first, second) = (next().await, next().await);
            answer(first, true).await;
            let again = tokio::time::timeout(WHILE, next()).await;
            assert!(again.is_err(), "the second store has not ended");
            answer(second, false).await;
            for _ in 0..2 {
                answer(next().await, false).await;
            }
        };
        tokio::join!(scatter, serve).0.unwrap();
    }

    #[tokio::test]
    async fn no_store_by_http_goes_on_while_its_element_is_sent_again() {
        let region = Region::alloc(8).unwrap();
        let put = Put::new(b"key", region.window(0..8));
        let puts = [put.clone(), put];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let options = Options {
            path: Choice::Only(Path::Http),
            ..Options::default()
        };
        let (client, ..) = Client::linked(&endpoint, options).await;
        let scatter = client.scatter("ns", &puts, |_, put| drop(put.unwrap()));
        let next = async || {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.read_exact(&mut [0; 8]).await.unwrap();
            stream
        };
        let answer = async |mut stream: TcpStream, status: &str| {
            let head = format!(
                "HTTP/1.1 {status}\r\netag: \"tag\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
        };
        let serve = async {
            let (first, second) = (next().await, next().await);
            // Which of them is the first element is not known here.
            answer(first, "503 Slow Down").await;
            let again = tokio::time::timeout(WHILE, next()).await;
            assert!(again.is_err(), "the second store has not ended");
            answer(second, "503 Slow Down").await;
            for _ in 0..2 {
                answer(next().await, "200 OK").await;
            }
        };
        tokio::join!(scatter, serve).0.unwrap();
    }

    #[tokio::test]
    async fn an_element_that_the_server_is_too_busy_for_is_asked_for_again() {
        let region = Region::alloc(300).unwrap();
        let keys = (0..300).map(|at| if at == 200 { "busy" } else { "key" });
        let gets: Vec<Get<'_>> = keys
            .enumerate()
            .map(|(at, key)| Get {
                key: key.as_bytes(),
                span: Span::of(..),
                into: region.window(at..at + 1),
            })
            .collect();
        let client = client(64, "http://127.0.0.1:1").await;
        let mut told = 0;
        let each = |index, got: Result<Transfer>| {
            assert_eq!(index, told);
            got.unwrap();
            told += 1;
        };
        client.gather("ns", &gets, each).await.unwrap();
        assert_eq!(told, gets.len());
        // A condition could fail for what the first attempt did.
        let put = Put {
            condition: Condition::IfAbsent,
            ..Put::new(b"busy", region.window(0..8))
        };
        let client = self::client(64, "http://127.0.0.1:1").await;
        let mut said = Vec::new();
        let each = |_, put: Result<Transfer>| said.push(put.map_err(|error| error.kind()).err());
        let puts = [put.clone(), put];
        client.scatter("ns", &puts, each).await.unwrap();
        assert_eq!(said, [Some(crate::Kind::Limit), None]);
    }
}
