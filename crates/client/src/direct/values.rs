//! Values between the store and registered memory, one a call.

use std::ops::RangeBounds;
use std::sync::Arc;

use forebay_fabric::{Connection, Link};
use forebay_proto::direct::{
    self, INLINE_BYTES_MAX, Operation, Outcome, RequestWriter, Status, Value, parse_reply,
};

use super::attempt::{Failure, Tries, odd, refused, stopped, unregistered};
use super::client::Client;
use super::connected::Connected;
use super::http;
use super::lane::{Lane, in_time};
use super::loans::Use;
use super::options::Path;
use super::region::Region;
use super::transfer::Transfer;
use super::window::{Span, Window, argument};
use crate::{Attributes, Crc64, Error, Result};

/// One value to get, or a part of it, and where it goes.
#[derive(Debug, Clone)]
pub struct Get<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Which bytes of it.
    pub span: Span,
    /// Where they go, from the window's first byte on; a window shorter than the bytes is an error.
    pub into: Window<'a>,
}

/// One value to put, and where its bytes are.
#[derive(Debug, Clone)]
pub struct Put<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its bytes: all of the window.
    pub from: Window<'a>,
    /// What must hold of the present value.
    pub condition: Condition<'a>,
    /// From when on it no longer exists, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// What is kept with it.
    pub attributes: Option<&'a Attributes>,
    /// The CRC-64/NVME of its bytes, where they come from: nothing else is stored. None: of what then lies in the window.
    pub crc64nvme: Option<u64>,
}

pub use forebay_proto::direct::Condition;

