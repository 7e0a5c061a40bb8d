//! Hosts: made known, and forgotten.

use std::sync::Arc;

use forebay_store::Store;

use crate::api::NewHost;
use crate::nvme::Host;
use crate::records::HOSTS;
use crate::{Error, Identities, Kind, Result, names};

impl<S: Store> Identities<S> {
    /// All hosts by name.
    pub fn hosts(&self) -> Vec<Arc<Host>> {
        self.nvme.hosts()
    }

    /// Makes a host known.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for the tenant, [`Kind::Exists`], [`Kind::Invalid`] for the name, the secret or the key, or of the store.
    pub async fn create_host(&self, new: &NewHost) -> Result<Arc<Host>> {
        let NewHost {
            nqn,
            tenant,
            chap_secret,
            tls_key,
        } = new;
        names::check_nqn(nqn)?;
        if let Some(secret) = chap_secret {
            names::check_chap_secret(secret)?;
        }
        if let Some(key) = tls_key {
            names::check_tls_key(key)?;
        }
        let _changing = self.begin_change().await?;
        self.tenant(tenant)?;
        if self.nvme.known.read().hosts.contains_key(nqn) {
            return Err(Error::new(
                Kind::Exists,
                format!("host {nqn:?} is known already"),
            ));
        }
        let host = Arc::new(Host {
            nqn: nqn.clone(),
            tenant: tenant.clone(),
            chap_secret: chap_secret.clone(),
            tls_key: tls_key.clone(),
            created: self.now_ms(),
        });
        self.records.create(HOSTS, nqn, &*host).await?;
        self.nvme.change(|known| {
            known.hosts.insert(nqn.clone(), host.clone());
        });
        Ok(host)
    }

    /// Forgets a host: its associations end, and it cannot connect again.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or of the store.
    pub async fn remove_host(&self, nqn: &str) -> Result<()> {
        let _changing = self.begin_change().await?;
        if !self.nvme.known.read().hosts.contains_key(nqn) {
            return Err(Error::new(
                Kind::NotFound,
                format!("there is no host {:?}", names::shown(nqn)),
            ));
        }
        self.forget_hosts(&[nqn.to_owned()]).await
    }

    /// Forgets the hosts of a tenant that is being removed.
    pub(crate) async fn remove_hosts_of(&self, tenant: &str) -> Result<()> {
        let hosts = self.nvme.hosts();
        let theirs = hosts.iter().filter(|host| host.tenant == tenant);
        let theirs: Vec<String> = theirs.map(|host| host.nqn.clone()).collect();
        match theirs.is_empty() {
            true => Ok(()),
            false => self.forget_hosts(&theirs).await,
        }
    }

    async fn forget_hosts(&self, nqns: &[String]) -> Result<()> {
        for nqn in nqns {
            self.records.forget(HOSTS, nqn).await?;
        }
        self.nvme.change(|known| {
            known.hosts.retain(|nqn, _| !nqns.contains(nqn));
        });
        Ok(())
    }
}
