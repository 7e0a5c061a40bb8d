//! The sweep: copies to which nothing refers, whatever crash left them, are marked and later deleted.
//!
//! One look does not prove that a copy is nobody's: another process may be about to give it to its value, or read it still. So what is found
//! is marked by an object beside it, and goes when a sweep finds it so once more and the mark is older than the grace. The marks are the
//! bucket's own, so that they outlive the process, and every process on the same store goes by them.

use std::collections::{HashMap, HashSet};
use std::future::ready;

use forebay_store::{Address, Away, ErrorKind, NamespaceInfo, Result, Store};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::bloom::Bloom;
use super::bucket::Found;
use super::counters::add;
use super::mover::Mover;
use super::pass::DELETES_MAX;

/// Copies that are marked at the same time: a sweep remembers when each was. Further ones are marked when those are gone.
const MARKS_MAX: usize = 1 << 18;

/// What a sweep came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Copies deleted: nothing had referred to them for the grace.
    pub deleted: u64,
    /// Copies to which nothing refers, and which a later sweep deletes.
    pub waiting: u64,
}

/// What is in the bucket.
struct Listed {
    /// Namespaces that have copies there.
    namespaces: Bloom,
    copies: u64,
    /// When copies were marked.
    marks: HashMap<Away, u64>,
}

/// What becomes of a copy and its mark.
enum Dealt {
    Unmark,
    Mark,
    Delete,
}

/// To which copies the store refers: a fixed number of bits, however many there are. One that is mistaken for another is left to the next
/// sweep.
struct Referred {
    copies: Bloom,
    /// Namespaces of which something cannot be read: it may refer to any copy.
    unread: HashSet<u32>,
}

impl Referred {
    fn may_have(&self, away: Away) -> bool {
        self.unread.contains(&namespace_of(away)) || self.copies.may_have(away)
    }
}

/// The number of the namespace of a copy.
fn namespace_of(away: Away) -> u32 {
    (away.0 >> 96) as u32
}

impl<S: Store> Mover<S> {
    /// Deletes copies to which nothing refers and nothing did when an earlier sweep marked them; marks those that it finds anew.
    ///
    /// # Errors
    /// Of the store or the bucket.
    pub async fn sweep(&self) -> Result<Swept> {
        let began = self.now();
        let old = began.saturating_sub(self.config.grace_ms);
        let mut listed = self.list_copies().await?;
        let room = MARKS_MAX - listed.marks.len();
        // A namespace that is not heard of yet, or cannot be read, would be one whose copies are nobody's.
        self.hot.settle().await?;
        let referred = self.referred(&listed).await?;
        // Where changes are answered before they are durable, a crash may bring back a value whose end was seen.
        self.hot.settle().await?;
        self.pins.doom(self.hot.forgotten());
        let mut swept = Swept::default();
        let mut fresh = 0;
        let mut dealing = |found| {
            let Found::Copy { away, modified } = found else {
                return None;
            };
            let marked = listed.marks.remove(&away);
            // What is younger than the look at the store was not there to be referred to; of some this process knows more.
            let spared = modified > began
                || referred.may_have(away)
                || self.is_moving(away)
                || self.pins.has(away);
            match (spared, marked) {
                (true, None) => None,
                (true, Some(_)) => Some((away, Dealt::Unmark)),
                (false, Some(at)) if at <= old => {
                    swept.deleted += 1;
                    Some((away, Dealt::Delete))
                }
                (false, marked) => {
                    swept.waiting += 1;
                    let is_new = marked.is_none() && fresh < room;
                    is_new.then(|| {
                        fresh += 1;
                        (away, Dealt::Mark)
                    })
                }
            }
        };
        let dealt = self
            .bucket
            .list()
            .try_filter_map(|found| ready(Ok(dealing(found))));
        let deal = async |(away, dealt)| self.deal(away, dealt).await;
        dealt.try_for_each_concurrent(DELETES_MAX, deal).await?;
        // The copies of these went otherwise.
        let left = stream::iter(listed.marks.into_keys()).map(Ok);
        let unmark = async |away| self.bucket.unmark(away).await;
        left.try_for_each_concurrent(DELETES_MAX, unmark).await?;
        Ok(swept)
    }

    async fn deal(&self, away: Away, dealt: Dealt) -> Result<()> {
        match dealt {
            Dealt::Unmark => self.bucket.unmark(away).await,
            Dealt::Mark => self.bucket.mark(away).await,
            Dealt::Delete => {
                self.bucket.delete(away).await?;
                add(&self.counters.swept, 1);
                self.bucket.unmark(away).await
            }
        }
    }

    async fn list_copies(&self) -> Result<Listed> {
        let mut listed = Listed {
            namespaces: Bloom::for_members(0),
            copies: 0,
            marks: HashMap::new(),
        };
        let mut list = self.bucket.list();
        while let Some(found) = list.try_next().await? {
            listed.namespaces.insert(namespace_of(found.away()));
            match found {
                Found::Copy { .. } => listed.copies += 1,
                Found::Mark { away, modified } if listed.marks.len() < MARKS_MAX => {
                    listed.marks.insert(away, modified);
                }
                Found::Mark { .. } => {}
            }
        }
        Ok(listed)
    }

    async fn referred(&self, listed: &Listed) -> Result<Referred> {
        let mut referred = Referred {
            copies: Bloom::for_members(listed.copies),
            unread: HashSet::new(),
        };
        for info in self.hot.namespaces() {
            if !listed.namespaces.may_have(info.id) {
                continue;
            }
            match self.note_referred(&info, &mut referred.copies).await {
                Ok(true) => {}
                Ok(false) => drop(referred.unread.insert(info.id)),
                // All of it was deleted meanwhile.
                Err(error) if error.kind() == ErrorKind::NoSuchNamespace => {}
                Err(error) => return Err(error),
            }
        }
        Ok(referred)
    }

    /// Notes to what values of a namespace refer; `false` where something cannot be read.
    async fn note_referred(&self, info: &NamespaceInfo, copies: &mut Bloom) -> Result<bool> {
        let mut last = None;
        loop {
            let page = self.page(&info.name, b"", &last).await?;
            if page.passed_over {
                return Ok(false);
            }
            for (key, meta) in page.values {
                let address = Address::object(&info.name, &key);
                match self.hot.away(address, Some(meta.version)).await {
                    Ok(Some(away)) => copies.insert(away),
                    Ok(None) => {}
                    Err(error) if error.kind().is_overtaken() => {}
                    Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            last = page.last;
            if last.is_none() {
                return Ok(true);
            }
        }
    }
}