impl Client {
    /// Places a value, or bytes `range` of it, in registered memory.
    ///
    /// # Errors
    /// [`Error::Refused`] when the server will not, [`Error::Corrupt`] when bytes changed on the way, [`Error::TimedOut`],
    /// [`Error::Transport`]. The window's bytes are then whatever they are; once the next call over them begins, nothing of this
    /// one can land any more.
    pub async fn get_into<'a>(
        &self,
        namespace: &str,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        range: impl RangeBounds<u64>,
        into: impl Into<Window<'a>>,
    ) -> Result<Transfer> {
        let span = Span::of(range);
        let mut into = into.into();
        into.check()?;
        span.check()?;
        // No more is lent than can be written.
        let used = usize::try_from(span.len_max()).unwrap_or(usize::MAX);
        into.range.end = into.range.end.min(into.range.start.saturating_add(used));
        let get = Get {
            key: key.as_ref(),
            span,
            into,
        };
        let mut tries = self.tries(get.into.len());
        loop {
            let connected = self.reaching(get.into.region.memory(), &tries).await;
            match self.get_once(&connected, namespace, &get, &tries).await {
                Ok(transfer) => {
                    self.earn();
                    return Ok(transfer);
                }
                Err(failure) => self.again(&connected, failure, true, &mut tries).await?,
            }
        }
    }

    /// Stores the bytes of registered memory as a value.
    ///
    /// # Errors
    /// As [`Client::get_into`]. After [`Error::Transport`] and [`Error::TimedOut`] the value may be stored or not.
    pub async fn put_from<'a>(
        &self,
        namespace: &str,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        from: impl Into<Window<'a>>,
    ) -> Result<Transfer> {
        self.put(namespace, &Put::new(key.as_ref(), from.into()))
            .await
    }

    /// The same with conditions and attributes.
    ///
    /// # Errors
    /// As [`Client::put_from`]; [`Error::Refused`] with status 412 when the condition does not hold.
    pub async fn put(&self, namespace: &str, put: &Put<'_>) -> Result<Transfer> {
        put.from.check()?;
        let repeatable = put.condition == Condition::None;
        let mut tries = self.tries(put.from.len());
        loop {
            let connected = self.reaching(put.from.region.memory(), &tries).await;
            match self.put_once(&connected, namespace, put, &tries).await {
                Ok(transfer) => {
                    self.earn();
                    return Ok(transfer);
                }
                Err(failure) => {
                    self.again(&connected, failure, repeatable, &mut tries)
                        .await?;
                }
            }
        }
    }

    async fn get_once(
        &self,
        connected: &Connected,
        namespace: &str,
        get: &Get<'_>,
        tries: &Tries,
    ) -> Result<Transfer, Failure> {
        let Some(lane) = connected.lane() else {
            // Boxed: the rare way must not make the usual one's future large.
            return Box::pin(http::get(connected, namespace, get, None, tries)).await;
        };
        match self.get_on(lane, connected, namespace, get, tries).await {
            Err(Failure::Unable(why)) if self.may_use_http(connected) => {
                Box::pin(http::get(connected, namespace, get, Some(why), tries)).await
            }
            done => done,
        }
    }

    async fn put_once(
        &self,
        connected: &Connected,
        namespace: &str,
        put: &Put<'_>,
        tries: &Tries,
    ) -> Result<Transfer, Failure> {
        let Some(lane) = connected.lane() else {
            return Box::pin(http::put(connected, namespace, put, None, tries)).await;
        };
        match self.put_on(lane, connected, namespace, put, tries).await {
            Err(Failure::Unable(why)) if self.may_use_http(connected) => {
                Box::pin(http::put(connected, namespace, put, Some(why), tries)).await
            }
            done => done,
        }
    }

    pub(crate) fn may_use_http(&self, connected: &Connected) -> bool {
        self.options().path.allows(Path::Http) && connected.s3.is_some()
    }

    async fn get_on(
        &self,
        lane: &Arc<Lane<Connection>>,
        connected: &Connected,
        namespace: &str,
        get: &Get<'_>,
        tries: &Tries,
    ) -> Result<Transfer, Failure> {
        let stop = |why| stopped(connected.path, tries, why);
        let Window { region, range } = &get.into;
        let now = region.try_lend_on(lane.id(), range.clone(), Use::Target);
        let (place, loan) = match now {
            Some((remote, loan)) => (get.into.remote(remote), loan),
            None => (
                register(lane, connected.path, &get.into, tries).await?,
                lend(&get.into, Use::Target, tries).await?,
            ),
        };
        let mut pending = lane.begin(tries.until).await.map_err(stop)?;
        pending.keep(loan);
        let written = pending.write(|id, message| {
            let mut writer = RequestWriter::begin(message, Operation::Retrieve, id, namespace)?;
            writer.retrieve(&self.retrieve(get, place))?;
            writer.finish();
            Ok(())
        });
        written.map_err(too_long)?;
        pending.send(tries.until).await.map_err(stop)?;
        let reply = pending.reply().await.map_err(stop)?;
        let outcome = only(&reply)?;
        let about = || about(namespace, get.key);
        let transfer = match outcome.status {
            Status::Ok => self.got(connected, get, &outcome.value()?, about),
            _ => Err(refused(&outcome, &about())),
        };
        pending.recycle(reply);
        transfer
    }

    async fn put_on(
        &self,
        lane: &Arc<Lane<Connection>>,
        connected: &Connected,
        namespace: &str,
        put: &Put<'_>,
        tries: &Tries,
    ) -> Result<Transfer, Failure> {
        let stop = |why| stopped(connected.path, tries, why);
        let place = source(lane, connected.path, put, tries).await;
        let place = place.map_err(Failure::unsent)?;
        let loan = lend(&put.from, Use::Source, tries).await?;
        let crc = self.sum(put);
        let mut encoded = Vec::new();
        let attributes = put.described(&mut encoded).map_err(too_described)?;
        let begun = lane.begin(tries.until).await;
        let mut pending = begun.map_err(|why| stop(why).unsent())?;
        pending.keep(loan);
        let written = pending.write(|id, message| {
            let mut writer = RequestWriter::begin(message, Operation::Store, id, namespace)?;
            writer.store(&put.element(place, crc, attributes, &mut [0; INLINE_BYTES_MAX]))?;
            writer.finish();
            Ok(())
        });
        written.map_err(too_long)?;
        pending.send(tries.until).await.map_err(stop)?;
        let reply = pending.reply().await.map_err(stop)?;
        let outcome = only(&reply)?;
        let transfer = match outcome.status {
            Status::Ok => Ok(connected.stored(put, &outcome.value()?, crc)),
            _ => Err(refused(&outcome, &about(namespace, put.key))),
        };
        pending.recycle(reply);
        transfer
    }

    /// The message's form of a get.
    pub(crate) fn retrieve<'a>(
        &self,
        get: &Get<'a>,
        place: direct::Window,
    ) -> direct::Retrieve<'a> {
        direct::Retrieve {
            key: get.key,
            version: None,
            range: get.span.asked(),
            target: direct::Target::Window(place),
            checksum: self.options().checksum,
        }
    }

    /// The checksum of bytes that leave, if there is one or one is wanted.
    pub(crate) fn sum(&self, put: &Put<'_>) -> Option<u64> {
        let Window { region, range } = &put.from;
        put.crc64nvme.or_else(|| {
            let crc = self.options().checksum.then(|| region.crc64(range.clone()));
            crc.flatten().map(Crc64::value)
        })
    }

    /// What came of a get that the server says went well: the bytes are in place, and are compared with their checksum.
    pub(crate) fn got(
        &self,
        connected: &Connected,
        get: &Get<'_>,
        value: &Value<'_>,
        about: impl Fn() -> String,
    ) -> Result<Transfer, Failure> {
        let path = connected.path;
        let moved = usize::try_from(value.moved).unwrap_or(usize::MAX);
        if moved > get.into.len() {
            return Err(odd("more bytes were placed than the window has"));
        }
        let stated = match value.moved == value.size {
            true => value.crc64nvme.or(value.part_crc64nvme),
            false => value.part_crc64nvme,
        };
        let checksum = match stated.filter(|_| self.options().checksum) {
            Some(stated) => {
                let Window { region, range } = &get.into;
                check(
                    region,
                    range.start..range.start + moved,
                    stated,
                    path,
                    about,
                )?;
                Some(stated)
            }
            None => None,
        };
        Ok(Transfer {
            bytes: value.moved,
            path,
            fallback: connected.fallback.clone(),
            checksum,
            size: value.size,
            etag: value.etag.to_owned(),
        })
    }
}

