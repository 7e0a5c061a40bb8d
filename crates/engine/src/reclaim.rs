//! When freed extents may be reused: after the change that freed them is durable, and no reader can still reach them.
//!
//! A reader looks an entry up and pins the bodies it will read, inside one *visit*. Freed bodies wait until every visit that
//! began before they were freed has ended (two epochs), and then until they are not pinned. A reader of a long value looks up where the parts
//! of it are when it comes to them: while it has them pinned, their layouts can be found although no table has them any more.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use forebay_io::Striped;
use parking_lot::Mutex;

use crate::extent::Run;

const SHARDS: usize = 16;

/// A body that no entry refers to any more.
#[derive(Debug)]
pub(crate) struct Freed {
    pub body: u64,
    /// How many extents it had.
    pub extents: usize,
    /// Whether they were a row of table layout.
    pub laid_out: bool,
    /// Where they were; neighbours are one run.
    pub runs: Vec<Run>,
}

impl Freed {
    /// Of all of these.
    pub fn granules(all: &[Freed]) -> u64 {
        all.iter().map(|freed| granules(&freed.runs)).sum()
    }
}

fn granules(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.granules)).sum()
}

/// What readers keep of bodies that no entry refers to any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Kept {
    /// Granules that nobody else gets.
    pub granules: u64,
    /// Bytes of layouts in memory. What they describe is kept too, so that the space that there is bounds them.
    pub layout_bytes: u64,
}

#[derive(Debug, Default)]
struct Pin {
    readers: usize,
    /// Its row in table layout, which has it no more.
    layout: Option<Bytes>,
    /// Set when the body is freed while it is read.
    freed: Vec<Run>,
}

/// Bodies are numbered in order by the store itself: the number, spread, is hash enough.
#[derive(Debug, Default)]
struct BodyHasher(u64);

impl Hasher for BodyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Visits, pins, and bodies waiting to be reused.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    epoch: AtomicU64,
    /// Of even epochs and of odd ones.
    visitors: Striped<[AtomicUsize; 2]>,
    waiting: Mutex<VecDeque<(u64, Vec<Freed>)>>,
    /// Whether layouts are about to go from their table.
    leaving: AtomicBool,
    pins: [Mutex<HashMap<u64, Pin, BuildHasherDefault<BodyHasher>>>; SHARDS],
}

/// Entries found during a visit stay readable until its end, or longer when pinned.
pub(crate) struct Visit<'a> {
    visitors: &'a AtomicUsize,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.visitors.fetch_sub(1, SeqCst);
    }
}

impl Reclaim {
    pub fn visit(&self) -> Visit<'_> {
        let visitors = self.visitors.mine();
        loop {
            let epoch = self.epoch.load(SeqCst);
            let visit = Visit {
                visitors: &visitors[(epoch & 1) as usize],
            };
            visit.visitors.fetch_add(1, SeqCst);
            if self.epoch.load(SeqCst) == epoch {
                return visit;
            }
        }
    }

    fn shard(&self, body: u64) -> &Mutex<HashMap<u64, Pin, BuildHasherDefault<BodyHasher>>> {
        &self.pins[body as usize % SHARDS]
    }

    /// Keeps a body from being reused; to be called during the visit that found it.
    pub fn pin(&self, body: u64) {
        self.shard(body).lock().entry(body).or_default().readers += 1;
    }

    /// Whether the layout of a body that is pinned now may go without being kept: whoever sees that keeps what it found.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(SeqCst)
    }

    /// Keeps the layouts of those of these bodies that are pinned, as `layout` finds them, before `work` takes them from their table. Where
    /// one is pinned only meanwhile, whoever pins it sees that they are leaving.
    pub fn keep_layouts(
        &self,
        bodies: impl Iterator<Item = u64>,
        layout: impl Fn(u64) -> Option<Bytes>,
        work: impl FnOnce(),
    ) {
        let mut bodies = bodies.peekable();
        if bodies.peek().is_none() {
            return work();
        }
        self.leaving.store(true, SeqCst);
        for body in bodies {
            let is_pinned = self.shard(body).lock().contains_key(&body);
            // It is not looked for under the lock.
            let layout = is_pinned.then(|| layout(body)).flatten();
            if let Some(pin) = self.shard(body).lock().get_mut(&body) {
                pin.layout = layout;
            }
        }
        work();
        self.leaving.store(false, SeqCst);
    }

    /// The layout of a pinned body, where that is in no table any more.
    pub fn layout(&self, body: u64) -> Option<Bytes> {
        self.shard(body).lock().get(&body)?.layout.clone()
    }

    /// Ends a pin; returns runs that are now free.
    pub fn unpin(&self, body: u64) -> Vec<Run> {
        let mut pins = self.shard(body).lock();
        let Some(pin) = pins.get_mut(&body) else {
            return Vec::new();
        };
        pin.readers -= 1;
        if pin.readers > 0 {
            return Vec::new();
        }
        pins.remove(&body).map(|pin| pin.freed).unwrap_or_default()
    }

    /// What readers keep now.
    pub fn kept(&self) -> Kept {
        let mut kept = Kept::default();
        for pins in &self.pins {
            for pin in pins.lock().values() {
                kept.granules += granules(&pin.freed);
                kept.layout_bytes += pin.layout.as_ref().map_or(0, Bytes::len) as u64;
            }
        }
        kept
    }

    /// Bodies that no entry refers to any more, durably.
    pub fn retire(&self, freed: Vec<Freed>) {
        if !freed.is_empty() {
            let epoch = self.epoch.load(SeqCst);
            self.waiting.lock().push_back((epoch, freed));
        }
    }

    /// Whether bodies wait for visits to end.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Runs that may be reused now.
    pub fn collect(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            return runs;
        }
        for _ in 0..2 {
            let epoch = self.epoch.load(SeqCst);
            let former = ((epoch + 1) & 1) as usize;
            let mut visitors = self.visitors.all().map(|visitors| &visitors[former]);
            if visitors.all(|visitors| visitors.load(SeqCst) == 0) {
                self.epoch.store(epoch + 1, SeqCst);
            }
        }
        let epoch = self.epoch.load(SeqCst);
        while waiting
            .front()
            .is_some_and(|(retired, _)| retired + 2 <= epoch)
        {
            let Some((_, bodies)) = waiting.pop_front() else {
                break;
            };
            for freed in bodies {
                match self.shard(freed.body).lock().get_mut(&freed.body) {
                    Some(pin) => pin.freed.extend(freed.runs),
                    None => runs.extend(freed.runs),
                }
            }
        }
        runs
    }
}
