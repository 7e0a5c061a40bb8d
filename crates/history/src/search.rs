//! The search for an order.

use std::collections::HashSet;

use crate::{Action, Operation, Outcome, Value};

/// Places the search goes to before it gives up; each takes some hundred bytes.
pub const POSITIONS_MAX: usize = 4_000_000;

/// What became of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A register could have answered like this: in this order of the history's places. Those without an answer that need not have
    /// happened are left out.
    Linearizable(Vec<usize>),
    /// No register could.
    Violation {
        /// The longest beginning of an order that agrees with the answers.
        longest: Vec<usize>,
        /// What the register held after it.
        held: Option<Value>,
        /// Those that should have come next, and could not.
        stuck: Vec<usize>,
    },
    /// The search was given up.
    Undecided,
}

/// How far an order has come, as much of it as decides how it can go on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Position {
    /// Answered operations before this one, by the time they were asked, are all in the order.
    low: u32,
    /// Answered operations behind that are in it too, ascending.
    beyond: Vec<u32>,
    /// Operations without an answer that are in it, ascending.
    unanswered: Vec<u32>,
    /// What the register holds.
    held: Option<Value>,
}

struct Search<'a> {
    history: &'a [Operation],
    /// Places of those that were answered, by the time they were asked.
    answered: Vec<usize>,
    /// Places of those that were not and may have changed something, by the time they were asked.
    unanswered: Vec<usize>,
}

/// Looks for an order of one key's history, which began with nothing there, that a register could have answered in.
#[must_use]
pub fn check(history: &[Operation]) -> Verdict {
    Search::new(history).run()
}

impl<'a> Search<'a> {
    fn new(history: &'a [Operation]) -> Self {
        let mut order: Vec<usize> = (0..history.len()).collect();
        order.sort_by_key(|place| history[*place].asked);
        let (unanswered, answered): (Vec<usize>, Vec<usize>) = order
            .into_iter()
            .partition(|place| history[*place].outcome == Outcome::Unknown);
        let unanswered = unanswered
            .into_iter()
            .filter(|place| history[*place].action != Action::Read)
            .collect();
        Search {
            history,
            answered,
            unanswered,
        }
    }

    fn run(&self) -> Verdict {
        let mut seen = HashSet::new();
        // Every place reached, with whence and by which operation: the way back is the order.
        let mut ways: Vec<(usize, usize)> = vec![(usize::MAX, usize::MAX)];
        let begin = Position {
            low: 0,
            beyond: Vec::new(),
            unanswered: Vec::new(),
            held: None,
        };
        let mut furthest = (0, begin.clone(), 0);
        let mut open = vec![(begin, 0)];
        while let Some((position, way)) = open.pop() {
            let done = position.low as usize + position.beyond.len();
            if done > furthest.0 {
                furthest = (done, position.clone(), way);
            }
            if done == self.answered.len() {
                return Verdict::Linearizable(order(&ways, way));
            }
            if seen.len() >= POSITIONS_MAX {
                return Verdict::Undecided;
            }
            if !seen.insert(position.clone()) {
                continue;
            }
            let limit = self.limit(&position);
            // The last one pushed is tried first: the one that was asked first.
            for index in self.candidates(&position, limit).into_iter().rev() {
                let place = self.answered[index as usize];
                for chain in self.chains(&position, place, limit) {
                    let (mut next, mut way) = (position.clone(), way);
                    for unanswered in chain {
                        self.take(&mut next, unanswered);
                        ways.push((way, self.unanswered[unanswered as usize]));
                        way = ways.len() - 1;
                    }
                    if let Some(held) = self.history[place].apply(next.held) {
                        next.held = held;
                        next.answer(index);
                        ways.push((way, place));
                        open.push((next, ways.len() - 1));
                    }
                }
            }
        }
        let (_, position, way) = furthest;
        let limit = self.limit(&position);
        Verdict::Violation {
            longest: order(&ways, way),
            held: position.held,
            stuck: self
                .candidates(&position, limit)
                .into_iter()
                .map(|index| self.answered[index as usize])
                .collect(),
        }
    }

    /// The first time at which somebody who is not yet in the order was answered: who asked later must wait for them.
    fn limit(&self, position: &Position) -> u64 {
        let mut limit = u64::MAX;
        for index in self.left(position) {
            let operation = &self.history[self.answered[index as usize]];
            if operation.asked > limit {
                break;
            }
            limit = limit.min(operation.answered);
        }
        limit
    }

