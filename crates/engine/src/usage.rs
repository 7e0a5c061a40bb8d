//! What namespaces and tenants hold, exactly, and their bounds.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_store::{ErrorKind, Quota, Result, StoreError, Usage};
use parking_lot::Mutex;

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    used: Usage,
    reserved: Usage,
    quota: Quota,
    /// How often something was put there.
    growths: u64,
}

#[derive(Debug, Default)]
struct Accounts {
    namespaces: HashMap<u32, (String, Account)>,
    tenants: HashMap<String, Account>,
}

/// All accounts. Only the journal's thread changes what is used; anybody reserves.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    accounts: Mutex<Accounts>,
}

/// Room promised to a value on its way; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    ledger: Arc<Ledger>,
    namespace: u32,
    held: Usage,
}

impl Ledger {
    pub fn open_namespace(&self, id: u32, tenant: &str, quota: Quota, used: Usage) {
        let mut accounts = self.accounts.lock();
        let account = Account {
            used,
            quota,
            ..Account::default()
        };
        accounts.namespaces.insert(id, (tenant.to_owned(), account));
        let tenant = accounts.tenants.entry(tenant.to_owned()).or_default();
        tenant.used = tenant.used.plus(used);
    }

    /// Forgets an empty namespace.
    pub fn close_namespace(&self, id: u32) {
        let mut accounts = self.accounts.lock();
        if let Some((tenant, account)) = accounts.namespaces.remove(&id)
            && let Some(tenant) = accounts.tenants.get_mut(&tenant)
        {
            tenant.used = tenant.used.less(account.used);
            tenant.reserved = tenant.reserved.less(account.reserved);
        }
    }

    /// Puts right what a change that did not happen had counted.
    pub fn set_used(&self, id: u32, used: Usage) {
        let mut accounts = self.accounts.lock();
        let Some((_, account)) = accounts.namespaces.get(&id) else {
            return;
        };
        let former = account.used;
        accounts.each(id, |account| {
            account.used = account.used.less(former).plus(used);
        });
    }

    pub fn set_quota(&self, id: u32, quota: Quota) {
        if let Some((_, account)) = self.accounts.lock().namespaces.get_mut(&id) {
            account.quota = quota;
        }
    }

    pub fn set_tenant_quota(&self, tenant: &str, quota: Quota) {
        let mut accounts = self.accounts.lock();
        accounts.tenants.entry(tenant.to_owned()).or_default().quota = quota;
    }

    pub fn tenant_quota(&self, tenant: &str) -> Quota {
        let accounts = self.accounts.lock();
        accounts
            .tenants
            .get(tenant)
            .map(|account| account.quota)
            .unwrap_or_default()
    }

    pub fn used(&self, id: u32) -> Usage {
        let accounts = self.accounts.lock();
        accounts
            .namespaces
            .get(&id)
            .map(|(_, account)| account.used)
            .unwrap_or_default()
    }

    /// How often something was put into a namespace since the store was opened.
    pub fn growths(&self, id: u32) -> u64 {
        let accounts = self.accounts.lock();
        let account = accounts.namespaces.get(&id);
        account.map_or(0, |(_, account)| account.growths)
    }

    /// A reservation of nothing.
    pub fn reservation(self: &Arc<Self>, namespace: u32) -> Reservation {
        Reservation {
            ledger: self.clone(),
            namespace,
            held: Usage::default(),
        }
    }

    /// Exchanges `freed` and the reservation for `grown`, or changes nothing when a quota has no room for that without what is `exempt`.
    pub fn settle(
        &self,
        namespace: u32,
        grown: Usage,
        exempt: Usage,
        freed: Usage,
        reservation: Option<&mut Reservation>,
    ) -> Result<()> {
        let mut accounts = self.accounts.lock();
        let held = reservation
            .as_ref()
            .map_or_else(Usage::default, |held| held.held);
        let growth = grown.less(exempt).less(freed);
        accounts.admit(namespace, growth, held)?;
        accounts.each(namespace, |account| {
            account.used = account.used.plus(grown).less(freed);
            account.reserved = account.reserved.less(held);
            account.growths += u64::from(grown != Usage::default());
        });
        if let Some(reservation) = reservation {
            reservation.held = Usage::default();
        }
        Ok(())
    }
}

impl Accounts {
    fn each(&mut self, namespace: u32, mut change: impl FnMut(&mut Account)) {
        if let Some((tenant, account)) = self.namespaces.get_mut(&namespace) {
            change(account);
            if let Some(account) = self.tenants.get_mut(tenant) {
                change(account);
            }
        }
    }

    /// Refuses growth that a quota has no room for; `held` of what is reserved is the caller's.
    fn admit(&self, namespace: u32, growth: Usage, held: Usage) -> Result<()> {
        let Some((tenant, account)) = self.namespaces.get(&namespace) else {
            return Err(StoreError::new(
                ErrorKind::NoSuchNamespace,
                "the namespace was deleted meanwhile",
            ));
        };
        within(account, growth, held, "namespace")?;
        match self.tenants.get(tenant) {
            Some(account) => within(account, growth, held, "tenant"),
            None => Ok(()),
        }
    }
}

impl Reservation {
    /// Holds at least `needed` from now on.
    pub fn raise(&mut self, needed: Usage) -> Result<()> {
        let more = needed.less(self.held);
        if more == Usage::default() {
            return Ok(());
        }
        let mut accounts = self.ledger.accounts.lock();
        accounts.admit(self.namespace, more, Usage::default())?;
        accounts.each(self.namespace, |account| {
            account.reserved = account.reserved.plus(more);
        });
        self.held = self.held.plus(more);
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.held != Usage::default() {
            let held = self.held;
            let mut accounts = self.ledger.accounts.lock();
            accounts.each(self.namespace, |account| {
                account.reserved = account.reserved.less(held);
            });
        }
    }
}

fn within(account: &Account, growth: Usage, held: Usage, whose: &str) -> Result<()> {
    let taken = account.used.plus(account.reserved).less(held);
    account.quota.admit(taken, growth, whose)
}
