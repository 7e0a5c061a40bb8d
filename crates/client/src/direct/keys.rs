//! Calls about keys: no payload moves.

use std::collections::VecDeque;

use bytes::Bytes;
use forebay_api::v1;
use forebay_fabric::Link;
use forebay_proto::direct::{self, Operation, RequestWriter, Status, parse_reply};

use super::attempt::{Failure, Tries, odd, refused, stopped};
use super::client::Client;
use super::lane::{Lane, Pending};
use super::options::Path;
use super::values::{about, too_long};
use crate::{Attributes, Error, Result, answers};

/// What is known of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Its length in bytes.
    pub size: u64,
    /// A tag that changes with the bytes.
    pub etag: String,
    /// When it was stored, in milliseconds since 1970.
    pub modified_ms: u64,
    /// Its version; 0 in a namespace without versions.
    pub version: u64,
    /// CRC-64/NVME of the whole value; none when the store has none.
    pub crc64nvme: Option<u64>,
    /// From when on it no longer exists, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
}

/// What to list of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Only keys that begin so.
    pub prefix: Vec<u8>,
    /// Keys that share what comes before the first delimiter after the prefix are one entry; empty for none.
    pub delimiter: Vec<u8>,
    /// Only keys after this one; looked at on the first page.
    pub start_after: Vec<u8>,
    /// Where to go on: from the page before.
    pub page: Option<Bytes>,
    /// The most entries of a page; 0 for the server's choice.
    pub limit: u32,
}

/// Part of a list, in byte order of the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where the next page begins; none when this was the last.
    pub next: Option<Bytes>,
}

/// A line of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A value.
    Value {
        /// Its key.
        key: Bytes,
        /// What is known of it.
        stat: Stat,
    },
    /// What several keys share, delimiter included.
    Prefix(Bytes),
}

impl From<v1::ObjectInfo> for Stat {
    fn from(info: v1::ObjectInfo) -> Stat {
        Stat {
            size: info.size,
            etag: info.etag,
            modified_ms: info.modified_ms,
            version: info.version,
            crc64nvme: Some(info.crc64nvme),
            expires_ms: info.expires_ms,
        }
    }
}

impl Client {
    /// For each key the size of its value in bytes; none where there is no value. Any number of keys.
    ///
    /// # Errors
    /// As every call: see [`Client::get_into`].
    pub async fn exist<K: AsRef<[u8]>>(
        &self,
        namespace: &str,
        keys: &[K],
    ) -> Result<Vec<Option<u64>>> {
        let mut tries = self.tries(0);
        loop {
            let connected = self.connected();
            let asked = match connected.lane() {
                Some(lane) => exist_on(lane, connected.path, namespace, keys, &tries).await,
                None => self.exist_by_rpc(namespace, keys, &tries).await,
            };
            match asked {
                Ok(sizes) => {
                    self.earn();
                    return Ok(sizes);
                }
                Err(failure) => self.again(&connected, failure, true, &mut tries).await?,
            }
        }
    }

    /// How many of the keys, from the first on, hold values without a gap.
    ///
    /// # Errors
    /// As every call.
    pub async fn longest_prefix<K: AsRef<[u8]>>(
        &self,
        namespace: &str,
        keys: &[K],
    ) -> Result<usize> {
        let mut tries = self.tries(0);
        let mut found = 0;
        for keys in keys.chunks(KEYS_MAX) {
            let count = loop {
                let connected = self.connected();
                let call = self.rpc().longest_prefix(namespace, copied(keys));
                match timely(&tries, call).await {
                    Ok(count) => break count,
                    Err(failure) => self.again(&connected, failure, true, &mut tries).await?,
                }
            };
            found += count.min(keys.len());
            if count < keys.len() {
                break;
            }
        }
        self.earn();
        Ok(found)
    }

    /// What is known of a value.
    ///
    /// # Errors
    /// As every call.
    pub async fn stat(&self, namespace: &str, key: &(impl AsRef<[u8]> + ?Sized)) -> Result<Stat> {
        let key = key.as_ref();
        let mut tries = self.tries(0);
        loop {
            let connected = self.connected();
            let asked = match connected.lane() {
                Some(lane) => stat_on(lane, connected.path, namespace, key, &tries).await,
                None => timely(&tries, self.rpc().stat(namespace, key))
                    .await
                    .map(Stat::from),
            };
            match asked {
                Ok(stat) => {
                    self.earn();
                    return Ok(stat);
                }
                Err(failure) => self.again(&connected, failure, true, &mut tries).await?,
            }
        }
    }

