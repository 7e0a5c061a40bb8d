//! The two ends of a link, and bytes to move.

use std::sync::Arc;

use forebay_mem::{BLOCK_MAX_BYTES, Buf, Pool, Region, RegionSlice};

use crate::{Access, Exposure, Link, RemoteRange};

/// What untouched memory of a client holds.
pub(super) const UNTOUCHED: u8 = 0xa5;

/// Bytes on either side of what is exposed, which nobody may touch.
const GUARD_BYTES: usize = 4096;

#[derive(Clone)]
pub(super) struct Subject<L> {
    pub(super) server: Arc<L>,
    pub(super) client: Arc<L>,
    pub(super) pool: Pool,
}

impl<L: Link> Subject<L> {
    pub(super) fn new(server: L, client: L) -> Subject<L> {
        Subject {
            server: Arc::new(server),
            client: Arc::new(client),
            pool: Pool::new(64 << 20),
        }
    }

    /// Memory of the client's, exposed to the server.
    pub(super) async fn expose(&self, len: usize, access: Access) -> Lent {
        let memory = memory(len);
        let exposure = self
            .client
            .expose(memory.inner.clone(), access)
            .await
            .expect("memory is exposed");
        assert_eq!(exposure.len, len as u64);
        Lent { memory, exposure }
    }
}

/// Memory between two guards.
pub(super) struct Memory {
    whole: RegionSlice,
    pub(super) inner: RegionSlice,
}

/// Memory that the peer may reach.
pub(super) struct Lent {
    pub(super) memory: Memory,
    pub(super) exposure: Exposure,
}

impl Lent {
    pub(super) fn range(&self, offset: u64, len: u64) -> RemoteRange {
        RemoteRange {
            stag: self.exposure.stag,
            offset: self.exposure.base + offset,
            len,
        }
    }
}

pub(super) fn memory(len: usize) -> Memory {
    let region = Region::memfd(len + 2 * GUARD_BYTES).expect("memory");
    let whole = region.slice(0..region.len()).expect("all of it");
    assert!(whole.write(0, &vec![UNTOUCHED; region.len()]));
    let inner = whole.slice(GUARD_BYTES..GUARD_BYTES + len).expect("inside");
    Memory { whole, inner }
}

impl Memory {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.inner.len()];
        assert!(self.inner.read(0, &mut bytes));
        bytes
    }

    pub(super) fn fill(&self, bytes: &[u8]) {
        assert!(self.inner.write(0, bytes));
    }

    pub(super) fn check_guards(&self) {
        let mut guard = [0; GUARD_BYTES];
        for at in [0, self.whole.len() - GUARD_BYTES] {
            assert!(self.whole.read(at, &mut guard));
            assert!(
                guard.iter().all(|byte| *byte == UNTOUCHED),
                "a guard was touched"
            );
        }
    }

    pub(super) fn check_untouched(&self) {
        self.check_untouched_before(self.inner.len());
    }

    pub(super) fn check_untouched_before(&self, end: usize) {
        self.check_guards();
        let bytes = self.bytes();
        let untouched = bytes[..end].iter().all(|byte| *byte == UNTOUCHED);
        assert!(untouched, "memory that may not be reached was touched");
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The same bytes as several buffers, cut at odd places.
pub(super) fn bufs(bytes: &[u8]) -> Vec<Buf> {
    let mut rest = bytes;
    let mut bufs = Vec::new();
    let mut cut = 1;
    while !rest.is_empty() {
        let (part, after) = rest.split_at(cut.min(rest.len()));
        bufs.push(Buf::from(part.to_vec()));
        rest = after;
        cut = (cut * 7 + 3).min(BLOCK_MAX_BYTES);
    }
    bufs
}
