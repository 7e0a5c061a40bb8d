//! Stripes of namespaces that were deleted, with values under way: who deletes one remembers them.
//!
//! They are lines of an object of their own, which the registry names: every gateway reads the registry again and again, and of stripes there
//! may be more than one operation writes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use forebay_store::Result;
use futures_util::{StreamExt, stream};

use crate::codec::Malformed;
use crate::core::{Core, Namespace};
use crate::error::{Parts, unread, unwritten};
use crate::names::{self, NAMESPACES};
use crate::record::{Segment, begin, writer};
use crate::sys::{Errno, Guard, Place, ReadOp, WriteOp};

/// Their section of the registry.
pub(crate) const ORPHANS: &[u8] = b"o";

/// Lines that are written or read at once.
const LINES: usize = 1024;
/// Values whose stripes are removed at once.
const AT_ONCE: usize = 16;

/// Stripes of a namespace that is being deleted, as the registry itself once named them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub namespace: String,
    pub segment: Segment,
    /// The namespace's number; records from before it was kept have none.
    pub id: Option<u32>,
}

impl Orphan {
    #[cfg(any(test, fuzzing))]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        writer.string(self.namespace.as_bytes());
        Segment::write(&mut writer, &self.segment);
        if let Some(id) = self.id {
            writer.u32(id);
        }
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> std::result::Result<Orphan, Malformed> {
        let mut reader = begin(encoded)?;
        let (namespace, segment) = (reader.text()?, Segment::read(&mut reader)?);
        let id = match reader.end() {
            Ok(()) => None,
            Err(Malformed) => Some(reader.u32()?),
        };
        reader.end()?;
        Ok(Orphan {
            namespace,
            segment,
            id,
        })
    }
}

/// A namespace that is being deleted, and has orphans.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Bereft {
    pub namespace: String,
    pub id: u32,
}

impl Bereft {
    /// What the registry has of it.
    fn key(&self) -> Vec<u8> {
        [ORPHANS, self.id.to_string().as_bytes()].concat()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        writer.string(self.namespace.as_bytes());
        writer.u32(self.id);
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> std::result::Result<Bereft, Malformed> {
        let mut reader = begin(encoded)?;
        let (namespace, id) = (reader.text()?, reader.u32()?);
        reader.end()?;
        Ok(Bereft { namespace, id })
    }
}

/// An orphan's line: those of one writer follow each other.
fn line(id: u128) -> Vec<u8> {
    format!("{id:032x}").into_bytes()
}

fn encode_line(segment: &Segment) -> Vec<u8> {
    let mut writer = writer();
    Segment::write(&mut writer, segment);
    writer.0
}

fn decode_line(encoded: &[u8]) -> std::result::Result<Segment, Malformed> {
    let mut reader = begin(encoded)?;
    let segment = Segment::read(&mut reader)?;
    reader.end()?;
    Ok(segment)
}

impl Core {
    /// Remembers what is under way in a namespace that is about to be deleted.
    pub async fn remember_orphans(&self, namespace: &Namespace, left: &[Segment]) -> Result<()> {
        if left.is_empty() {
            return Ok(());
        }
        let bereft = Bereft {
            namespace: namespace.info().name.clone(),
            id: namespace.id,
        };
        self.register_bereft(&bereft).await?;
        let object = names::orphans(namespace.id);
        for some in left.chunks(LINES) {
            let lines = some.iter();
            let lines = lines.map(|segment| (line(segment.id), encode_line(segment)));
            let lines: Vec<_> = lines.collect();
            let mut op = WriteOp::new(&self.registry);
            op.create();
            op.omap_set(lines.iter().map(|(name, value)| (&name[..], &value[..])));
            let written = self.access.write(&self.registry, &object, op, None, 0);
            let written = written.await;
            written.map_err(|errno| unwritten(errno, "orphans"))?;
        }
        // Again: another gateway that deletes the namespace, too, may have been through, and somebody may have forgotten what it left.
        self.register_bereft(&bereft).await
    }

    async fn register_bereft(&self, bereft: &Bereft) -> Result<()> {
        let mut op = WriteOp::new(&self.registry).guard(Guard::Exists);
        op.omap_set([(&bereft.key()[..], &bereft.encode()[..])]);
        self.write_registry(op).await
    }

