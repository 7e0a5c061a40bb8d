//! Replacing entries of an index, and with them this gateway's counter, in one operation.

use forebay_store::Usage;

use crate::codec::Malformed;
use crate::core::Namespace;
use crate::names;
use crate::record::Entry;
use crate::sys::{Guard, WriteOp};
use crate::under_way::Sum;

/// This gateway's counter in an object of the index, as it was last seen. Who took this gateway for dead has added it to what all that are
/// gone have counted, and removed it: so it is never replaced but by an operation that asserts what it was.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    /// What the books of this gateway have of it.
    pub sum: Sum,
    /// As it is stored; empty: it is not there.
    stored: Vec<u8>,
    /// Whether it has to be read again: somebody else changed it, or an operation was not answered.
    pub stale: bool,
}

impl Counter {
    /// It was read; what it changed by since.
    pub fn read(&mut self, stored: &[u8]) -> Result<Sum, Malformed> {
        let sum = match stored {
            [] => Sum::default(),
            stored => Sum::decode(stored)?,
        };
        let by = sum.minus(self.sum);
        self.sum = sum;
        self.stored = stored.to_vec();
        self.stale = false;
        Ok(by)
    }

    /// Makes it `sum`, if it still is what it was.
    pub fn replace(&self, with: &mut Replacing, name: Vec<u8>, sum: Sum) {
        with.op.omap_equals(&name, &self.stored);
        with.set.push((name, sum.encode()));
    }

    pub fn replaced(&mut self, sum: Sum) {
        self.sum = sum;
        self.stored = sum.encode();
    }
}

/// An operation on an object of an index, being put together. All that it sets is set in one step, and all that it removes is removed in
/// one: a storage daemon takes each step by itself.
pub(crate) struct Replacing {
    op: WriteOp,
    set: Vec<(Vec<u8>, Vec<u8>)>,
    removed: Vec<Vec<u8>>,
}

impl Replacing {
    pub fn new(namespace: &Namespace) -> Replacing {
        Replacing {
            op: WriteOp::new(&namespace.index).guard(Guard::Exists),
            set: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// Replaces an entry that is `found`, and what follows from it; what the usage changes by.
    pub fn replace(
        &mut self,
        name: &[u8],
        found: &[u8],
        before: Option<&Entry>,
        after: &Entry,
    ) -> Sum {
        self.op.omap_equals(name, found);
        self.set.push((name.to_vec(), after.encode()));
        let (old, new) = (before.and_then(Entry::expires_next), after.expires_next());
        if old != new {
            let expiring = |at| names::expiring(at, name);
            self.removed.extend(old.map(expiring));
            self.set.extend(new.map(|at| (expiring(at), Vec::new())));
        }
        let held = before.map_or_else(Usage::default, Entry::usage);
        Sum::between(held, after.usage())
    }

    pub fn finish(mut self) -> WriteOp {
        self.op.omap_remove(self.removed.iter().map(Vec::as_slice));
        let set = self.set.iter();
        self.op
            .omap_set(set.map(|(name, value)| (&name[..], &value[..])));
        self.op
    }
}
