//! Many values in one call, completed in the caller's order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_fabric::Connection;
use forebay_proto::direct::{
    Condition, INLINE_BYTES_MAX, Operation, Outcome, RequestWriter, Status, parse_reply,
};
use futures_util::stream::{self, StreamExt};

use super::attempt::{Failure, Tries, odd, refused, stopped};
use super::client::Client;
use super::connected::Connected;
use super::http;
use super::lane::{Lane, Pending};
use super::loans::Use;
use super::seat::Memory;
use super::transfer::Transfer;
use super::values::{Get, Put, about, lend, too_long};
use crate::{Error, Result};

/// Messages of one call in flight: enough that the server never waits for the next.
const MESSAGES_MAX: usize = 8;
/// Elements of a message: the first bytes arrive while later elements are still being written down.
const ELEMENTS_MAX: usize = 128;
/// Requests in flight when a batch goes by HTTP.
const HTTP_MAX: usize = 16;

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

impl Elements<'_, '_> {
    fn len(self) -> usize {
        match self {
            Elements::Gets(gets) => gets.len(),
            Elements::Puts(puts) => puts.len(),
        }
    }

    fn check(self) -> Result<()> {
        match self {
            Elements::Gets(gets) => gets.iter().try_for_each(|get| {
                get.into.check()?;
                get.span.check()
            }),
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

    /// Whether asking twice is the same as asking once.
    fn repeatable(self) -> bool {
        match self {
            Elements::Gets(_) => true,
            Elements::Puts(puts) => puts.iter().all(|put| put.condition == Condition::None),
        }
    }
}

impl Client {
    /// Places many values, or parts of them, in registered memory. `each` is called for every element, in their order, as soon as
    /// its bytes are in place or it has failed; an element that fails does not stop the others. No two windows may overlap.
    ///
    /// # Errors
    /// When the call as a whole cannot go on; `each` was called for the elements before that.
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
        let mut tries = self.tries();
        let mut done = 0;
        while done < elements.len() {
            let connected = self.reaching(elements.memory(), &tries).await;
            let before = done;
            let mut report = |result: Result<Transfer, Failure>| {
                let result = match result {
                    Ok(transfer) => Ok(transfer),
                    Err(Failure::Final(error)) => Err(error),
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
                // Whoever makes progress may go on trying.
                tries.made = 1;
            }
            self.again(&connected, failure, elements.repeatable(), &mut tries)
                .await?;
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
                let batch = self
                    .ask(lane, connected, namespace, elements, asked, tries)
                    .await?;
                asked = batch.left.end;
                batches.push_back(batch);
                continue;
            }
            let Some(batch) = batches.front_mut() else {
                return Ok(());
            };
            let reply = batch.pending.reply().await;
            let reply = reply.map_err(|why| stopped(connected.path, tries, why))?;
            for outcome in parse_reply(&reply)?.results {
                let index = batch.left.next();
                let index = index.ok_or_else(|| odd("more was answered than was asked"))?;
                let crc = batch.crcs.pop_front().flatten();
                report(self.outcome(connected, namespace, elements, index, &outcome, crc))?;
            }
            batch.pending.recycle(reply);
            if batch.left.is_empty() {
                batches.pop_front();
            }
        }
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
                Failure::Unable(why) | Failure::Again(Error::Protocol(why)) => {
                    Err(Failure::Final(Error::Protocol(why)))
                }
                Failure::Again(error) => Err(Failure::Final(error)),
                failure => Err(failure),
            },
        }
    }

    /// Sends as many elements from `first` on as fit one message.
    async fn ask<'l>(
        &self,
        lane: &'l Arc<Lane<Connection>>,
        connected: &Connected,
        namespace: &str,
        elements: Elements<'_, '_>,
        first: usize,
        tries: &Tries,
    ) -> Result<Batch<'l>, Failure> {
        let stop = |why| stopped(connected.path, tries, why);
        let end = elements.len().min(first + ELEMENTS_MAX);
        let mut places = Vec::with_capacity(end - first);
        for index in first..end {
            places.push(match elements {
                Elements::Gets(gets) => {
                    Some(self.register(lane, connected, &gets[index].into).await?)
                }
                Elements::Puts(puts) => self.source(lane, connected, &puts[index]).await?,
            });
        }
        let operation = match elements {
            Elements::Gets(_) => Operation::Retrieve,
            Elements::Puts(_) => Operation::Store,
        };
        let mut pending = lane.begin(tries.until).await.map_err(stop)?;
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
                        let crc = self.sum(&put.from);
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
        written.map_err(too_long)?;
        for index in first..first + count {
            pending.keep(match elements {
                Elements::Gets(gets) => lend(&gets[index].into, Use::Target, tries).await?,
                Elements::Puts(puts) => lend(&puts[index].from, Use::Source, tries).await?,
            });
        }
        pending.send(tries.until).await.map_err(stop)?;
        Ok(Batch {
            pending,
            left: first..first + count,
            crcs,
        })
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
    let transfers = stream::iter(from..elements.len()).map(|index| async move {
        match elements {
            Elements::Gets(gets) => {
                http::get(connected, namespace, &gets[index], None, tries).await
            }
            Elements::Puts(puts) => {
                http::put(connected, namespace, &puts[index], None, tries).await
            }
        }
    });
    let mut transfers = std::pin::pin!(transfers.buffered(HTTP_MAX));
    while let Some(transfer) = transfers.next().await {
        report(transfer)?;
    }
    Ok(())
}
