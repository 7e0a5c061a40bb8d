//! Which bytes of a region calls are using.

use std::collections::BTreeMap;
use std::ops::Range;

/// What a call does with the bytes lent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// They are read: any number of calls may do so at once.
    Source,
    /// They are written: nobody else may use them meanwhile.
    Target,
}

/// The ranges lent out. Targets overlap nothing; sources may overlap each other.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    /// By start; disjoint.
    targets: BTreeMap<usize, usize>,
    /// By start and a number that tells equal ones apart.
    sources: BTreeMap<(usize, u64), usize>,
    next: u64,
}

/// Names one loan, for [`Loans::give_back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoanId {
    start: usize,
    source: Option<u64>,
}

impl Loans {
    /// Lends `range`, or nothing while somebody uses bytes of it in a way that excludes `what`. An empty range excludes nobody.
    pub(crate) fn lend(&mut self, range: Range<usize>, what: Use) -> Option<LoanId> {
        let Range { start, end } = range;
        let written = self.targets.range(..end).next_back();
        if start < end && written.is_some_and(|(_, other)| *other > start) {
            return None;
        }
        // An empty target is kept as a source is: two of them may begin at the same byte.
        if what == Use::Source || start == end {
            let number = self.next;
            self.next += 1;
            self.sources.insert((start, number), end);
            return Some(LoanId {
                start,
                source: Some(number),
            });
        }
        let mut read = self.sources.range(..(end, 0));
        if read.any(|((other, _), other_end)| *other_end > start && *other < *other_end) {
            return None;
        }
        self.targets.insert(start, end);
        Some(LoanId {
            start,
            source: None,
        })
    }

    /// Ends a loan.
    pub(crate) fn give_back(&mut self, loan: LoanId) {
        match loan.source {
            Some(number) => self.sources.remove(&(loan.start, number)),
            None => self.targets.remove(&loan.start),
        };
    }

    /// Whether nothing is lent.
    pub(crate) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.sources.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clash(a: &(Range<usize>, Use), b: &(Range<usize>, Use)) -> bool {
        let overlap =
            a.0.start < b.0.end && b.0.start < a.0.end && !a.0.is_empty() && !b.0.is_empty();
        overlap && (a.1 == Use::Target || b.1 == Use::Target)
    }

    proptest! {
        /// Against the definition, written as a search over all pairs.
        #[test]
        fn a_loan_is_refused_exactly_when_it_clashes(
            steps in prop::collection::vec((0usize..40, 0usize..12, any::<bool>(), any::<prop::sample::Index>(), any::<bool>()), 1..60),
        ) {
            let mut loans = Loans::default();
            let mut model: Vec<((Range<usize>, Use), LoanId)> = Vec::new();
            for (start, len, target, which, end) in steps {
                if end && !model.is_empty() {
                    let (_, loan) = model.swap_remove(which.index(model.len()));
                    loans.give_back(loan);
                } else {
                    let wanted = (start..start + len, if target { Use::Target } else { Use::Source });
                    let free = !model.iter().any(|(there, _)| clash(there, &wanted));
                    let lent = loans.lend(wanted.0.clone(), wanted.1);
                    prop_assert_eq!(lent.is_some(), free);
                    model.extend(lent.map(|loan| (wanted, loan)));
                }
                prop_assert_eq!(loans.is_empty(), model.is_empty());
            }
        }
    }
}