impl Connected {
    /// What came of a put that the server says went well.
    pub(crate) fn stored(&self, put: &Put<'_>, value: &Value<'_>, crc: Option<u64>) -> Transfer {
        Transfer {
            bytes: put.from.len() as u64,
            path: self.path,
            fallback: self.fallback.clone(),
            checksum: crc,
            size: value.size,
            etag: value.etag.to_owned(),
        }
    }
}

impl<'a> Put<'a> {
    /// All bytes of the window under this key, whatever is there.
    pub fn new(key: &'a [u8], from: Window<'a>) -> Put<'a> {
        Put {
            key,
            from,
            condition: Condition::None,
            expires_ms: None,
            attributes: None,
            crc64nvme: None,
        }
    }

    /// Its attributes in the message's form.
    pub(crate) fn described<'e>(
        &self,
        encoded: &'e mut Vec<u8>,
    ) -> Result<direct::Attributes<'e>, direct::Full> {
        match self.attributes {
            None => Ok(direct::Attributes::NONE),
            Some(attributes) => attributes.encode(encoded),
        }
    }

    /// The message's form; without a place its bytes are copied to `inline` and ride in the message.
    pub(crate) fn element<'e>(
        &self,
        place: Option<direct::Window>,
        crc64nvme: Option<u64>,
        attributes: direct::Attributes<'e>,
        inline: &'e mut [u8; INLINE_BYTES_MAX],
    ) -> direct::Store<'e>
    where
        'a: 'e,
    {
        let body = match place {
            Some(place) => direct::Body::Window(place),
            None => {
                let bytes = &mut inline[..self.from.len()];
                // The window was checked, and steady memory does not vanish.
                let _ = self.from.region.read(self.from.range.start, bytes);
                direct::Body::Message(bytes)
            }
        };
        direct::Store {
            key: self.key,
            body,
            condition: self.condition,
            crc64nvme,
            expires: self.expires_ms,
            attributes,
        }
    }
}

