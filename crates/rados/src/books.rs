//! What namespaces and tenants hold, as this gateway knows it, and what it has promised.
//!
//! A gateway knows its own changes as they happen; what other gateways changed comes from the index's counters some time later.
//! So with one gateway usage is exact and quotas hold; with several, a quota can be exceeded by what the others stored meanwhile.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_store::{NamespaceInfo, Quota, Result, Usage};
use parking_lot::Mutex;

use crate::under_way::Sum;

#[derive(Default)]
pub(crate) struct Books {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    books: HashMap<u32, Book>,
    tenants: HashMap<String, Quota>,
}

#[derive(Default)]
struct Book {
    tenant: String,
    quota: Quota,
    others: Sum,
    own: Sum,
    promised: Usage,
}

impl Book {
    fn held(&self) -> Usage {
        let sum = self.others.plus(self.own);
        Usage {
            objects: sum.objects.max(0) as u64,
            bytes: sum.bytes.max(0) as u64,
        }
    }

    fn taken(&self) -> Usage {
        self.held().plus(self.promised)
    }
}

/// Room promised to a value under way; given back when dropped.
pub(crate) struct Room {
    books: Arc<Books>,
    namespace: u32,
    usage: Usage,
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(book) = self.books.state.lock().books.get_mut(&self.namespace) {
            book.promised = book.promised.less(self.usage);
        }
    }
}

impl Books {
    /// Knows this namespace from now on, or its changed configuration; `others` is what other gateways' changes add up to.
    pub fn open(&self, info: &NamespaceInfo, others: Option<Sum>) {
        let mut state = self.state.lock();
        let book = state.books.entry(info.id).or_default();
        info.config.tenant.clone_into(&mut book.tenant);
        book.quota = info.config.quota;
        if let Some(others) = others {
            book.others = others;
        }
    }

    /// Only these namespaces are left, and these tenants have bounds.
    pub fn keep(&self, namespaces: impl Fn(u32) -> bool, tenants: &[(String, Quota)]) {
        let mut state = self.state.lock();
        state.books.retain(|id, _| namespaces(*id));
        state.tenants = tenants.iter().cloned().collect();
    }

    /// What a namespace holds.
    pub fn namespace(&self, id: u32) -> Usage {
        let state = self.state.lock();
        state.books.get(&id).map_or_else(Usage::default, Book::held)
    }

    /// What a tenant's namespaces hold.
    pub fn tenant(&self, tenant: &str) -> Usage {
        let state = self.state.lock();
        let books = state.books.values().filter(|book| book.tenant == tenant);
        books.fold(Usage::default(), |sum, book| sum.plus(book.held()))
    }

    /// Whether anything bounds what a namespace may hold.
    pub fn is_bounded(&self, id: u32) -> bool {
        let state = self.state.lock();
        state.books.get(&id).is_some_and(|book| {
            let tenant = state.tenants.get(&book.tenant).copied();
            [Some(book.quota), tenant]
                .into_iter()
                .flatten()
                .any(|quota| quota != Quota::default())
        })
    }

    /// Promises room for `growth`, in place of what `room` was promised, which stays as it is when that is refused.
    pub fn promise(
        self: &Arc<Self>,
        id: u32,
        growth: Usage,
        room: &mut Option<Room>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let back = room.as_ref().map_or_else(Usage::default, |room| room.usage);
        if let Some(book) = state.books.get(&id) {
            let taken = book.taken().less(back);
            book.quota.admit(taken, growth, "namespace")?;
            if let Some(quota) = state.tenants.get(&book.tenant) {
                let books = state.books.values();
                let books = books.filter(|other| other.tenant == book.tenant);
                let taken = books.fold(Usage::default(), |sum, book| sum.plus(book.taken()));
                quota.admit(taken.less(back), growth, "tenant")?;
            }
        }
        if let Some(book) = state.books.get_mut(&id) {
            book.promised = book.promised.less(back).plus(growth);
        }
        match room {
            Some(room) => room.usage = growth,
            None => {
                *room = Some(Room {
                    books: self.clone(),
                    namespace: id,
                    usage: growth,
                });
            }
        }
        Ok(())
    }

    /// A change of this gateway's happened.
    pub fn changed(&self, id: u32, by: Sum) {
        if let Some(book) = self.state.lock().books.get_mut(&id) {
            book.own = book.own.plus(by);
        }
    }

    /// The same, and the promise that it was made under ends at the same moment.
    pub fn fulfilled(&self, id: u32, by: Sum, room: Option<Room>) {
        self.changed(id, by);
        drop(room);
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::{ErrorKind, NamespaceConfig};

    use super::*;

    fn bytes(bytes: u64) -> Usage {
        Usage { objects: 1, bytes }
    }

    #[test]
    fn what_a_commit_needs_is_promised_once() {
        let books = Arc::new(Books::default());
        books.open(&bounded(1, 100), None);
        let (mut one, mut other) = (None, None);
        books.promise(1, bytes(60), &mut one).unwrap();
        // When it ends what it replaces is looked at again.
        books.promise(1, bytes(60), &mut one).unwrap();
        let promised = books.promise(1, bytes(40), &mut other);
        promised.expect("both fit");
        let refused = books.promise(1, bytes(70), &mut one).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
        books.promise(1, bytes(50), &mut one).unwrap();
        books.promise(1, bytes(50), &mut other).unwrap();
        drop((one, other));
        books.promise(1, bytes(100), &mut None).unwrap();
    }

    fn bounded(id: u32, bytes: u64) -> NamespaceInfo {
        let config = NamespaceConfig {
            tenant: "acme".to_owned(),
            quota: Quota {
                objects: None,
                bytes: Some(bytes),
            },
            ..NamespaceConfig::default()
        };
        NamespaceInfo {
            name: "bounded".to_owned(),
            id,
            created: 0,
            revision: 1,
            config,
        }
    }
}
