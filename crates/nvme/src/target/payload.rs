//! The data of one command.

use std::future::Future;

use forebay_mem::{Buf, BufMut, RegionSlice};
use forebay_proto::nvme::Status;

/// The data of one command, in order, moved by its transport. The first byte is that of the host's buffer.
///
/// Bytes to the controller are taken with [`receive`](Payload::receive) or [`source`](Payload::source), bytes to the host given with
/// [`send`](Payload::send) or [`target`](Payload::target); each call goes on behind the previous one. What is not taken the
/// transport throws away before the command is complete; what is not given stays as it was in the host's buffer.
///
/// Dropping a future or the payload in the middle is how a command is cancelled; a change that has begun goes on all the same.
pub trait Payload: Send {
    /// The bytes that the host offers or has room for: what its data pointer says.
    fn len(&self) -> u64;

    /// Whether there is no data at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until the next bytes to the controller begin to arrive, having asked for them. No buffer is held meanwhile: a host that
    /// promises a value and sends nothing costs no memory.
    fn ready(&mut self) -> impl Future<Output = Result<(), Status>> + Send;

    /// Appends the next `len` bytes to `into`, which has room for them.
    ///
    /// # Errors
    /// The status to answer, e.g. [`Status::TRANSIENT_TRANSPORT_ERROR`] for a wrong data digest, [`Status::DATA_SGL_LENGTH_INVALID`]
    /// when there are fewer.
    fn receive(
        &mut self,
        into: &mut BufMut,
        len: usize,
    ) -> impl Future<Output = Result<(), Status>> + Send;

    /// Waits until all that the host was asked for is there and is what it sent, also what nobody takes. A command that has effects has
    /// none before.
    ///
    /// # Errors
    /// The status to answer, e.g. [`Status::TRANSIENT_TRANSPORT_ERROR`] for a wrong data digest.
    fn whole(&mut self) -> impl Future<Output = Result<(), Status>> + Send {
        async { Ok(()) }
    }

    /// The command makes a change now that cannot be taken back: from now on it is not aborted, but ends as it ends.
    fn land(&mut self) {}

    /// The next bytes to the controller where they lie in the host's memory: at most `len`, at least one, and taken by this. `None`
    /// when the transport has no such memory or they cannot be read in place; [`receive`](Payload::receive) works then.
    fn source(&mut self, len: u64) -> Option<RegionSlice>;

    /// Memory of the host in which the next bytes can be placed directly: at most `len`, at least one, and given by this. `None` when
    /// the transport has no such memory; [`send`](Payload::send) works then.
    fn target(&mut self, len: u64) -> Option<RegionSlice>;

    /// What is given from now on goes to the start of the host's buffer, whatever was taken from it: for the one command whose data goes
    /// both ways.
    fn turn(&mut self);

    /// Gives the next bytes to the host. Returns when it may be called again; the buffer may still be on its way.
    fn send(&mut self, buf: Buf) -> impl Future<Output = Result<(), Status>> + Send;
}