    /// What is kept with a value.
    ///
    /// # Errors
    /// As every call.
    pub async fn attributes(
        &self,
        namespace: &str,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Result<Attributes> {
        Ok(self.describe(namespace, key).await?.1)
    }

    /// What is known of a value and what is kept with it, both of the same version of it.
    ///
    /// # Errors
    /// As every call.
    pub async fn describe(
        &self,
        namespace: &str,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Result<(Stat, Attributes)> {
        let mut tries = self.tries(0);
        loop {
            let connected = self.connected();
            let asked = self.rpc().described(namespace, key.as_ref());
            match timely(&tries, asked).await {
                Ok((object, attributes)) => {
                    self.earn();
                    return Ok((object.into(), attributes.into()));
                }
                Err(failure) => self.again(&connected, failure, true, &mut tries).await?,
            }
        }
    }

    /// Deletes a value; says whether there was one. A delete of which an answer was lost is not made again: the second would say that
    /// there was nothing, and hide what is there behind another marker in a namespace with versions.
    ///
    /// # Errors
    /// As every call. After [`Error::Transport`] and [`Error::TimedOut`] the value may be deleted or not; whoever wants it gone whether
    /// there was one or not deletes again.
    pub async fn delete(&self, namespace: &str, key: &(impl AsRef<[u8]> + ?Sized)) -> Result<bool> {
        let key = key.as_ref();
        let mut tries = self.tries(0);
        loop {
            let connected = self.connected();
            let asked = match connected.lane() {
                Some(lane) => delete_on(lane, connected.path, namespace, key, &tries).await,
                None => timely(&tries, self.rpc().delete(namespace, key)).await,
            };
            match asked {
                Ok(existed) => {
                    self.earn();
                    return Ok(existed);
                }
                Err(failure) => self.again(&connected, failure, false, &mut tries).await?,
            }
        }
    }

    /// A page of the keys in a namespace.
    ///
    /// # Errors
    /// As every call.
    pub async fn list(&self, namespace: &str, listing: &Listing) -> Result<Page> {
        let request = v1::ListRequest {
            namespace: namespace.to_owned(),
            prefix: listing.prefix.clone().into(),
            delimiter: listing.delimiter.clone().into(),
            start_after: listing.start_after.clone().into(),
            page_token: listing.page.clone().unwrap_or_default(),
            limit: listing.limit,
        };
        let mut tries = self.tries(0);
        let answer = loop {
            let connected = self.connected();
            match timely(&tries, self.rpc().list(request.clone())).await {
                Ok(answer) => break answer,
                Err(failure) => self.again(&connected, failure, true, &mut tries).await?,
            }
        };
        self.earn();
        let next = Some(answer.next_page_token).filter(|token| !token.is_empty());
        answers::goes_on(listing.page.as_ref(), next.as_ref())?;
        let entries = answer.entries.into_iter().map(|entry| match entry.entry {
            Some(v1::list_entry::Entry::Object(listed)) => Ok(Entry::Value {
                key: listed.key,
                stat: listed.object.unwrap_or_default().into(),
            }),
            Some(v1::list_entry::Entry::Prefix(prefix)) => Ok(Entry::Prefix(prefix)),
            None => Err(Error::Protocol("an empty line of a list".to_owned())),
        });
        Ok(Page {
            entries: entries.collect::<Result<_>>()?,
            next,
        })
    }

    /// Makes a namespace of one's own tenant; false when there is one of that name, whoever owns it. `relaxed_ms`: 0 when stores are
    /// answered after they are on stable storage, else how many milliseconds later they may get there.
    ///
    /// # Errors
    /// As every call.
    pub async fn create_namespace(&self, name: &str, relaxed_ms: u32) -> Result<bool> {
        let call = self.rpc().create_namespace(name, relaxed_ms);
        self.in_time(call).await
    }

    /// Removes an empty namespace.
    ///
    /// # Errors
    /// As every call.
    pub async fn remove_namespace(&self, name: &str) -> Result<()> {
        self.in_time(self.rpc().remove_namespace(name)).await
    }

    async fn in_time<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let deadline = self.options().deadline;
        let answered = tokio::time::timeout(deadline, call).await;
        answered.map_err(|_| Error::TimedOut(deadline))?
    }

    async fn exist_by_rpc<K: AsRef<[u8]>>(
        &self,
        namespace: &str,
        keys: &[K],
        tries: &Tries,
    ) -> Result<Vec<Option<u64>>, Failure> {
        let mut sizes = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_MAX) {
            let call = self.rpc().exist(namespace, copied(keys));
            sizes.extend(timely(tries, call).await?);
        }
        Ok(sizes)
    }
}

