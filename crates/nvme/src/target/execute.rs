//! I/O commands of every kind.

use std::sync::Arc;

use forebay_io::File;
use forebay_proto::nvme::nvm::NvmCommand;
use forebay_proto::nvme::{IoCommand, IoVerb, Status};
use forebay_store::Store;

use super::block::Half;
use super::session::Session;
use super::shown::{Place, Reached};
use super::{Payload, Target};

impl<S: Store, F: File> Target<S, F> {
    /// Executes a command that [`Controller::io`](forebay_proto::nvme::Controller::io) let pass. Returns how it ended, and DW0 with DW1
    /// in the upper half. Dropping the future gives it up: what was begun leaves nothing half done. A change that is with the store or a
    /// device by then is made all the same.
    pub async fn execute(
        &self,
        session: &Session<S>,
        command: &IoCommand,
        payload: &mut impl Payload,
    ) -> (Status, u64) {
        let running = session.live.begin();
        let (status, result) = match self.try_execute(session, command, payload).await {
            Ok(result) => (Status::SUCCESS, result),
            Err(status) => (status.answered(), 0),
        };
        running.end(status, self.counters.count(command, status, result));
        (status, result)
    }

    async fn try_execute(
        &self,
        session: &Session<S>,
        command: &IoCommand,
        payload: &mut impl Payload,
    ) -> Result<u64, Status> {
        if payload.len() < command.bytes_to_host {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        let place = self.place(command.nsid)?;
        let reached = self.reach(&place, &session.viewer);
        match (reached, &command.verb) {
            (Some(Reached::Kv(entered)), IoVerb::Kv(verb)) => {
                // What a value takes is several times what blocks do, and a future is moved into its place whole.
                Box::pin(self.execute_kv(session, command.nsid, &entered, verb, payload)).await
            }
            (Some(Reached::Block(blocks)), IoVerb::Nvm(verb)) => {
                blocks
                    .execute(&self.pool, &session.host, verb, payload)
                    .await
            }
            // It is gone, or another namespace was published by its number meanwhile.
            _ => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
        }
    }

    /// What is behind a number. The host saw it when its command was checked; by now something else may be there.
    fn place(&self, nsid: u32) -> Result<Arc<Place<F>>, Status> {
        let place = self.shown.read().place(nsid);
        place.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)
    }

    /// Executes the two halves of a fused operation, each with its payload; see [`Fuser`](super::Fuser). Returns how each ended.
    pub async fn execute_fused(
        &self,
        session: &Session<S>,
        first: (&IoCommand, &mut impl Payload),
        second: (&IoCommand, &mut impl Payload),
    ) -> (Status, Status) {
        let running = [session.live.begin(), session.live.begin()];
        let both = |status: Status| (status.answered(), status.answered());
        let (compare, write) = (first.0, second.0);
        let place = match self.place(compare.nsid) {
            Ok(place) if compare.nsid == write.nsid => place,
            Ok(_) => return both(Status::INVALID_FIELD),
            Err(status) => return both(status),
        };
        let Some(reached) = self.reach(&place, &session.viewer) else {
            return both(Status::INVALID_NAMESPACE_OR_FORMAT);
        };
        let (
            Reached::Block(blocks),
            IoVerb::Nvm(NvmCommand::Compare { blocks: compared }),
            IoVerb::Nvm(NvmCommand::Write {
                blocks: written,
                fua,
            }),
        ) = (reached, &compare.verb, &write.verb)
        else {
            return both(Status::INVALID_FIELD);
        };
        // The halves are about the same blocks.
        if compared != written {
            return both(Status::INVALID_FIELD);
        }
        let _turn = session.fusing.acquire().await;
        let done = blocks
            .compare_and_write(&self.pool, &session.host, *written, *fua, first.1, second.1)
            .await;
        // The first half of an operation whose second did not happen did not happen either.
        let (compared, written) = match done {
            Ok(()) => (Status::SUCCESS, Status::SUCCESS),
            Err(Half::First(status)) => (status, Status::ABORTED_FAILED_FUSED),
            Err(Half::Second(status)) => (Status::ABORTED_FAILED_FUSED, status),
        };
        let (compared, written) = (compared.answered(), written.answered());
        let [comparing, writing] = running;
        comparing.end(compared, self.counters.count(first.0, compared, 0));
        writing.end(written, self.counters.count(second.0, written, 0));
        (compared, written)
    }
}
