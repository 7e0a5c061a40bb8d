//! Comparing everything that is kept of a namespace: objects, index, stripes. Lists the pool; for tests, and for whoever doubts.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use forebay_store::{Result, Space};

use crate::core::{Core, Namespace};
use crate::error::{is_unreadable, shown};
use crate::heads::{LOOKS, Seen, changing};
use crate::names;
use crate::pool::names_in;
use crate::record::{Entry, Kept, Segment, Value};
use crate::under_way::{Garbage, Intent, Named};

/// What was compared, and what does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// Keys that have an object of ours.
    pub keys: usize,
    /// Keys whose entry in the index is missing or says something else, in words.
    pub unlisted: Vec<String>,
    /// Keys in the index that have no object, in words.
    pub phantoms: Vec<String>,
    /// Stripes that nothing refers to, and that are not known to be removed.
    pub orphans: Vec<String>,
    /// Stripes that are referred to but are not there.
    pub missing: Vec<String>,
    /// Keys for which values are said to be under way that nobody has, in words.
    pub left: Vec<String>,
    /// Keys whose record or kept versions cannot be read, in words.
    pub unreadable: Vec<String>,
    /// Whether the counters add up to what the entries say.
    pub counted: bool,
}

impl Audit {
    /// Whether everything fits.
    pub fn is_clean(&self) -> bool {
        let Audit {
            keys: _,
            unlisted,
            phantoms,
            orphans,
            missing,
            left,
            unreadable,
            counted,
        } = self;
        [unlisted, phantoms, orphans, missing, left, unreadable]
            .iter()
            .all(|list| list.is_empty())
            && *counted
    }
}

impl Core {
    /// Compares. Meant for a namespace that nobody changes meanwhile: what is under way is reported as not fitting.
    pub async fn audit(self: &Arc<Self>, namespace: &Arc<Namespace>) -> Result<Audit> {
        let mut audit = Audit::default();
        let mut heads: BTreeMap<Named, Seen> = BTreeMap::new();
        let mut referenced: HashSet<Vec<u8>> = HashSet::new();
        let mut unreadable = HashSet::new();
        let keys = self.all_keys(namespace, &mut audit.unreadable).await?;
        for named in keys {
            let looked = match self.look_at_all(namespace, &named).await {
                Err(error) if is_unreadable(&error) => {
                    audit.unreadable.push(shown(&named.key));
                    unreadable.insert(named);
                    continue;
                }
                looked => looked?,
            };
            let Some((seen, stripes)) = looked else {
                continue;
            };
            referenced.extend(stripes);
            heads.insert(named, seen);
        }
        audit.keys = heads.len();
        let mut sum = crate::under_way::Sum::default();
        let mut counted = crate::under_way::Sum::default();
        let mut entries = BTreeMap::new();
        for shard in &namespace.shards {
            let each = |name: Bytes, value: Bytes| {
                if name.starts_with(names::COUNTERS) {
                    counted =
                        counted.plus(crate::under_way::Sum::decode(&value).unwrap_or_default());
                }
                let Some((space, key)) = names::entry_key(&name) else {
                    return;
                };
                if let Ok(entry) = Entry::decode(&value) {
                    let none = forebay_store::Usage::default();
                    sum = sum.plus(crate::under_way::Sum::between(none, entry.usage()));
                    if entry.known.is_some() {
                        entries.insert(Named { space, key }, entry);
                    }
                }
            };
            self.keys(&namespace.index, &shard.object, b"", each)
                .await?;
        }
        audit.counted = sum == counted;
        for (named, seen) in &heads {
            let right = Entry::of(seen.version, seen.head.as_deref());
            // A claim that was taken back has changed the version alone.
            let fits = entries
                .remove(named)
                .is_some_and(|entry| entry.known == right.known);
            if !fits {
                audit.unlisted.push(shown(&named.key));
            }
        }
        let phantoms = entries.into_keys();
        let phantoms = phantoms.filter(|named| !unreadable.contains(named));
        audit.phantoms = phantoms.map(|named| shown(&named.key)).collect();
        let mut known = referenced.clone();
        let each = |name: Bytes, value: Bytes| {
            let segment = match name.first() {
                Some(b'i') => Intent::decode(&value).map(|intent| intent.segment),
                Some(b'g' | b's') => Garbage::decode(&value).map(|garbage| garbage.segment),
                _ => return,
            };
            if let Ok(segment) = segment {
                known.extend(stripes(&segment));
            }
        };
        let journal = namespace.journal.object();
        self.keys(&namespace.index, journal, b"", each).await?;
        let there: HashSet<Vec<u8>> = names_in(&namespace.stripes).await?.into_iter().collect();
        let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
        audit.orphans = there.difference(&known).map(text).collect();
        let left = self.left_intents(namespace).await?;
        let left = left.iter().map(|said| shown(&said.intent.named.key));
        audit.left = left.collect();
        audit.missing = referenced.difference(&there).map(text).collect();
        Ok(audit)
    }

    /// A key's object and all stripes that it refers to, if it is ours and has something.
    async fn look_at_all(
        &self,
        namespace: &Namespace,
        named: &Named,
    ) -> Result<Option<(Seen, HashSet<Vec<u8>>)>> {
        for _ in 0..LOOKS {
            let seen = self.look_raw(namespace, named).await?;
            let has = |seen: &Seen| seen.head.as_ref().is_some_and(|head| !head.is_empty());
            let Some(seen) = seen.filter(has) else {
                return Ok(None);
            };
            let mut referenced = HashSet::new();
            let current = seen.head.as_ref().and_then(|head| head.current.as_ref());
            let mut look_at =
                |value: &Value| referenced.extend(value.segments().iter().flat_map(stripes));
            current.into_iter().for_each(&mut look_at);
            let each = |kept: Kept| kept.value().into_iter().for_each(&mut look_at);
            let all = self.each_kept(namespace, named, &seen, each).await?;
            if all.is_some() {
                return Ok(Some((seen, referenced)));
            }
        }
        Err(changing(&named.key))
    }

    /// Every key that has an object, whoever wrote it; `unreadable` gets the names of those of which nobody can tell.
    async fn all_keys(
        &self,
        namespace: &Namespace,
        unreadable: &mut Vec<String>,
    ) -> Result<Vec<Named>> {
        let mut keys = Vec::new();
        for key in names_in(namespace.data()).await? {
            let space = Space::Objects;
            keys.push(Named { space, key });
        }
        for (space, place) in [
            (Space::Objects, namespace.named()),
            (Space::Staging, namespace.staging()),
        ] {
            for object in names_in(place).await? {
                match self.key_of(place, &object).await {
                    Err(error) if is_unreadable(&error) => unreadable.push(shown(&object)),
                    key => keys.extend(key?.map(|key| Named { space, key })),
                }
            }
        }
        Ok(keys)
    }
}

fn stripes(segment: &Segment) -> impl Iterator<Item = Vec<u8>> + use<> {
    let Segment { id, .. } = *segment;
    (0..segment.stripes()).map(move |number| names::stripe(id, number))
}
