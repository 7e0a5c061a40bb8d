//! The links that the door is tested over: a pipe inside the process, and the real ones.

use forebay_fabric::{Connection, Fabric};

use crate::pipe::Pipe;

/// What a link is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A pipe that says to be of this fabric: over `shm` it maps memory, over `iwarp` it does not.
    Pipe(Fabric),
    /// Shared memory over a pair of Unix sockets.
    Shm,
    /// iWARP over a TCP connection.
    Iwarp,
}

pub const WAYS: [Way; 4] = [
    Way::Pipe(Fabric::Shm),
    Way::Pipe(Fabric::Iwarp),
    Way::Shm,
    Way::Iwarp,
];

/// One end.
pub enum Any {
    Pipe(Pipe),
    Real(Connection),
}

forebay_fabric::any_link!(Any { Pipe, Real });
