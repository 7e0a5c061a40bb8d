//! Fused operations: two commands that follow each other in a queue and happen as one.

use forebay_proto::nvme::{Fuse, IoCommand};

/// What to do after a command was taken from a queue. `T` is whatever the transport keeps with a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Fused<T> {
    /// It waits for its second half.
    Wait,
    /// Execute it alone.
    One(IoCommand, T),
    /// Execute both with [`Target::execute_fused`](super::Target::execute_fused).
    Both((IoCommand, T), (IoCommand, T)),
    /// Complete the first with [`Status::ABORTED_MISSING_FUSED`](forebay_proto::nvme::Status::ABORTED_MISSING_FUSED), then look at the
    /// second again, with [`Fuser::next`].
    Missing(T, (IoCommand, T)),
    /// Complete it so: it is a second half without a first.
    Alone(T),
}

/// Pairs the halves, one a queue. Commands that were refused before they got here are told, too: they come between halves.
#[derive(Debug)]
pub struct Fuser<T> {
    first: Option<(IoCommand, T)>,
}

impl<T> Default for Fuser<T> {
    fn default() -> Fuser<T> {
        Fuser { first: None }
    }
}

impl<T> Fuser<T> {
    /// The next command of the queue.
    pub fn next(&mut self, command: IoCommand, with: T) -> Fused<T> {
        match (self.first.take(), command.fuse) {
            (Some(first), Fuse::Second) => Fused::Both(first, (command, with)),
            (Some((_, first)), Fuse::None | Fuse::First) => Fused::Missing(first, (command, with)),
            (None, Fuse::First) => {
                self.first = Some((command, with));
                Fused::Wait
            }
            (None, Fuse::None) => Fused::One(command, with),
            (None, Fuse::Second) => Fused::Alone(with),
        }
    }

    /// A command that is not executed came: a first half that waits has none, and is to be completed as [`Fused::Missing`] says.
    pub fn interrupted(&mut self) -> Option<T> {
        self.interrupted_if(|_| true)
    }

    /// As [`interrupted`](Fuser::interrupted), for a first half that waits and of which this is true.
    pub fn interrupted_if(&mut self, is: impl FnOnce(&T) -> bool) -> Option<T> {
        self.first
            .take_if(|(_, first)| is(first))
            .map(|(_, first)| first)
    }
}
