//! Joining staged values (`docs/rados.md` section 5).
//!
//! The sources are claimed one by one, then the target changes in one operation and says which composition made it; after that the sources
//! go. Whether a composition happened is decided by the target alone. Its object exists until the sources are gone: whoever finds a claim,
//! or a target whose composition still has its object, waits; the keeper finishes or undoes what a dead gateway left. A target that is not
//! there gets a record that has nothing before: once a composition is undone, what was sent for it must not come.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crc_fast::{CrcAlgorithm, checksum_combine};
use forebay_store::limits::VALUE_BYTES_MAX;
use forebay_store::{
    Address, ErrorKind, Meta, Notice, Result, Seal, Source, Space, StoreError, StoreOptions,
    Stored, Usage,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::claims::{Claims, segments, staged};
use crate::core::{Core, Namespace};
use crate::error::{malformed, shown, unread, unwritten};
use crate::heads::{LOOKS, Seen, changing};
use crate::keeper::Task;
use crate::names;
use crate::record::{Layout, Segment, Value};
use crate::strays;
use crate::sys::{Errno, Guard, ReadOp, WriteOp};
use crate::under_way::{Named, Pending, Taken};
use crate::upload::{Content, Put, stored};

/// Staged values that are worked on at once.
pub(crate) const AT_ONCE: usize = 32;
/// The first pause before a source is asked for again that another composition has claimed.
const PAUSE: Duration = Duration::from_millis(1);

/// A composition that was said and is not over. Dropping it lets the keeper finish it, as its target says.
struct Open {
    core: Arc<Core>,
    namespace: Arc<Namespace>,
    target: Named,
    number: u128,
    /// What the journal says besides of stripes that go with it.
    strays: Vec<Vec<u8>>,
    over: bool,
}

impl Open {
    fn begin(core: &Arc<Core>, namespace: &Arc<Namespace>, target: &Named) -> Open {
        Open {
            core: core.clone(),
            namespace: namespace.clone(),
            target: target.clone(),
            number: core.number(),
            strays: Vec::new(),
            over: false,
        }
    }

    /// Nobody has anything of it any more, and the index knows what became of it.
    async fn end(mut self) -> Result<()> {
        self.core
            .end_composition(&self.namespace, &self.target, self.number)
            .await?;
        // What has become of them is known, and said.
        let strays = std::mem::take(&mut self.strays);
        self.namespace.journal.later(Vec::new(), strays);
        self.over = true;
        Ok(())
    }

    /// It did not happen: everything goes back.
    async fn take_back(self) {
        let undone = self.core.undo(&self.namespace, &self.target, self.number);
        match undone.await {
            Ok(()) => self.end().await.unwrap_or_else(left),
            Err(error) => left(error),
        }
    }
}

/// The keeper goes on with it.
fn left(error: StoreError) {
    tracing::warn!(%error, "a composition is not over yet");
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.over {
            let (namespace, target) = (self.namespace.clone(), self.target.clone());
            self.core.task(Task::Finish(namespace, target, self.number));
        }
    }
}

