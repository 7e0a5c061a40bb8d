//! A store is asked by a namespace's name, and after a wait another namespace may have it, which may be another tenant's.

use forebay_store::{Address, NamespaceInfo, Result, Store, StoreError};

use crate::index::Place;

/// Refuses a namespace that has lost its name. The answer is worth something in the turn in which it is given: a store finds a
/// namespace as soon as it is asked. Numbers are never used again.
pub(crate) fn still<S: Store>(store: &S, meant: &NamespaceInfo) -> Result<()> {
    let name = &meant.name;
    match store.namespace(name)?.id == meant.id {
        true => Ok(()),
        false => Err(StoreError::no_namespace(name)),
    }
}

/// The address of a place, for a call that begins in this turn.
///
/// # Errors
/// As [`still`].
pub(crate) fn address<'p, S: Store>(store: &S, place: &'p Place) -> Result<Address<'p>> {
    still(store, &place.namespace)?;
    Ok(Address::object(&place.namespace.name, &place.key))
}
