//! I/O commands of every kind.

use forebay_io::File;
use forebay_proto::nvme::nvm::NvmCommand;
use forebay_proto::nvme::{IoCommand, IoVerb, Status};
use forebay_store::Store;

use super::session::Session;
use super::shown::What;
use super::{Payload, Target};

impl<S: Store, F: File> Target<S, F> {
    /// Executes a command that [`Controller::io`](forebay_proto::nvme::Controller::io) let pass. Returns how it ended, and DW0 with DW1
    /// in the upper half. Dropping the future gives it up: what was begun leaves nothing half done.
    pub async fn execute(
        &self,
        session: &Session<S>,
        command: &IoCommand,
        payload: &mut impl Payload,
    ) -> (Status, u64) {
        match self.try_execute(session, command, payload).await {
            Ok(result) => (Status::SUCCESS, result),
            Err(status) => (status.answered(), 0),
        }
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
        // It was there when the command was parsed; it may have gone since.
        let place = self.shown.read().place(command.nsid);
        let place = place.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
        match (&place.what, &command.verb) {
            (What::Kv { namespace, .. }, IoVerb::Kv(verb)) => {
                self.execute_kv(session, command.nsid, namespace, verb, payload)
                    .await
            }
            (What::Block { blocks, .. }, IoVerb::Nvm(verb)) => {
                blocks.execute(&self.pool, verb, payload).await
            }
            // Another namespace was published by its number meanwhile.
            _ => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
        }
    }

    /// Executes the two halves of a fused operation, each with its payload; see [`Fuser`](super::Fuser). Returns how each ended.
    pub async fn execute_fused(
        &self,
        first: (&IoCommand, &mut impl Payload),
        second: (&IoCommand, &mut impl Payload),
    ) -> (Status, Status) {
        let place = self.shown.read().place(first.0.nsid);
        let answered =
            |status: Result<(), Status>| status.map_or_else(Status::answered, |()| Status::SUCCESS);
        let verbs = (&first.0.verb, &second.0.verb);
        let (What::Block { blocks, .. }, true) = (
            match &place {
                Some(place) => &place.what,
                None => {
                    let gone = Status::INVALID_NAMESPACE_OR_FORMAT.answered();
                    return (gone, gone);
                }
            },
            first.0.nsid == second.0.nsid,
        ) else {
            let wrong = Status::INVALID_FIELD.answered();
            return (wrong, wrong);
        };
        match verbs {
            (
                IoVerb::Nvm(NvmCommand::Compare { blocks: compared }),
                IoVerb::Nvm(NvmCommand::Write {
                    blocks: written,
                    fua,
                }),
            ) if compared == written => {
                let (first, second) = blocks
                    .compare_and_write(&self.pool, (*compared, first.1), (*written, *fua, second.1))
                    .await;
                (answered(first), answered(second))
            }
            // Both halves are of the same blocks (NVM Command Set 1.0, section 3.2.4 of fused operations).
            _ => {
                let wrong = Status::INVALID_FIELD.answered();
                (wrong, wrong)
            }
        }
    }
}