    /// Answered operations that may come next as far as time goes.
    fn candidates(&self, position: &Position, limit: u64) -> Vec<u32> {
        self.left(position)
            .take_while(|index| self.history[self.answered[*index as usize]].asked <= limit)
            .collect()
    }

    /// Answered operations that are not in the order.
    fn left<'p>(&'p self, position: &'p Position) -> impl Iterator<Item = u32> + 'p {
        (position.low..self.answered.len() as u32)
            .filter(|index| position.beyond.binary_search(index).is_err())
    }

    /// What without an answer may come right before the operation at `place` so that it answers as it did: nothing where it does
    /// so anyhow. Nothing else needs to be tried. Had an unanswered one come before an answered one that does not need it, it might
    /// as well come after, as no time bounds it, or not at all, where that one leaves nothing of it.
    fn chains(&self, position: &Position, place: usize, limit: u64) -> Vec<Vec<u32>> {
        let operation = &self.history[place];
        if operation.apply(position.held).is_some() {
            return vec![Vec::new()];
        }
        let exactly = match (operation.action, operation.outcome) {
            (Action::Read, Outcome::Saw(seen)) => seen,
            (Action::Create(_), Outcome::Done) => None,
            (Action::Swap(expected, _), Outcome::Done) => Some(expected),
            // Refused for what the register does not hold: whatever changes it will do.
            _ => {
                let changes = self.usable(position, limit).filter(|index| {
                    let unanswered = &self.history[self.unanswered[*index as usize]];
                    unanswered
                        .apply(position.held)
                        .is_some_and(|held| operation.apply(held).is_some())
                });
                return changes.map(|index| vec![index]).collect();
            }
        };
        self.chain(position, exactly, limit).into_iter().collect()
    }

    /// Those without an answer that make the register hold this, first to last; of several deletes any is as good.
    fn chain(&self, position: &Position, exactly: Option<Value>, limit: u64) -> Option<Vec<u32>> {
        let (mut chain, mut wanted) = (Vec::new(), exactly);
        while wanted != position.held {
            let (index, needs) = self
                .usable(position, limit)
                .filter(|index| !chain.contains(index))
                .find_map(|index| {
                    let needs = match self.history[self.unanswered[index as usize]].action {
                        Action::Write(value) => (wanted == Some(value)).then_some(position.held),
                        Action::Delete => wanted.is_none().then_some(position.held),
                        Action::Create(value) => (wanted == Some(value)).then_some(None),
                        Action::Swap(from, value) => (wanted == Some(value)).then_some(Some(from)),
                        Action::Read => None,
                    };
                    Some((index, needs?))
                })?;
            chain.push(index);
            wanted = needs;
        }
        chain.reverse();
        Some(chain)
    }

    /// Those without an answer that are not in the order and were asked by then.
    fn usable<'p>(&'p self, position: &'p Position, limit: u64) -> impl Iterator<Item = u32> + 'p {
        (0..self.unanswered.len() as u32)
            .take_while(move |index| self.history[self.unanswered[*index as usize]].asked <= limit)
            .filter(|index| position.unanswered.binary_search(index).is_err())
    }

    fn take(&self, position: &mut Position, unanswered: u32) {
        let operation = &self.history[self.unanswered[unanswered as usize]];
        if let Some(held) = operation.apply(position.held)
            && let Err(at) = position.unanswered.binary_search(&unanswered)
        {
            position.held = held;
            position.unanswered.insert(at, unanswered);
        }
    }
}

impl Position {
    /// Takes an answered one into the order.
    fn answer(&mut self, index: u32) {
        if let Err(at) = self.beyond.binary_search(&index) {
            self.beyond.insert(at, index);
        }
        let whole = (self.low..)
            .zip(&self.beyond)
            .take_while(|(low, one)| low == *one)
            .count();
        self.beyond.drain(..whole);
        self.low += whole as u32;
    }
}

fn order(ways: &[(usize, usize)], mut way: usize) -> Vec<usize> {
    let mut order = Vec::new();
    while let Some((whence, place)) = ways.get(way).filter(|(whence, _)| *whence != usize::MAX) {
        order.push(*place);
        way = *whence;
    }
    order.reverse();
    order
}