impl Core {
    /// See [`forebay_store::Store::compose`]. It goes on when nobody waits for it any more.
    pub async fn compose(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        target: Address<'_>,
        sources: &[Source<'_>],
        consumed: &[&[u8]],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        let named = Named {
            space: Space::Objects,
            key: target.key.to_vec(),
        };
        let sources = sources.iter();
        let sources = sources.map(|source| (source.key.to_vec(), source.seen.cloned()));
        let sources: Vec<_> = sources.collect();
        let consumed: Vec<_> = consumed.iter().map(|key| key.to_vec()).collect();
        let (core, namespace) = (self.clone(), namespace.clone());
        let composing = tokio::spawn(async move {
            let key = named.key.clone().into();
            let joined = core.join_staged(&namespace, named, &sources, &consumed, options, seal);
            let joined = joined.await;
            // Who asked may have gone, and then nobody here knows of it.
            core.notices.tell(Notice::Changed {
                namespace: namespace.info().name.clone(),
                key,
            });
            joined
        });
        composing.await.unwrap_or_else(|error| {
            let error = StoreError::new(ErrorKind::OutcomeUnknown, error.to_string());
            Err(error)
        })
    }

    async fn join_staged(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        named: Named,
        sources: &[(Vec<u8>, Option<Meta>)],
        consumed: &[Vec<u8>],
        options: StoreOptions,
        seal: Seal,
    ) -> Result<Stored> {
        let mut pause = PAUSE;
        for _ in 0..LOOKS {
            let seen = self.look(namespace, &named).await?;
            let current = seen
                .head
                .as_deref()
                .and_then(|head| head.current(self.now()));
            if !options.condition.holds(current.map(|value| &value.etag)) {
                return Err(crate::error::condition_failed());
            }
            let taken = self.sources(namespace, sources, consumed).await?;
            for key in consumed {
                there(&taken, key, self.now())?;
            }
            let content = joined(&taken, sources, self.now())?;
            if options.size.is_some_and(|size| size != content.size) {
                return Err(StoreError::new(
                    ErrorKind::Invalid,
                    "the sources do not have the declared length together",
                ));
            }
            let mut open = Open::begin(self, namespace, &named);
            let number = open.number;
            let life = self.pulse.life();
            let said = self.say(namespace, &named, number, &taken, &content);
            open.strays = said.await?;
            let claimed = match self
                .save_and_claim(namespace, number, &taken, &content)
                .await
            {
                Ok(Claims::All(claimed)) => claimed,
                Ok(Claims::Again) => {
                    open.end().await?;
                    tokio::time::sleep(pause.min(Duration::from_millis(64))).await;
                    pause *= 2;
                    continue;
                }
                Err(error) => {
                    open.take_back().await;
                    return Err(error);
                }
            };
            let freed = claimed.iter().map(|(_, seen)| held(seen));
            let freed = freed.fold(Usage::default(), Usage::plus);
            let put = Put {
                core: self,
                namespace,
                named: &named,
                content,
                seal: seal.clone(),
                condition: options.condition,
                intents: Vec::new(),
                life: Some(life),
                room: None,
                copy: None,
                freed,
                composition: Some(number),
            };
            let changed = self.change(namespace, &named, false, put).await;
            return match changed {
                Ok((replaced, after)) => {
                    // It has happened, whatever is still to be cleared away.
                    let taken = self.take_away(namespace, number, &claimed, &after);
                    match taken.await {
                        Ok(()) => open.end().await.unwrap_or_else(left),
                        Err(error) => left(error),
                    }
                    stored(&after, replaced)
                }
                // Whether it happened is found out by the keeper.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => Err(error),
                Err(error) => {
                    open.take_back().await;
                    Err(error)
                }
            };
        }
        Err(changing(&named.key))
    }

    /// Makes sure that nobody removes what is to be joined: neither its stripes nor, in its stead, what refers to them.
    async fn save_and_claim(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        number: u128,
        taken: &BTreeMap<Vec<u8>, Seen>,
        content: &Content,
    ) -> Result<Claims> {
        let saved = match &content.layout {
            Layout::Striped(segments) => self.save(namespace, segments).await?,
            Layout::Inline(_) | Layout::Away(_) => true,
        };
        match saved {
            true => self.claim(namespace, number, taken).await,
            false => Ok(Claims::Again),
        }
    }

    /// What a composition takes, as long as it is not over.
    pub async fn taken_by(
        &self,
        namespace: &Namespace,
        number: u128,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let mut taken = Vec::new();
        let mut offset = 0;
        loop {
            let buf = self.one_more(forebay_mem::BLOCK_MAX_BYTES).await;
            let mut op = ReadOp::new(&namespace.index);
            op.read(offset, buf);
            let object = names::composition(number);
            let read = match self.access.read(&namespace.index, &object, op, 0).await {
                Err(Errno(libc::ENOENT)) => return Ok(None),
                Err(errno) => return Err(unread(errno, "a composition")),
                Ok(read) => read,
            };
            let Some(buf) = read.data.first().filter(|buf| !buf.is_empty()) else {
                break;
            };
            taken.extend_from_slice(buf);
            offset += buf.len() as u64;
            if buf.room() > 0 {
                break;
            }
        }
        let taken = Taken::decode(&taken).map_err(|_| malformed("a composition"))?;
        Ok(Some(taken.keys))
    }

    /// Finishes or undoes a composition that nobody works on any more, as its target says.
    pub async fn finish_composition(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        target: &Named,
        number: u128,
    ) -> Result<()> {
        let Some(keys) = self.taken_by(namespace, number).await? else {
            return Ok(());
        };
        self.fence(namespace, target).await?;
        let seen = self.look_raw(namespace, target).await?;
        let made = |seen: &Seen| {
            let head = seen.head.as_ref();
            head.is_some_and(|head| head.composition == Some(number))
        };
        let Some(after) = seen.filter(made) else {
            return self.undo(namespace, target, number).await;
        };
        let keys: Vec<Named> = keys.into_iter().map(staged).collect();
        let mut claimed = Vec::new();
        for named in &keys {
            let seen = self.look_raw(namespace, named).await?;
            match seen {
                Some(seen) if seen.claim == Some(number) => claimed.push((named.clone(), seen)),
                // The key is gone, but its entry may not know.
                _ => self.find_out(namespace, named.clone()),
            }
        }
        self.take_away(namespace, number, &claimed, &after).await?;
        self.settle_those(namespace, &keys).await?;
        self.unsay(namespace, number).await
    }

    /// The composition has no object any more once this returns, and then no entry in the journal: as long as it has one, whoever sweeps
    /// finds the composition and its target.
    pub async fn end_composition(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        target: &Named,
        number: u128,
    ) -> Result<()> {
        self.unsay(namespace, number).await?;
        let target = std::slice::from_ref(target);
        self.settle_those(namespace, target).await?;
        namespace
            .journal
            .later(Vec::new(), [names::pending(number)]);
        // A removal alone waits for company in the journal; the keeper writes it.
        self.enter_soon(namespace);
        Ok(())
    }

    /// Looks at what is to be joined and at what goes with it.
    async fn sources(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        sources: &[(Vec<u8>, Option<Meta>)],
        consumed: &[Vec<u8>],
    ) -> Result<BTreeMap<Vec<u8>, Seen>> {
        let keys = sources.iter().map(|(key, _)| key).chain(consumed).cloned();
        let keys: std::collections::BTreeSet<Vec<u8>> = keys.collect();
        let looks = keys.into_iter().map(|key| async move {
            let named = staged(key);
            let seen = self.look(namespace, &named).await?;
            Ok::<_, StoreError>((named.key, seen))
        });
        stream::iter(looks)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Says that there is a composition, for whoever has to finish it; that these values are no longer only under way, because from now on
    /// they may belong to another key than the journal thinks; and what will be taken. Stripes of what is taken and not joined are strays
    /// until it is over, because who dies among its removals can say no more of them: their names in the journal.
    async fn say(
        &self,
        namespace: &Namespace,
        target: &Named,
        number: u128,
        taken: &BTreeMap<Vec<u8>, Seen>,
        content: &Content,
    ) -> Result<Vec<Vec<u8>>> {
        let mut let_go: HashSet<Segment> = taken.values().flat_map(segments).copied().collect();
        let mut intents = Vec::new();
        if let Layout::Striped(joined) = &content.layout {
            intents.extend(joined.iter().map(|segment| names::intent(segment.id)));
            joined.iter().for_each(|segment| {
                let_go.remove(segment);
            });
        }
        let let_go: Vec<Segment> = let_go.into_iter().collect();
        let pending = Pending {
            named: target.clone(),
            composes: true,
            freed: Vec::new(),
        };
        let mut entries: Vec<_> = strays::lines(self.grace_from_now(), &let_go).collect();
        let strays = entries.iter().map(|(name, _)| name.clone()).collect();
        entries.push((names::pending(number), pending.encode()));
        let said = namespace.journal.exchange(intents, entries);
        let said = self.access.in_time(said).await;
        said.map_err(|errno| self.not_entered(namespace, errno))?;
        let there = taken.iter().filter(|(_, seen)| seen.head.is_some());
        let keys = there.map(|(key, _)| key.clone()).collect();
        let encoded = Taken { keys }.encode();
        let mut op = WriteOp::new(&namespace.index).guard(Guard::Absent);
        op.write_full(&encoded);
        let object = names::composition(number);
        let said = self
            .access
            .write(&namespace.index, &object, op, None, encoded.len())
            .await;
        said.map(|_| strays)
            .map_err(|errno| unread(errno, "the composition"))
    }

    /// The composition is over.
    pub async fn unsay(&self, namespace: &Namespace, number: u128) -> Result<()> {
        let mut op = WriteOp::new(&namespace.index);
        op.remove();
        let object = names::composition(number);
        match self
            .access
            .write(&namespace.index, &object, op, None, 0)
            .await
        {
            Ok(_) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(unwritten(errno, "the composition")),
        }
    }
}

fn held(seen: &Seen) -> Usage {
    let head = seen.head.as_ref();
    head.map(|head| head.usage).unwrap_or_default()
}

/// What is under a staged key.
fn there<'t>(taken: &'t BTreeMap<Vec<u8>, Seen>, key: &[u8], now: u64) -> Result<&'t Value> {
    let head = taken.get(key).and_then(|seen| seen.head.as_deref());
    head.and_then(|head| head.current(now))
        .ok_or_else(Source::missing)
}

