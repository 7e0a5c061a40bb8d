//! Many values in one call, completed in the caller's order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_fabric::Connection;
use forebay_proto::direct::{
    self, Full, INLINE_BYTES_MAX, Outcome, Reply, RequestWriter, Status, parse_reply,
};
use futures_util::stream::{FuturesOrdered, StreamExt};

use super::attempt::{Failure, Tries, odd, refused, stopped};
use super::client::Client;
use super::connected::Connected;
use super::elements::Elements;
use super::http;
use super::lane::{Lane, Pending, Stopped};
use super::needs::needs;
use super::transfer::Transfer;
use super::values::{Get, Put, about, register, source};
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

/// A message in flight: its slot, the elements not answered yet, and the checksums of those that are stores.
struct Batch<'a> {
    pending: Pending<'a, Connection>,
    left: Range<usize>,
    crcs: VecDeque<Option<u64>>,
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
            let course = Course {
                client: self,
                connected: &connected,
                namespace,
                elements,
                tries: &tries,
            };
            let asked = match connected.lane() {
                Some(lane) => course.by_link(lane, before, &mut report).await,
                None => course.by_http(before, &mut report).await,
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
}

/// The elements from one on, over one session.
struct Course<'a> {
    client: &'a Client,
    connected: &'a Connected,
    namespace: &'a str,
    elements: Elements<'a, 'a>,
    tries: &'a Tries,
}