/// Compares bytes where they were placed with the checksum that the server states.
pub(crate) fn check(
    region: &Region,
    range: std::ops::Range<usize>,
    stated: u64,
    path: Path,
    about: impl Fn() -> String,
) -> Result<(), Failure> {
    let made = region.crc64(range).ok_or_else(gone)?.value();
    if made == stated {
        return Ok(());
    }
    let error = Error::of_download(&about(), path, made, stated);
    Err(Failure::Final(error))
}

/// Where a window lies for the server, which learns of the region if it has not.
pub(crate) async fn register(
    lane: &Arc<Lane<impl Link>>,
    path: Path,
    window: &Window<'_>,
    tries: &Tries,
) -> Result<direct::Window, Failure> {
    match in_time(tries.until, window.region.on(lane)).await {
        Some(Ok(remote)) => Ok(window.remote(remote)),
        Some(Err(error)) => Err(unregistered(path, error)),
        None => Err(Failure::Final(tries.timed_out())),
    }
}

/// The same of a put's bytes; none when they ride in the message: where memory is not shared that saves the server a round trip.
pub(crate) async fn source(
    lane: &Arc<Lane<impl Link>>,
    path: Path,
    put: &Put<'_>,
    tries: &Tries,
) -> Result<Option<direct::Window>, Failure> {
    let rides = path != Path::Shm && put.from.len() <= INLINE_BYTES_MAX;
    // Bytes that could vanish while they are copied do not ride: the server would not notice.
    if rides && put.from.region.is_steady() {
        return Ok(None);
    }
    register(lane, path, &put.from, tries).await.map(Some)
}

/// Bytes for a call, or the end of its patience.
pub(crate) async fn lend(
    window: &Window<'_>,
    what: Use,
    tries: &Tries,
) -> Result<super::region::Loan, Failure> {
    let lent = window.region.lend(window.range.clone(), what, tries.until);
    lent.await.ok_or_else(|| Failure::Final(tries.timed_out()))
}

/// The only result of a reply to one element.
fn only(reply: &[u8]) -> Result<Outcome<'_>, Failure> {
    let mut results = parse_reply(reply)?.results;
    match (results.next(), results.next()) {
        (Some(result), None) => Ok(result),
        _ => Err(odd("one element was asked for, another number answered")),
    }
}

pub(crate) fn about(namespace: &str, key: &[u8]) -> String {
    format!("{namespace}/{}", String::from_utf8_lossy(key))
}

pub(crate) fn too_described(_: direct::Full) -> Failure {
    Failure::Unable("its attributes are longer than a message takes".to_owned())
}

pub(crate) fn too_long(_: direct::Full) -> Failure {
    Failure::Final(argument(
        "a name, key, tag or attribute is longer than it may be",
    ))
}

/// Windows are checked before they are used.
fn gone() -> Failure {
    Failure::Final(argument("a window outside its region"))
}

#[cfg(test)]
mod tests {
    use forebay_fabric::CloseReason;

    use super::*;
    use crate::direct::Options;

    #[tokio::test]
    async fn a_conditional_put_is_made_again_when_nothing_of_it_was_sent() {
        let linked = || Client::linked("http://127.0.0.1:1", Options::default());
        let (client, server, _sessions) = linked().await;
        let connected = client.connected();
        server.close(CloseReason::Done);
        let lane = connected.lane().unwrap();
        while lane.ended().is_none() {
            tokio::task::yield_now().await;
        }
        let region = Region::alloc(8).unwrap();
        let put = Put {
            condition: Condition::IfAbsent,
            ..Put::new(b"key", (&region).into())
        };
        let mut tries = client.tries(8);
        let put = client.put_once(&connected, "ns", &put, &tries).await;
        let failure = put.unwrap_err();
        assert!(matches!(failure, Failure::Unsent(_)), "{failure:?}");
        // To this one the session is one in whose place there is another already.
        let (mended, ..) = linked().await;
        let again = mended.again(&connected, failure, false, &mut tries);
        again.await.unwrap();
        assert_eq!(tries.made, 2);
        // When something was sent, it may have been done.
        let lost = stopped(
            connected.path,
            &tries,
            lane.begin(tries.until).await.unwrap_err(),
        );
        let again = mended.again(&connected, lost, false, &mut tries).await;
        assert!(again.is_err());
    }
}
