//! The contract of a fabric.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use forebay_mem::{Buf, BufMut, RegionSlice};

/// The result of every link call.
pub type Result<T> = std::result::Result<T, Error>;

/// By what bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fabric {
    /// Memory shared by two processes of one host.
    Shm,
    /// RFC 5040, 5041 and 5044 over TCP.
    Iwarp,
}

impl Fabric {
    /// Its name in results, metrics and flags.
    pub fn name(self) -> &'static str {
        match self {
            Fabric::Shm => "shm",
            Fabric::Iwarp => "iwarp",
        }
    }
}

/// Names a registered region on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stag(pub u32);

/// Bytes of the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRange {
    /// The region.
    pub stag: Stag,
    /// The tagged offset of the first byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// What the peer may do with exposed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Remote reads: a source of stores.
    Read,
    /// Remote writes: a target of retrieves.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    /// Whether remote reads are allowed.
    pub fn reads(self) -> bool {
        matches!(self, Access::Read | Access::ReadWrite)
    }

    /// Whether remote writes are allowed.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }

    /// Whether everything that `other` allows is allowed.
    pub fn includes(self, other: Access) -> bool {
        (self.reads() || !other.reads()) && (self.writes() || !other.writes())
    }
}

/// Local memory that the peer of one link may reach, until [`Link::withdraw`].
#[derive(Debug)]
pub struct Exposure {
    /// Its name for the peer.
    pub stag: Stag,
    /// The tagged offset of its first byte.
    pub base: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// Proof that all earlier remote writes of a link are in the peer's memory.
#[derive(Debug)]
#[must_use]
pub struct Placed(());

impl Placed {
    /// For fabrics, which each say in [`crate`] how they know.
    pub(crate) fn proven() -> Placed {
        Placed(())
    }
}

/// Why a link ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseReason {
    /// Either side has finished.
    Done,
    /// The session ended: closed, or its lease ran out.
    SessionEnded,
    /// The peer went away or the connection broke.
    Lost,
    /// The peer did not go on with what it had to take or to answer.
    Stalled,
    /// The peer broke the protocol; what it did.
    Violation(String),
    /// The peer ended the link for an error of ours; what it says.
    Terminated(String),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Done => f.write_str("finished"),
            CloseReason::SessionEnded => f.write_str("the session has ended"),
            CloseReason::Lost => f.write_str("the connection was lost"),
            CloseReason::Stalled => f.write_str("the peer did not go on"),
            CloseReason::Violation(what) => write!(f, "the peer broke the protocol: {what}"),
            CloseReason::Terminated(what) => write!(f, "the peer ended the link: {what}"),
        }
    }
}

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The range is not in a region that the peer exposed for this; nothing moved.
    NotReachable,
    /// The link is closed; bytes of calls in progress may or may not have moved, and no more will once [`Link::is_settled`].
    Closed,
    /// A bound on regions, messages or work in flight is reached; nothing moved.
    Busy,
    /// An argument breaks a limit; nothing moved.
    Invalid,
    /// Bytes did not survive the way (MPA CRC).
    Corrupt,
    /// The system failed.
    Io,
}

/// A failed link call.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// In words.
    pub message: String,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
        }
    }
}

/// One connection over one fabric; both ends have the same calls.
///
/// # Contract
/// - **Order.** Writes and messages are handed over in the order of the calls. A peer that receives a message can read the bytes of
///   every `write` that returned before that message's `send` was called.
/// - **By value.** A buffer given to a call comes back, or is dropped, only when the fabric can no longer touch it; a dropped future
///   leaves that to the link.
/// - **Nothing after the end.** Once [`Link::close`] has returned, this end moves and sends no further byte, and no transfer begins.
///   Once [`Link::closed`] or [`Link::withdraw`] has returned, the peer neither reads nor writes a further byte of the memory that was
///   exposed to it. (Between the two, a device of the peer's may still be filling memory that [`Link::mapped`] gave it.)
/// - **Hostile peers.** Whatever a peer sends or does to shared memory ends its own link, at worst.
/// - **Any thread.** Calls may come from any thread.
pub trait Link: Send + Sync + 'static {
    /// By what bytes travel.
    fn fabric(&self) -> Fabric;

    /// Lets the peer reach `memory`, which stays mapped at least until it is withdrawn.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] at the bound on regions; [`ErrorKind::Invalid`] for memory that this fabric cannot expose.
    fn expose(
        &self,
        memory: RegionSlice,
        access: Access,
    ) -> impl Future<Output = Result<Exposure>> + Send;

    /// Ends an exposure; when it returns, the peer can no longer touch the memory.
    fn withdraw(&self, exposure: Exposure) -> impl Future<Output = ()> + Send;

    /// Writes `from`, in order, to the start of `to`. Returns when the source may be reused; see [`Link::fence`] for placement.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when `from` is longer than `to`.
    fn write(&self, to: RemoteRange, from: Vec<Buf>) -> impl Future<Output = Result<()>> + Send;

    /// Reads `from` whole into the start of the spare room of `into`, which comes back that much longer.
    fn read(&self, from: RemoteRange, into: BufMut) -> impl Future<Output = Result<BufMut>> + Send;

    /// Proves that all writes that returned are placed.
    fn fence(&self) -> impl Future<Output = Result<Placed>> + Send;

    /// Hands a message to the peer, at most [`MESSAGE_BYTES_MAX`] long; waits while the peer takes none. A peer that goes on taking none
    /// is given up: the link ends as [`CloseReason::Stalled`].
    fn send(&self, message: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// The next message, in place of what `into` held; `None` when the peer has finished. One task receives at a time.
    fn recv(&self, into: &mut Vec<u8>) -> impl Future<Output = Result<Option<()>>> + Send;

    /// Says that the next message is not received before others are answered: a peer that was not told of all that it was sent, as long as
    /// there was something to receive, is told now.
    fn pauses(&self) {}

    /// The peer's memory as this process sees it, where the fabric maps it and the peer allowed `access`: a store can then read its
    /// device straight into it. None of it is given out after [`close`](Link::close) has returned.
    fn mapped(&self, range: RemoteRange, access: Access) -> Option<RegionSlice>;

    /// Whether the link has ended: nobody hears what is answered over it any more.
    fn has_ended(&self) -> bool;

    /// Ends the link now, for this reason. The first reason given stays.
    fn close(&self, reason: CloseReason);

    /// Whether the link has ended and nothing that this end wrote can still land, as far as it can tell. A connection that this end cut
    /// may still deliver what is on its way, until the peer itself has ended the link.
    fn is_settled(&self) -> bool;

    /// Returns when the link has ended and the peer has let go of what was exposed to it; with the reason.
    fn closed(&self) -> impl Future<Output = CloseReason> + Send;
}

/// In this time a peer has to move [`STALL_BYTES`] of what it has to take or to answer, or all of it, else the link ends.
pub(crate) const STALL: Duration = Duration::from_secs(30);
/// See [`STALL`].
pub(crate) const STALL_BYTES: u64 = 64 << 10;

/// The longest message: a request with a key, or with this much of a small value.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;