/// The joined value: its bytes stay where they are.
fn joined(
    taken: &BTreeMap<Vec<u8>, Seen>,
    sources: &[(Vec<u8>, Option<Meta>)],
    now: u64,
) -> Result<Content> {
    let mut content = Content {
        size: 0,
        crc64nvme: 0,
        layout: Layout::Striped(Vec::new()),
        bufs: Vec::new(),
    };
    let mut segments: Vec<Segment> = Vec::new();
    for (key, seen) in sources {
        let part = there(taken, key, now)?;
        let seen = seen.as_ref();
        Source { key, seen }.check(&part.meta())?;
        // Another hand's: what has no stripes has nothing that could be taken.
        if part.size > 0 && part.segments().is_empty() {
            return Err(malformed(&shown(key)));
        }
        let crc64nvme = checksum_combine(
            CrcAlgorithm::Crc64Nvme,
            content.crc64nvme,
            part.crc64nvme,
            part.size,
        );
        content.crc64nvme = crc64nvme;
        content.size += part.size;
        segments.extend(part.segments());
    }
    if content.size > VALUE_BYTES_MAX {
        return Err(StoreError::new(
            ErrorKind::TooLarge,
            "the values together are larger than a value may be",
        ));
    }
    content.layout = Layout::Striped(segments);
    Ok(content)
}