/// The most keys of one call of the gRPC interface (`Limits.exist_keys_max`).
const KEYS_MAX: usize = 10_000;

fn copied<K: AsRef<[u8]>>(keys: &[K]) -> Vec<Bytes> {
    let keys = keys.iter().map(AsRef::as_ref);
    keys.map(Bytes::copy_from_slice).collect()
}

async fn timely<T>(tries: &Tries, call: impl Future<Output = Result<T>>) -> Result<T, Failure> {
    let answered = tokio::time::timeout_at(tries.until.into(), call).await;
    Ok(answered.map_err(|_| Failure::Final(tries.timed_out()))??)
}

/// As many messages as the keys fill, sent without waiting for answers as long as the lane has room.
pub(super) async fn exist_on<L: Link, K: AsRef<[u8]>>(
    lane: &Lane<L>,
    path: Path,
    namespace: &str,
    keys: &[K],
    tries: &Tries,
) -> Result<Vec<Option<u64>>, Failure> {
    let stop = |why| stopped(path, tries, why);
    let mut asked = VecDeque::new();
    let mut sizes = Vec::with_capacity(keys.len());
    let mut rest = keys;
    loop {
        let slot = match rest.is_empty() || asked.len() >= MESSAGES_MAX {
            true => None,
            false if asked.is_empty() => Some(lane.begin(tries.until).await.map_err(stop)?),
            false => lane.try_begin().map_err(stop)?,
        };
        let Some(mut pending) = slot else {
            let Some((pending, count)) = asked.pop_front() else {
                return Ok(sizes);
            };
            sizes.extend(existing(pending, count, stop).await?);
            continue;
        };
        let count = write_keys(&mut pending, namespace, rest)?;
        pending.send(tries.until).await.map_err(stop)?;
        rest = &rest[count..];
        asked.push_back((pending, count));
    }
}

/// Writes down as many keys as a message takes; says how many.
fn write_keys<K: AsRef<[u8]>>(
    pending: &mut Pending<'_, impl Link>,
    namespace: &str,
    keys: &[K],
) -> Result<usize, Failure> {
    let mut count = 0;
    let written = pending.write(|id, message| {
        let mut writer = RequestWriter::begin(message, Operation::Exist, id, namespace)?;
        for key in keys {
            match writer.key(key.as_ref()) {
                Ok(()) => count += 1,
                // The next message takes it, unless no message could.
                Err(full) if count == 0 => return Err(full),
                Err(_) => break,
            }
        }
        writer.finish();
        Ok(())
    });
    written.map_err(too_long)?;
    Ok(count)
}

/// Messages of one call in flight: enough to keep a link busy.
const MESSAGES_MAX: usize = 16;

async fn existing(
    mut pending: Pending<'_, impl Link>,
    count: usize,
    stop: impl Fn(super::lane::Stopped) -> Failure,
) -> Result<Vec<Option<u64>>, Failure> {
    let reply = pending.reply().await.map_err(stop)?;
    let outcome = first(&reply)?;
    let sizes = match outcome.status {
        Status::Ok => outcome.sizes()?.collect::<Vec<_>>(),
        _ => return Err(refused(&outcome, "exist")),
    };
    pending.recycle(reply);
    match sizes.len() == count {
        true => Ok(sizes),
        false => Err(odd("another number of keys was answered")),
    }
}

fn first(reply: &[u8]) -> Result<direct::Outcome<'_>, Failure> {
    let mut results = parse_reply(reply)?.results;
    results.next().ok_or_else(|| odd("an empty answer"))
}

async fn stat_on(
    lane: &Lane<impl Link>,
    path: Path,
    namespace: &str,
    key: &[u8],
    tries: &Tries,
) -> Result<Stat, Failure> {
    let stop = |why| stopped(path, tries, why);
    let mut pending = lane.begin(tries.until).await.map_err(stop)?;
    let written = pending.write(|id, message| {
        let mut writer = RequestWriter::begin(message, Operation::Stat, id, namespace)?;
        writer.stat(&direct::Stat { key, version: None })?;
        writer.finish();
        Ok(())
    });
    written.map_err(too_long)?;
    pending.send(tries.until).await.map_err(stop)?;
    let reply = pending.reply().await.map_err(stop)?;
    let outcome = first(&reply)?;
    if outcome.status != Status::Ok {
        return Err(refused(&outcome, &about(namespace, key)));
    }
    let value = outcome.value()?;
    Ok(Stat {
        size: value.size,
        etag: value.etag.to_owned(),
        modified_ms: value.modified,
        version: value.version,
        crc64nvme: value.crc64nvme,
        expires_ms: value.expires,
    })
}