    /// Removes stripes of namespaces that are gone, whose writers write no more.
    pub async fn clear_orphans(self: &Arc<Self>) -> Result<()> {
        let mut parts = Parts::default();
        let (mut orphans, mut bereft) = (Vec::new(), Vec::new());
        let each = |name: Bytes, value: Bytes| match Bereft::decode(&value) {
            Ok(found) => bereft.push(found),
            Err(_) => orphans.extend(Orphan::decode(&value).map(|orphan| (name, orphan))),
        };
        self.keys(&self.registry, NAMESPACES, ORPHANS, each).await?;
        let orphans = parts.done("orphans", self.orphaned(orphans).await);
        let orphans = orphans.unwrap_or_default();
        let bereft = parts.done("orphans", self.bereft(bereft).await);
        let bereft = bereft.unwrap_or_default();
        let writers = orphans
            .iter()
            .map(|(_, orphan)| names::gateway_of(orphan.segment.id))
            .chain(bereft.iter().flat_map(|(_, writers)| writers.clone()));
        let dead = self.dead_writers(&writers.collect(), &mut parts).await?;
        for (name, orphan) in orphans {
            let by = names::gateway_of(orphan.segment.id);
            // An upload of this gateway's own may still be writing them: it finds out when it commits, and until then this has to be known.
            let left = by == self.gateway && !self.held.has(orphan.segment.id);
            if left || dead.contains(&by) {
                parts.done("orphans", self.remove_orphan(&name, &orphan).await);
            }
        }
        for (of, writers) in bereft {
            if writers.is_empty() {
                parts.done("orphans", self.forget_bereft(&of).await);
            }
            for writer in writers {
                if writer == self.gateway || dead.contains(&writer) {
                    parts.done("orphans", self.remove_orphans_of(&of, writer).await);
                }
            }
        }
        parts.end()
    }

    /// Those that nobody reads and whose namespace is gone. The others' records stay: whoever deletes the namespace in the end will have
    /// remembered no other.
    pub async fn orphaned(&self, found: Vec<(Bytes, Orphan)>) -> Result<Vec<(Bytes, Orphan)>> {
        let mut gone = HashMap::new();
        let mut orphans = Vec::new();
        for (name, orphan) in found {
            let of = (orphan.namespace.clone(), orphan.id);
            let is_gone = match gone.get(&of) {
                Some(known) => *known,
                None => self.is_orphaned(&orphan).await?,
            };
            gone.insert(of, is_gone);
            if is_gone && !self.pins.is_pinned(orphan.segment.id) {
                orphans.push((name, orphan));
            }
        }
        Ok(orphans)
    }

    /// Removes such stripes, and forgets them.
    pub async fn remove_orphan(&self, name: &[u8], orphan: &Orphan) -> Result<()> {
        let place = self.stripes_of(&orphan.namespace)?;
        self.remove_stripes(&place, orphan.segment).await?;
        self.forget_registered(name).await
    }

    fn stripes_of(&self, namespace: &str) -> Result<Arc<Place>> {
        let spaces = names::Spaces::new(&self.config.base, namespace);
        let place = self.access.place(&spaces.stripes);
        place.map_err(|errno| unread(errno, "orphans"))
    }

    /// Whether the namespace that stripes belonged to was deleted. Its deletion may also have failed after it had remembered them: then
    /// they may by now be a value's. Nothing of the namespace comes after its journal is gone.
    async fn is_orphaned(&self, orphan: &Orphan) -> Result<bool> {
        match orphan.id {
            None => Ok(!self.is_registered(&orphan.namespace).await?),
            Some(id) => self.is_gone(&orphan.namespace, id).await,
        }
    }

    async fn is_gone(&self, namespace: &str, id: u32) -> Result<bool> {
        let spaces = names::Spaces::new(&self.config.base, namespace);
        let index = self.access.place(&spaces.index);
        let index = index.map_err(|errno| unread(errno, "orphans"))?;
        Ok(!self.has_journal(&index, &names::journal(id)).await?)
    }

    /// Of those namespaces the ones that are gone, and who wrote their orphans.
    pub async fn bereft(&self, found: Vec<Bereft>) -> Result<Vec<(Bereft, BTreeSet<u64>)>> {
        let mut gone = Vec::new();
        for bereft in found {
            if self.is_gone(&bereft.namespace, bereft.id).await? {
                let writers = self.writers(&bereft).await?;
                gone.push((bereft, writers));
            }
        }
        Ok(gone)
    }

