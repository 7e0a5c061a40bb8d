//! A namespace's journal: changes and values under way, which the index or a record do not know yet. One object for a namespace.
//!
//! Every change of a key is preceded by an entry here, so entries of changes that happen at once are written together: while one write is
//! under way, what arrives waits for the next. Completions of the library drive it: it needs nobody to wait for it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::sys::{Errno, Guard, Place, WriteOp};

/// Writes under way at once. With one, all that is to be entered meanwhile goes with the next.
const WRITES: usize = 1;
/// Removals wait for the next entry to be written, until there are so many.
const IDLE_REMOVALS: usize = 128;
/// About so much that somebody waits for goes with one write, and so much that nobody does. An OSD refuses one that is too long
/// (`osd_max_write_size`, 90 MiB), and would whenever it is tried again.
const WRITE_BYTES: usize = 4 << 20;

pub(crate) struct Journal {
    place: Arc<Place>,
    object: Vec<u8>,
    queue: Mutex<Queue>,
}

/// A key beside the journal's data, and its value.
pub(crate) type Line = (Vec<u8>, Vec<u8>);

/// Told what came of a write.
type Told = oneshot::Sender<Result<(), Errno>>;

/// What is entered and removed by one write. If it is too long for that its lines go first: stripes that a change let go are entered before
/// the change's own entry is removed, which names them too, or with it.
#[derive(Default)]
struct Group {
    lines: Vec<Line>,
    removed: Vec<Vec<u8>>,
    /// Who waits for it.
    told: Option<Told>,
}

#[derive(Default)]
struct Queue {
    /// Entries whose writers wait, and do without them when they are told of an error. They come before what nobody waits for.
    awaited: VecDeque<Group>,
    /// What is tried until it is written, in this order. Nothing is entered anew under a name that is removed here.
    later: VecDeque<Group>,
    writes: usize,
}

#[derive(Default)]
struct Batch {
    awaited: Vec<Group>,
    later: Vec<Group>,
}

impl Group {
    fn bytes(&self) -> usize {
        let lines = self.lines.iter().map(line_bytes);
        lines.chain(self.removed.iter().map(Vec::len)).sum()
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.removed.is_empty() && self.told.is_none()
    }

    /// Takes as much as there is room for, of what is longer.
    fn cut(&mut self, mut room: usize) -> Group {
        let lines = take_front(&mut self.lines, line_bytes, &mut room);
        Group {
            lines,
            removed: take_front(&mut self.removed, Vec::len, &mut room),
            told: None,
        }
    }
}

fn line_bytes((name, value): &Line) -> usize {
    name.len() + value.len()
}

fn take_front<T>(all: &mut Vec<T>, bytes: impl Fn(&T) -> usize, room: &mut usize) -> Vec<T> {
    let is_room = |one: &&T| {
        let is_room = *room > 0;
        *room = room.saturating_sub(bytes(one));
        is_room
    };
    let count = all.iter().take_while(is_room).count();
    all.drain(..count).collect()
}

fn names<'g>(groups: impl IntoIterator<Item = &'g Group>) -> HashSet<&'g [u8]> {
    let removed = groups.into_iter().flat_map(|group| &group.removed);
    removed.map(Vec::as_slice).collect()
}

impl Queue {
    fn is_due(&self) -> bool {
        let waits = |group: &Group| !group.lines.is_empty() || group.told.is_some();
        let removed = self.later.iter().map(|group| group.removed.len());
        !self.awaited.is_empty()
            || self.later.iter().any(waits)
            || removed.sum::<usize>() >= IDLE_REMOVALS
    }

    /// What was not written yet, and is to be removed, need not be.
    fn forget(&mut self, removed: &HashSet<&[u8]>) {
        if removed.is_empty() {
            return;
        }
        for group in self.awaited.iter_mut().chain(&mut self.later) {
            group.lines.retain(|(name, _)| !removed.contains(&name[..]));
        }
    }

    fn add_later(&mut self, groups: Vec<Group>) {
        self.forget(&names(&groups));
        self.later.extend(groups);
    }

