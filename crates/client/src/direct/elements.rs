//! The elements of one call about many values.

use std::ops::Range;

use forebay_proto::direct::{Condition, Full, Operation};

use super::attempt::Failure;
use super::loans::Use;
use super::seat::Memory;
use super::values::{Get, Put, too_described, too_long};
use super::window::{Window, argument};
use crate::Result;

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) enum Elements<'a, 'b> {
    Gets(&'a [Get<'b>]),
    Puts(&'a [Put<'b>]),
}

impl<'a> Elements<'a, '_> {
    pub(super) fn len(self) -> usize {
        match self {
            Elements::Gets(gets) => gets.len(),
            Elements::Puts(puts) => puts.len(),
        }
    }

    pub(super) fn check(self) -> Result<()> {
        match self {
            Elements::Gets(gets) => {
                for get in gets {
                    get.into.check()?;
                    get.span.check()?;
                }
                check_apart(gets)
            }
            Elements::Puts(puts) => puts.iter().try_for_each(|put| put.from.check()),
        }
    }

    /// Who can reach all of their memory.
    pub(super) fn memory(self) -> Memory {
        let all_mappable = match self {
            Elements::Gets(gets) => gets
                .iter()
                .all(|get| get.into.region.memory() == Memory::Mappable),
            Elements::Puts(puts) => puts
                .iter()
                .all(|put| put.from.region.memory() == Memory::Mappable),
        };
        match all_mappable {
            true => Memory::Mappable,
            false => Memory::Private,
        }
    }

    /// The length of all of their memory.
    pub(super) fn bytes(self) -> usize {
        match self {
            Elements::Gets(gets) => gets.iter().map(|get| get.into.len()).sum(),
            Elements::Puts(puts) => puts.iter().map(|put| put.from.len()).sum(),
        }
    }

    pub(super) fn key(self, index: usize) -> &'a [u8] {
        match self {
            Elements::Gets(gets) => gets[index].key,
            Elements::Puts(puts) => puts[index].key,
        }
    }

    /// The memory of some of them.
    pub(super) fn windows(self, which: Range<usize>) -> Vec<&'a Window<'a>> {
        match self {
            Elements::Gets(gets) => gets[which].iter().map(|get| &get.into).collect(),
            Elements::Puts(puts) => puts[which].iter().map(|put| &put.from).collect(),
        }
    }

    /// What the server is asked to do, and what it does with memory for that.
    pub(super) fn operation(self) -> (Operation, Use) {
        match self {
            Elements::Gets(_) => (Operation::Retrieve, Use::Target),
            Elements::Puts(_) => (Operation::Store, Use::Source),
        }
    }

    /// What it means that one of them fits no message.
    pub(super) fn too_long(self, index: usize, full: Full) -> Failure {
        match self {
            Elements::Puts(puts) if puts[index].described(&mut Vec::new()).is_err() => {
                too_described(full)
            }
            Elements::Puts(_) | Elements::Gets(_) => too_long(full),
        }
    }

    /// Whether asking twice is the same as asking once.
    pub(super) fn repeatable(self) -> bool {
        match self {
            Elements::Gets(_) => true,
            Elements::Puts(puts) => puts.iter().all(|put| put.condition == Condition::None),
        }
    }
}

/// Windows that share bytes would wait for each other.
fn check_apart(gets: &[Get<'_>]) -> Result<()> {
    let mut windows: Vec<_> = gets
        .iter()
        .map(|get| (get.into.region.place(), &get.into.range))
        .filter(|(_, range)| !range.is_empty())
        .collect();
    windows.sort_unstable_by_key(|(region, range)| (*region, range.start));
    let overlap = |pair: &&[(usize, &Range<usize>)]| {
        let ((region, range), (next_region, next)) = (pair[0], pair[1]);
        region == next_region && next.start < range.end
    };
    match windows.windows(2).find(overlap) {
        None => Ok(()),
        Some(pair) => Err(argument(format_args!(
            "bytes {:?} and {:?} of a region overlap",
            pair[0].1, pair[1].1
        ))),
    }
}
