//! Judges recorded histories: could a single register, one operation after the other, have answered like this?
//!
//! Clients of one or of many gateways write down when they asked and when they were answered. For each key by itself [`check`]
//! looks for an order of the operations that agrees with what a register would have answered and with time: whoever was answered
//! before somebody else asked comes first. Where there is none, somebody read old bytes, lost a write, or won what another had.
//!
//! Made of
//! - [`Operation`]: what was asked, when, and what came of it; an answer that never came may have taken effect at any time, or never;
//! - [`check`]: the search (Wing and Gong's, with a memory of the places that it has been to, as Lowe's and Porcupine's have);
//! - [`record`]: histories as lines of JSON, which `examples/linearizable.rs` reads.
//!
//! It does not record and does not know what is asked: the tests of `interop/ceph` do.
//!
//! Invariants
//! - [`Verdict::Linearizable`] comes with an order that a reader can go through, [`Verdict::Violation`] only after every order was ruled out.
//! - Time and memory are bounded: past [`POSITIONS_MAX`] places the answer is [`Verdict::Undecided`].
//!
//! Tested against every order of small histories tried one by one, against histories made from a register that behaves, against
//! the same with one answer falsified, and against known bad ones of every kind.
#![forbid(unsafe_code)]

pub mod record;
mod search;

pub use search::{POSITIONS_MAX, Verdict, check};

/// What a register holds, by a number that no other write has.
pub type Value = u64;

/// One request of one client for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it was asked; any clock that all clients share.
    pub asked: u64,
    /// When it was answered, not before it was asked. Of [`Outcome::Unknown`] it says nothing.
    pub answered: u64,
    /// What was asked.
    pub action: Action,
    /// What came of it.
    pub outcome: Outcome,
}

/// What was asked of the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// What does it hold?
    Read,
    /// Hold this value.
    Write(Value),
    /// Hold this value if you hold none.
    Create(Value),
    /// Hold the second value if you hold the first.
    Swap(Value, Value),
    /// Hold none.
    Delete,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A read saw this.
    Saw(Option<Value>),
    /// It is done.
    Done,
    /// Its condition did not hold.
    Refused,
    /// There was no answer, or one that does not tell: it took effect after it was asked, at whatever time, or never.
    Unknown,
}

impl Operation {
    /// What the register holds afterwards if it held `before` and answered like this; none when it would have answered otherwise.
    pub(crate) fn apply(&self, before: Option<Value>) -> Option<Option<Value>> {
        let holds = match self.action {
            Action::Read => {
                return match self.outcome {
                    Outcome::Saw(seen) => (seen == before).then_some(before),
                    Outcome::Unknown => Some(before),
                    Outcome::Done | Outcome::Refused => None,
                };
            }
            Action::Write(_) | Action::Delete => true,
            Action::Create(_) => before.is_none(),
            Action::Swap(expected, _) => before == Some(expected),
        };
        let after = match self.action {
            Action::Write(value) | Action::Create(value) | Action::Swap(_, value) => Some(value),
            Action::Read | Action::Delete => None,
        };
        match self.outcome {
            Outcome::Done | Outcome::Unknown if holds => Some(after),
            Outcome::Refused if !holds => Some(before),
            Outcome::Done | Outcome::Unknown | Outcome::Refused | Outcome::Saw(_) => None,
        }
    }
}