    /// Takes what one write enters and removes.
    fn take(&mut self) -> Batch {
        let mut batch = Batch::default();
        let mut bytes = 0;
        while bytes < WRITE_BYTES
            && let Some(group) = self.awaited.pop_front()
        {
            bytes += group.bytes();
            batch.awaited.push(group);
        }
        let mut room = WRITE_BYTES;
        while let Some(group) = self.later.front_mut() {
            let bytes = group.bytes();
            if bytes > room {
                if bytes > WRITE_BYTES {
                    batch.later.push(group.cut(room));
                    self.later.pop_front_if(|group| group.is_empty());
                }
                break;
            }
            room -= bytes;
            batch.later.extend(self.later.pop_front());
        }
        batch
    }

    /// Takes back what a write that failed was to enter and to remove. Who waits for all that is here is told of it, too.
    fn take_back(&mut self, failed: Batch) -> Vec<Told> {
        let told = self.later.iter_mut().filter_map(|group| group.told.take());
        let told = told.collect();
        self.later.retain(|group| !group.is_empty());
        let removed = names(self.awaited.iter().chain(&self.later));
        let entries = failed.awaited.into_iter().map(|group| Group {
            lines: Vec::new(),
            ..group
        });
        let again = entries.chain(failed.later).map(|mut group| {
            group.lines.retain(|(name, _)| !removed.contains(&name[..]));
            group
        });
        let again: Vec<Group> = again.filter(|group| !group.is_empty()).collect();
        for group in again.into_iter().rev() {
            self.later.push_front(group);
        }
        told
    }
}

impl Batch {
    fn groups(&self) -> impl Iterator<Item = &Group> {
        self.awaited.iter().chain(&self.later)
    }

    fn take_told(&mut self) -> Vec<Told> {
        let groups = self.awaited.iter_mut().chain(&mut self.later);
        groups.filter_map(|group| group.told.take()).collect()
    }
}

impl Journal {
    pub fn new(place: Arc<Place>, object: Vec<u8>) -> Arc<Journal> {
        Arc::new(Journal {
            place,
            object,
            queue: Mutex::default(),
        })
    }

    pub fn object(&self) -> &[u8] {
        &self.object
    }

    /// Enters this, and returns when it is durable. `ENOENT`: the namespace is gone.
    pub async fn enter(self: &Arc<Self>, entries: Vec<Line>) -> Result<(), Errno> {
        self.exchange(Vec::new(), entries).await
    }

    /// Enters this and removes that in one step, and returns when it is durable. If it fails only the entries are done without.
    pub async fn exchange(
        self: &Arc<Self>,
        removed: Vec<Vec<u8>>,
        entries: Vec<Line>,
    ) -> Result<(), Errno> {
        let (told, written) = oneshot::channel();
        let group = Group {
            lines: entries,
            removed,
            told: Some(told),
        };
        {
            let mut queue = self.queue.lock();
            queue.forget(&names([&group]));
            queue.awaited.push_back(group);
        }
        self.pump();
        written.await.unwrap_or(Err(Errno(libc::ESHUTDOWN)))
    }

    /// Enters and removes this some time later.
    pub fn later(self: &Arc<Self>, entries: Vec<Line>, removed: impl IntoIterator<Item = Vec<u8>>) {
        self.later_each([(entries, removed.into_iter().collect())]);
    }

    /// The same for several, each of which is entered and removed in one step, or entered first.
    pub fn later_each(
        self: &Arc<Self>,
        groups: impl IntoIterator<Item = (Vec<Line>, Vec<Vec<u8>>)>,
    ) {
        let groups = groups.into_iter().map(|(lines, removed)| Group {
            lines,
            removed,
            told: None,
        });
        let groups = groups.filter(|group| !group.is_empty()).collect();
        self.queue.lock().add_later(groups);
        self.pump();
    }

    /// Writes what waits, now.
    pub async fn flush(self: &Arc<Self>) -> Result<(), Errno> {
        let (told, written) = oneshot::channel();
        self.queue.lock().later.push_back(Group {
            told: Some(told),
            ..Group::default()
        });
        self.pump();
        written.await.unwrap_or(Err(Errno(libc::ESHUTDOWN)))
    }