    /// Who wrote a namespace's orphans: a line of each is read.
    async fn writers(&self, bereft: &Bereft) -> Result<BTreeSet<u64>> {
        let mut writers = BTreeSet::new();
        let mut after = Vec::new();
        loop {
            let (lines, _) = self.lines(bereft, &after, b"", 1).await?;
            let Some((name, _)) = lines.first() else {
                return Ok(writers);
            };
            after = name.to_vec();
            let writer = name
                .get(..16)
                .and_then(|name| std::str::from_utf8(name).ok());
            if let Some(writer) = writer.and_then(|writer| u64::from_str_radix(writer, 16).ok()) {
                writers.insert(writer);
                // Behind all of its own.
                after = format!("{writer:016x}g").into_bytes();
            }
        }
    }

    /// Some lines of a namespace's orphans, and whether there are more; none when the object is gone.
    async fn lines(
        &self,
        bereft: &Bereft,
        after: &[u8],
        prefix: &[u8],
        most: usize,
    ) -> Result<(Vec<(Bytes, Bytes)>, bool)> {
        let object = names::orphans(bereft.id);
        let mut op = ReadOp::new(&self.registry);
        op.omap(after, prefix, most as u64);
        match self.access.read(&self.registry, &object, op, 0).await {
            Err(Errno(libc::ENOENT)) => Ok((Vec::new(), false)),
            Err(errno) => Err(unread(errno, "orphans")),
            Ok(read) => Ok(read.omap.into_iter().next().unwrap_or_default()),
        }
    }

    /// Removes the orphans that somebody wrote who writes no more, or this gateway did, and forgets them. The last one that is forgotten takes the
    /// object with it.
    pub async fn remove_orphans_of(&self, bereft: &Bereft, writer: u64) -> Result<()> {
        let place = self.stripes_of(&bereft.namespace)?;
        let prefix = format!("{writer:016x}").into_bytes();
        let mut parts = Parts::default();
        let mut after = Vec::new();
        loop {
            let (lines, more) = self.lines(bereft, &after, &prefix, LINES).await?;
            let Some((last, _)) = lines.last() else {
                break;
            };
            after = last.to_vec();
            let place = &place;
            let removals = lines.into_iter().map(|(name, value)| async move {
                let removed = self.remove_line(place, &value).await;
                removed.map(|removed| removed.then_some(name))
            });
            let mut removals = stream::iter(removals).buffer_unordered(AT_ONCE);
            let mut gone = Vec::new();
            while let Some(removed) = removals.next().await {
                gone.extend(parts.done("stripes", removed).flatten());
            }
            self.forget_lines(bereft, &gone).await?;
            if !more {
                break;
            }
        }
        parts.end()?;
        let (left, _) = self.lines(bereft, b"", b"", 1).await?;
        match left.is_empty() {
            true => self.forget_bereft(bereft).await,
            false => Ok(()),
        }
    }

    /// Removes the stripes that a line names; false as long as they have to stay.
    async fn remove_line(&self, place: &Arc<Place>, line: &[u8]) -> Result<bool> {
        let Ok(segment) = decode_line(line) else {
            return Ok(true);
        };
        // An upload of this gateway's own may still be writing them: it finds out when it commits, and until then this has to be known.
        if self.held.has(segment.id) || self.pins.is_pinned(segment.id) {
            return Ok(false);
        }
        self.remove_stripes(place, segment).await?;
        Ok(true)
    }

    async fn forget_lines(&self, bereft: &Bereft, names: &[Bytes]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let mut op = WriteOp::new(&self.registry).guard(Guard::Exists);
        op.omap_remove(names.iter().map(|name| &name[..]));
        self.change_orphans(bereft, op).await
    }

    /// Nobody adds to what is left of a namespace that is gone. The object goes first: without the name nobody would find it.
    pub async fn forget_bereft(&self, bereft: &Bereft) -> Result<()> {
        let mut op = WriteOp::new(&self.registry);
        op.remove();
        self.change_orphans(bereft, op).await?;
        self.forget_registered(&bereft.key()).await
    }

    async fn change_orphans(&self, bereft: &Bereft, op: WriteOp) -> Result<()> {
        let object = names::orphans(bereft.id);
        match self
            .access
            .write(&self.registry, &object, op, None, 0)
            .await
        {
            Ok(_) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(unwritten(errno, "orphans")),
        }
    }
}