async fn delete_on(
    lane: &Lane<impl Link>,
    path: Path,
    namespace: &str,
    key: &[u8],
    tries: &Tries,
) -> Result<bool, Failure> {
    let stop = |why| stopped(path, tries, why);
    let begun = lane.begin(tries.until).await;
    let mut pending = begun.map_err(|why| stop(why).unsent())?;
    let written = pending.write(|id, message| {
        let mut writer = RequestWriter::begin(message, Operation::Delete, id, namespace)?;
        writer.delete(&direct::Delete {
            key,
            version: None,
            condition: direct::Condition::None,
        })?;
        writer.finish();
        Ok(())
    });
    written.map_err(too_long)?;
    pending.send(tries.until).await.map_err(stop)?;
    let reply = pending.reply().await.map_err(stop)?;
    let outcome = first(&reply)?;
    match outcome.status {
        Status::Ok => Ok(outcome.deleted()?.existed),
        _ => Err(refused(&outcome, &about(namespace, key))),
    }
}

#[cfg(test)]
mod tests {
    use forebay_fabric::{CloseReason, Connection};
    use forebay_proto::direct::{Call, Deleted, ReplyWriter, parse_request};

    use super::*;
    use crate::direct::Options;

    /// Takes one delete out of the link, and executes it: whether there was a value, which then is there no more.
    async fn executed(link: &Connection, there: &mut bool) -> (u64, bool) {
        let mut message = Vec::new();
        link.recv(&mut message).await.unwrap();
        let request = parse_request(&message).unwrap();
        let Call::Delete(deletes) = request.call else {
            panic!("{request:?}");
        };
        assert_eq!(deletes.count(), 1);
        (request.id, std::mem::take(there))
    }

    async fn answer(link: &Connection, (id, existed): (u64, bool)) {
        let mut writer = ReplyWriter::begin(Vec::new(), Operation::Delete, id, 0);
        let deleted = Deleted {
            existed,
            version: None,
            marker: false,
        };
        writer.deleted(&deleted).unwrap();
        link.send(writer.finish(true, false)).await.unwrap();
    }

    #[tokio::test]
    async fn a_delete_whose_answer_is_lost_has_an_unknown_outcome() {
        let linked = || Client::linked("http://127.0.0.1:1", Options::default());
        let (client, server, _sessions) = linked().await;
        let (next, next_server, _next_sessions) = linked().await;
        let mut there = true;
        let mended = client.clone();
        let serving = async {
            executed(&server, &mut there).await;
            // By the time that the call looks, another session is there to go on with.
            mended.mended_by(&next);
            server.close(CloseReason::Lost);
            // What comes next is answered as it is.
            let done = executed(&next_server, &mut there).await;
            answer(&next_server, done).await;
        };
        tokio::pin!(serving);
        let lost = tokio::select! {
            lost = client.delete("ns", "key") => lost,
            () = &mut serving => panic!("it was made again"),
        };
        assert!(
            matches!(&lost, Err(Error::Transport { what, .. }) if what.ends_with("the outcome is unknown")),
            "{lost:?}"
        );
        // Whoever asks again hears how it is.
        let (again, ()) = tokio::join!(client.delete("ns", "key"), serving);
        assert!(!again.unwrap());
    }

    #[tokio::test]
    async fn a_delete_that_was_not_sent_is_made_again() {
        let linked = || Client::linked("http://127.0.0.1:1", Options::default());
        let (client, server, _sessions) = linked().await;
        let connected = client.connected();
        server.close(CloseReason::Done);
        let lane = connected.lane().unwrap();
        while lane.ended().is_none() {
            tokio::task::yield_now().await;
        }
        let mut tries = client.tries(0);
        let failed = delete_on(lane, connected.path, "ns", b"key", &tries).await;
        let failure = failed.unwrap_err();
        assert!(matches!(failure, Failure::Unsent(_)), "{failure:?}");
        // To this one the session is one in whose place there is another already.
        let (mended, ..) = linked().await;
        let again = mended.again(&connected, failure, false, &mut tries);
        again.await.unwrap();
        assert_eq!(tries.made, 2);
    }
}