    /// Whether nothing waits to be written.
    pub fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.awaited.is_empty() && queue.later.is_empty() && queue.writes == 0
    }

    /// Begins the next write, if one may begin.
    fn pump(self: &Arc<Self>) {
        let batch = {
            let mut queue = self.queue.lock();
            if queue.writes >= WRITES || !queue.is_due() {
                return;
            }
            queue.writes += 1;
            queue.take()
        };
        let mut op = WriteOp::new(&self.place).guard(Guard::Exists);
        let removed = batch.groups().flat_map(|group| &group.removed);
        op.omap_remove(removed.map(Vec::as_slice));
        let lines = batch.groups().flat_map(|group| &group.lines);
        op.omap_set(lines.map(|(name, value)| (&name[..], &value[..])));
        let journal = self.clone();
        op.send(&self.place, &self.object, None, move |done| {
            journal.written(batch, done.map(|_| ()));
        });
    }

    fn written(self: Arc<Self>, mut batch: Batch, done: Result<(), Errno>) {
        let mut told = batch.take_told();
        let more = {
            let mut queue = self.queue.lock();
            queue.writes -= 1;
            match done {
                Ok(()) | Err(Errno(libc::ENOENT)) => true,
                // It is tried again with the next entry, not at once: what failed may fail for some time.
                Err(_) => {
                    told.extend(queue.take_back(batch));
                    !queue.awaited.is_empty()
                }
            }
        };
        for told in told {
            let _ = told.send(done);
        }
        if more {
            self.pump();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str) -> Line {
        (name.as_bytes().to_vec(), Vec::new())
    }

    fn group(lines: Vec<Line>, removed: &[&str]) -> Group {
        Group {
            lines,
            removed: removed
                .iter()
                .map(|name| name.as_bytes().to_vec())
                .collect(),
            told: None,
        }
    }

    #[test]
    fn what_nobody_waits_for_outlives_a_failed_write() {
        let failed = Batch {
            awaited: vec![group(vec![line("p2")], &["i2"])],
            later: vec![group(vec![line("g1"), line("g2")], &["p1"])],
        };
        let mut next = Queue::default();
        next.awaited.push_back(group(vec![line("p3")], &[]));
        let (told, _written) = oneshot::channel();
        next.later.push_back(Group {
            told: Some(told),
            ..Group::default()
        });
        // It was written for all that, found and collected.
        next.add_later(vec![group(Vec::new(), &["g2"])]);
        assert_eq!(next.take_back(failed).len(), 1, "who waits for it is told");
        assert_eq!(next.awaited[0].lines, [line("p3")]);
        let later = next.later.iter();
        let later: Vec<_> = later
            .map(|group| (&group.lines[..], &group.removed[..]))
            .collect();
        let expected: [(&[Line], &[Vec<u8>]); 3] = [
            (&[], &[b"i2".to_vec()]),
            (&[line("g1")], &[b"p1".to_vec()]),
            (&[], &[b"g2".to_vec()]),
        ];
        assert_eq!(later, expected, "an entry is its writer's affair");
    }

    #[test]
    fn a_write_takes_no_more_than_an_osd_does() {
        const MIB: usize = 1 << 20;
        let lines = |name: &str, count| {
            let line = |_| (name.as_bytes().to_vec(), vec![0; MIB - 1]);
            (0..count).map(line).collect::<Vec<Line>>()
        };
        let mut queue = Queue::default();
        queue.add_later(vec![
            group(lines("a", 3), &["1"]),
            group(lines("b", 2), &["2"]),
            group(lines("c", 9), &["3"]),
        ]);
        queue.awaited.push_back(group(lines("p", 6), &[]));
        queue.awaited.push_back(group(lines("q", 1), &[]));
        let mut writes = Vec::new();
        while queue.is_due() {
            let batch = queue.take();
            let of = |groups: &[Group]| {
                let names = groups.iter().flat_map(|group| {
                    let lines = group.lines.iter().map(|(name, _)| name);
                    lines.chain(&group.removed).flatten()
                });
                String::from_utf8(names.copied().collect()).unwrap()
            };
            writes.push((of(&batch.awaited), of(&batch.later)));
        }
        // Nobody waits for what does not fit; what is too long for one write comes in several, and ends with what it ends.
        let expected = [
            ("pppppp", "aaa1"),
            ("q", "bb2cc"),
            ("", "cccc"),
            ("", "ccc3"),
        ];
        let expected = expected.map(|(awaited, later)| (awaited.to_owned(), later.to_owned()));
        assert_eq!(writes, expected);
        assert!(queue.later.is_empty());
    }
}