impl Course<'_> {
    async fn by_link(
        &self,
        lane: &Arc<Lane<Connection>>,
        from: usize,
        report: &mut impl FnMut(Result<Transfer, Failure>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut asked = from;
        let mut batches: VecDeque<Batch<'_>> = VecDeque::new();
        loop {
            if asked < self.elements.len() && batches.len() < MESSAGES_MAX {
                match self.ask(lane, asked, batches.is_empty()).await? {
                    Asked::Sent(batch) => {
                        asked = batch.left.end;
                        batches.push_back(batch);
                        continue;
                    }
                    // In its turn: by HTTP what the link cannot carry.
                    Asked::Never(why) if batches.is_empty() => {
                        report(self.otherwise(asked, why).await)?;
                        asked += 1;
                        continue;
                    }
                    Asked::Never(_) | Asked::NotNow => {}
                }
            }
            let Some(batch) = batches.front_mut() else {
                return Ok(());
            };
            let reply = batch.pending.reply().await;
            let reply = reply.map_err(|why| self.stopped(why))?;
            let answer = parse_reply(&reply)?;
            let last = answer.last;
            let told = self.tell(batch, answer, report);
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
                    if let Elements::Puts(_) = self.elements {
                        for batch in &mut batches {
                            self.settle(batch).await?;
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
        batch: &mut Batch<'_>,
        answer: Reply<'_>,
        report: &mut impl FnMut(Result<Transfer, Failure>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut refusal = None;
        for outcome in answer.results {
            let index = batch.left.next();
            let index = index.ok_or_else(|| odd("more was answered than was asked"))?;
            let crc = batch.crcs.pop_front().flatten();
            report(self.outcome(index, &outcome, crc))?;
            refusal = Some(outcome).filter(|outcome| outcome.status != Status::Ok);
        }
        if answer.last {
            // A message that is refused as a whole has one result, which is every element's.
            for index in batch.left.by_ref() {
                let refusal = refusal.as_ref();
                let refusal = refusal.ok_or_else(|| odd("less was answered than was asked"))?;
                report(self.outcome(index, refusal, None))?;
            }
        }
        Ok(())
    }

    /// What came of one element.
    fn outcome(
        &self,
        index: usize,
        outcome: &Outcome<'_>,
        crc: Option<u64>,
    ) -> Result<Transfer, Failure> {
        let about = || about(self.namespace, self.elements.key(index));
        match (outcome.status, self.elements) {
            (Status::Ok, Elements::Gets(gets)) => {
                let value = outcome.value()?;
                self.client.got(self.connected, &gets[index], &value, about)
            }
            (Status::Ok, Elements::Puts(puts)) => {
                Ok(self.connected.stored(&puts[index], &outcome.value()?, crc))
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

    /// Waits until the server is done with a message.
    async fn settle(&self, batch: &mut Batch<'_>) -> Result<(), Failure> {
        loop {
            let reply = batch.pending.reply().await;
            let reply = reply.map_err(|why| self.stopped(why))?;
            let last = parse_reply(&reply)?.last;
            batch.pending.recycle(reply);
            if last {
                return Ok(());
            }
        }
    }

    /// Sends as many elements from `first` on as fit one message and as the link can carry, unless that would have to wait and the call
    /// is not `patient`.
    async fn ask<'l>(
        &self,
        lane: &'l Arc<Lane<Connection>>,
        first: usize,
        patient: bool,
    ) -> Result<Asked<'l>, Failure> {
        let places = match self.places(lane, first).await {
            Ok(places) => places,
            Err(why @ Failure::Unable(_)) => return Ok(Asked::Never(why)),
            Err(failure) => return Err(failure),
        };
        let (_, what) = self.elements.operation();
        let windows = self.elements.windows(first..first + places.len());
        let needs = needs(lane, &windows, what, self.tries.until, patient).await;
        let Some((mut pending, loans)) = needs.map_err(|why| self.stopped(why))? else {
            return Ok(Asked::NotNow);
        };
        let crcs = match self.write(&mut pending, first, places) {
            Ok(crcs) => crcs,
            Err(full) => return Ok(Asked::Never(self.elements.too_long(first, full))),
        };
        // What did not fit is for later messages to borrow.
        let kept = loans.into_iter().filter(|(index, _)| *index < crcs.len());
        kept.for_each(|(_, loan)| pending.keep(loan));
        let sent = pending.send(self.tries.until).await;
        match sent.map_err(|why| self.stopped(why)) {
            Ok(()) => Ok(Asked::Sent(Batch {
                pending,
                left: first..first + crcs.len(),
                crcs,
            })),
            Err(why @ Failure::Unable(_)) => Ok(Asked::Never(why)),
            Err(failure) => Err(failure),
        }
    }

    /// Where the link has the memory of elements from `first` on, up to one that it cannot carry; none for bytes that ride in the message.
    async fn places(
        &self,
        lane: &Arc<Lane<Connection>>,
        first: usize,
    ) -> Result<Vec<Option<direct::Window>>, Failure> {
        let (path, tries) = (self.connected.path, self.tries);
        let end = self.elements.len().min(first + ELEMENTS_MAX);
        let mut places = Vec::with_capacity(end - first);
        for index in first..end {
            let place = match self.elements {
                Elements::Gets(gets) => register(lane, path, &gets[index].into, tries)
                    .await
                    .map(Some),
                Elements::Puts(puts) => source(lane, path, &puts[index], tries).await,
            };
            match place {
                Ok(place) => places.push(place),
                // It is the first of what is asked next.
                Err(Failure::Unable(_)) if index > first => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(places)
    }

    /// Writes down as many of the elements from `first` on as a message takes, with the checksum of each that is a store.
    fn write(
        &self,
        pending: &mut Pending<'_, Connection>,
        first: usize,
        places: Vec<Option<direct::Window>>,
    ) -> Result<VecDeque<Option<u64>>, Full> {
        let (operation, _) = self.elements.operation();
        let mut crcs = VecDeque::with_capacity(places.len());
        pending.write(|id, message| {
            let mut inline = [0; INLINE_BYTES_MAX];
            let mut encoded = Vec::new();
            let mut writer = RequestWriter::begin(message, operation, id, self.namespace)?;
            for (index, place) in (first..).zip(places) {
                let appended = match (self.elements, place) {
                    (Elements::Gets(gets), Some(place)) => {
                        let get = self.client.retrieve(&gets[index], place);
                        writer.retrieve(&get).map(|()| None)
                    }
                    (Elements::Gets(_), None) => break,
                    (Elements::Puts(puts), place) => {
                        let put = &puts[index];
                        let crc = self.client.sum(put);
                        let attributes = put.described(&mut encoded);
                        let stored = attributes.and_then(|attributes| {
                            writer.store(&put.element(place, crc, attributes, &mut inline))
                        });
                        stored.map(|()| crc)
                    }
                };
                match appended {
                    Ok(crc) => crcs.push_back(crc),
                    // The next message takes it, unless no message could.
                    Err(full) if crcs.is_empty() => return Err(full),
                    Err(_) => break,
                }
            }
            writer.finish();
            Ok(())
        })?;
        Ok(crcs)
    }

    /// One element that the link cannot carry.
    async fn otherwise(&self, index: usize, why: Failure) -> Result<Transfer, Failure> {
        match why {
            Failure::Unable(why) if self.client.may_use_http(self.connected) => {
                self.one_by_http(index, Some(why)).await
            }
            Failure::Unable(what) => {
                let endpoint = self.connected.path.to_string();
                Err(Failure::Final(Error::Transport { endpoint, what }))
            }
            why => Err(why),
        }
    }

    async fn by_http(
        &self,
        from: usize,
        report: &mut impl FnMut(Result<Transfer, Failure>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut left = from..self.elements.len();
        let mut transfers = FuturesOrdered::new();
        loop {
            let room = HTTP_MAX - transfers.len();
            let more = left.by_ref().take(room);
            transfers.extend(more.map(|index| self.one_by_http(index, None)));
            let Some(transfer) = transfers.next().await else {
                return Ok(());
            };
            if let Err(failure) = report(transfer) {
                // As by a link.
                if let Elements::Puts(_) = self.elements {
                    while transfers.next().await.is_some() {}
                }
                return Err(failure);
            }
        }
    }

    /// One element; `why` is the reason why the link cannot carry it.
    async fn one_by_http(&self, index: usize, why: Option<String>) -> Result<Transfer, Failure> {
        let (connected, namespace, tries) = (self.connected, self.namespace, self.tries);
        match self.elements {
            Elements::Gets(gets) => http::get(connected, namespace, &gets[index], why, tries).await,
            Elements::Puts(puts) => http::put(connected, namespace, &puts[index], why, tries).await,
        }
    }

    fn stopped(&self, why: Stopped) -> Failure {
        stopped(self.connected.path, self.tries, why)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use forebay_fabric::{Link, Sessions};
    use forebay_proto::direct::{Call, Hop, Operation, ReplyWriter, Value, parse_request};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::Attributes;
    use crate::direct::{Choice, Condition, Options, Path, Region, Span};

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
        let options = Options {
            checksum: false,
            deadline: Duration::from_secs(5),
            in_flight_max,
            ..Options::default()
        };
        let (client, server, sessions) = Client::linked(s3, options).await;
        tokio::spawn(serve(server, sessions));
        client
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
