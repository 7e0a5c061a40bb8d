//! Which pages of a file take space on the medium.

use std::collections::BTreeMap;

use forebay_mem::PAGE_BYTES;

const PAGE: u64 = PAGE_BYTES as u64;

/// Disjoint runs of pages, each from its key to its value.
#[derive(Debug, Clone, Default)]
pub(super) struct Space {
    runs: BTreeMap<u64, u64>,
}

impl Space {
    pub(super) fn bytes(&self) -> u64 {
        self.runs
            .iter()
            .map(|(start, end)| (end - start) * PAGE)
            .sum()
    }

    /// This with the pages of `offset..offset + len` added.
    pub(super) fn with(&self, offset: u64, len: u64) -> Space {
        if len == 0 {
            return self.clone();
        }
        let (mut start, mut end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
        let mut runs = BTreeMap::new();
        for (&from, &to) in &self.runs {
            if to < start || from > end {
                runs.insert(from, to);
            } else {
                start = start.min(from);
                end = end.max(to);
            }
        }
        runs.insert(start, end);
        Space { runs }
    }

    /// Whether `with` would change nothing: the common case, made cheap.
    pub(super) fn has(&self, offset: u64, len: u64) -> bool {
        let (start, end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
        self.runs
            .range(..=start)
            .next_back()
            .is_some_and(|(_, to)| *to >= end)
    }

    /// Gives back the whole pages in `offset..offset + len`.
    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        let (start, end) = (offset.div_ceil(PAGE), (offset + len) / PAGE);
        let mut runs = BTreeMap::new();
        for (&from, &to) in &self.runs {
            let kept = [(from, to.min(start)), (from.max(end), to)];
            runs.extend(kept.into_iter().filter(|(from, to)| from < to));
        }
        if start < end {
            self.runs = runs;
        }
    }

    /// Gives back what lies past `len` bytes.
    pub(super) fn cut(&mut self, len: u64) {
        let end = len.div_ceil(PAGE);
        self.runs.split_off(&end);
        if let Some(mut last) = self.runs.last_entry() {
            let to = (*last.get()).min(end);
            last.insert(to);
        }
    }
}
