//! The namespace of keys and values that a command is in.

use std::sync::Arc;

use forebay_proto::nvme::Status;
use forebay_store::{Address, NamespaceInfo, Store};

use super::status::of_store;

/// The store's namespace that a command was let into. A command waits for its host for as long as the host likes; its name may be
/// another's by then, which its host must not reach. So the name is asked for anew behind every wait, right before the store is called.
#[derive(Debug)]
pub(super) struct Entered<'a, S> {
    pub(super) store: &'a S,
    name: &'a str,
    id: u32,
}

/// A key of it.
#[derive(Debug)]
pub(super) struct Named<'a, S> {
    pub(super) within: &'a Entered<'a, S>,
    pub(super) key: &'a [u8],
}

impl<'a, S: Store> Entered<'a, S> {
    /// `id`: its number, which no other ever has.
    pub(super) fn new(store: &'a S, name: &'a str, id: u32) -> Entered<'a, S> {
        Entered { store, name, id }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// What the store says of it, as long as it is there.
    pub(super) fn info(&self) -> Result<Arc<NamespaceInfo>, Status> {
        let info = self.store.namespace(self.name);
        let info = info.map_err(|error| of_store(&error))?;
        match info.id == self.id {
            true => Ok(info),
            false => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
        }
    }

    /// Its name, as long as it is there.
    pub(super) fn name(&self) -> Result<&'a str, Status> {
        self.info().map(|_| self.name)
    }

    pub(super) fn key(&'a self, key: &'a [u8]) -> Named<'a, S> {
        Named { within: self, key }
    }
}

impl<'a, S: Store> Named<'a, S> {
    pub(super) fn store(&self) -> &'a S {
        self.within.store
    }

    /// Where it is now, as long as its namespace is there.
    pub(super) fn address(&self) -> Result<Address<'a>, Status> {
        Ok(Address::object(self.within.name()?, self.key))
    }
}
