//! What is asked of the journal's thread, and its answers.

use bytes::Bytes;
use forebay_mem::Buf;
use forebay_store::{
    Attributes, Away, Condition, DeleteOptions, Deleted, Meta, NamespaceConfig, NamespaceInfo,
    Quota, Result, Seal, Space, StoreError, Stored, VersionId,
};
use std::sync::Arc;
use tokio::sync::oneshot;

use crate::extent::Extent;
use crate::usage::Reservation;

/// The bytes of a value to be committed.
#[derive(Debug)]
pub(crate) enum Content {
    /// Not on the device yet; at most `SMALL_BYTES_MAX`.
    Small(Buf),
    /// Written, not durable yet.
    Written(Vec<Extent>),
}

/// The key that a command is about.
#[derive(Debug)]
pub(crate) struct Target {
    pub namespace: Arc<NamespaceInfo>,
    pub space: Space,
    pub key: Bytes,
}

#[derive(Debug)]
pub(crate) struct StoreCommand {
    pub target: Target,
    pub condition: Condition,
    pub seal: Seal,
    pub size: u64,
    pub crc64nvme: u64,
    pub content: Content,
    pub reservation: Reservation,
}

#[derive(Debug)]
pub(crate) struct ComposeCommand {
    pub target: Target,
    pub condition: Condition,
    pub size: Option<u64>,
    pub seal: Seal,
    /// Keys, and what was seen there.
    pub sources: Vec<(Bytes, Option<Meta>)>,
    pub consumed: Vec<Bytes>,
}

#[derive(Debug)]
pub(crate) struct AmendCommand {
    pub target: Target,
    pub version: Option<VersionId>,
    pub seen: Option<Meta>,
    pub attributes: Attributes,
}

#[derive(Debug)]
pub(crate) struct TakeBackCommand {
    pub target: Target,
    pub version: Option<VersionId>,
    pub away: Away,
    pub size: u64,
    pub crc64nvme: u64,
    pub content: Content,
}

/// A change, with where its answer goes.
#[derive(Debug)]
pub(crate) enum Command {
    Store(StoreCommand, Reply<Stored>),
    Compose(ComposeCommand, Reply<Stored>),
    Amend(AmendCommand, Reply<Meta>),
    Delete(Target, DeleteOptions, Reply<Deleted>),
    LetGo(Target, Meta, Away, Reply<()>),
    TakeBack(TakeBackCommand, Reply<Stored>),
    CreateNamespace(String, NamespaceConfig, Reply<Arc<NamespaceInfo>>),
    UpdateNamespace(
        String,
        Option<u64>,
        NamespaceConfig,
        Reply<Arc<NamespaceInfo>>,
    ),
    /// What was found empty when so much had been put there.
    DeleteNamespace(Arc<NamespaceInfo>, u64, Reply<()>),
    TenantQuota(String, Quota, Reply<()>),
    /// Answered when all before it is on stable storage.
    Settle(Reply<()>),
    /// Drops what is past its time; tells whether more is.
    Sweep(Reply<bool>),
    /// Answered when everything is in the index.
    Checkpoint(Reply<()>),
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// An answer held back until what it tells is durable.
#[derive(Debug)]
pub(crate) enum Answer {
    Stored(Reply<Stored>, Result<Stored>),
    Amended(Reply<Meta>, Result<Meta>),
    Deleted(Reply<Deleted>, Result<Deleted>),
    Namespace(Reply<Arc<NamespaceInfo>>, Result<Arc<NamespaceInfo>>),
    Done(Reply<()>, Result<()>),
    Swept(Reply<bool>, Result<bool>),
}

impl Answer {
    /// Sends it. Whoever asked may have gone.
    pub fn send(self) {
        match self {
            Answer::Stored(reply, answer) => drop(reply.send(answer)),
            Answer::Amended(reply, answer) => drop(reply.send(answer)),
            Answer::Deleted(reply, answer) => drop(reply.send(answer)),
            Answer::Namespace(reply, answer) => drop(reply.send(answer)),
            Answer::Done(reply, answer) => drop(reply.send(answer)),
            Answer::Swept(reply, answer) => drop(reply.send(answer)),
        }
    }

    /// Sends this instead; a refusal, too, may come from what another change did that does not last.
    pub fn refuse(self, error: impl Fn() -> StoreError) {
        match self {
            Answer::Stored(reply, _) => drop(reply.send(Err(error()))),
            Answer::Amended(reply, _) => drop(reply.send(Err(error()))),
            Answer::Deleted(reply, _) => drop(reply.send(Err(error()))),
            Answer::Namespace(reply, _) => drop(reply.send(Err(error()))),
            Answer::Done(reply, _) => drop(reply.send(Err(error()))),
            Answer::Swept(reply, _) => drop(reply.send(Err(error()))),
        }
    }
}

impl Command {
    /// Whether it must be alone in its group: what follows depends on it in more than rows.
    pub fn stands_alone(&self) -> bool {
        matches!(
            self,
            Command::CreateNamespace(..)
                | Command::UpdateNamespace(..)
                | Command::DeleteNamespace(..)
                | Command::TenantQuota(..)
                | Command::Checkpoint(..)
        )
    }

    /// Refuses it.
    pub fn refuse(self, error: impl Fn() -> StoreError) {
        match self {
            Command::Store(_, reply) | Command::Compose(_, reply) | Command::TakeBack(_, reply) => {
                drop(reply.send(Err(error())))
            }
            Command::Amend(_, reply) => drop(reply.send(Err(error()))),
            Command::Delete(_, _, reply) => drop(reply.send(Err(error()))),
            Command::CreateNamespace(_, _, reply) | Command::UpdateNamespace(_, _, _, reply) => {
                drop(reply.send(Err(error())));
            }
            Command::DeleteNamespace(_, _, reply)
            | Command::LetGo(_, _, _, reply)
            | Command::TenantQuota(_, _, reply)
            | Command::Settle(reply)
            | Command::Checkpoint(reply) => drop(reply.send(Err(error()))),
            Command::Sweep(reply) => drop(reply.send(Err(error()))),
        }
    }
}
