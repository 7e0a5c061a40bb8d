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
            book.promised.objects -= self.usage.objects;
            book.promised.bytes -= self.usage.bytes;
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

    /// Promises room for `growth`. What `instead` was promised counts as given back.
    pub fn promise(
        self: &Arc<Self>,
        id: u32,
        growth: Usage,
        instead: Option<&Room>,
    ) -> Result<Room> {
        let mut state = self.state.lock();
        let back = instead.map_or_else(Usage::default, |room| room.usage);
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
            book.promised = book.promised.plus(growth);
        }
        Ok(Room {
            books: self.clone(),
            namespace: id,
            usage: growth,
        })
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
