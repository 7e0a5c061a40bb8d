//! Administering a cold tier: the rules of namespaces, and what is done at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use forebay_mem::Buf;
use forebay_store::{
    Address, ByteRange, Condition, ErrorKind, KEY_BYTES_MAX, Seal, Store, StoreOptions, Upload,
    VersionId,
};

use crate::api::{Recalled, Swept, Tier, TierPass, TierPolicy};
use crate::records::Records;
use crate::{Admin, Error, Kind, Result, SYSTEM_NAMESPACE, names, secrets};

type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The cold tier of the process around the API. Namespaces that are named exist.
pub trait ColdTier: Send + Sync + 'static {
    /// The rules of a namespace, and what its last pass came to.
    ///
    /// # Errors
    /// Of the store.
    fn tier(&self, namespace: &str) -> Result<Tier>;
    /// Gives a namespace one rule instead of those that it has, or takes them all away.
    fn set<'a>(&'a self, namespace: &'a str, policy: Option<TierPolicy>) -> Doing<'a, Tier>;
    /// Gives a namespace a rule beside those of other names, or takes it away.
    fn set_rule<'a>(
        &'a self,
        namespace: &'a str,
        rule: &'a str,
        policy: Option<TierPolicy>,
    ) -> Doing<'a, Tier>;
    /// Applies the rules of a namespace now.
    fn run<'a>(&'a self, namespace: &'a str) -> Doing<'a, TierPass>;
    /// Brings the bytes of a value back; `false` when they are here.
    fn recall<'a>(&'a self, address: Address<'a>, version: Option<VersionId>) -> Doing<'a, bool>;
    /// Deletes copies to which nothing has referred for a day.
    fn sweep(&self) -> Doing<'_, Swept>;
}

impl<S: Store> Admin<S> {
    fn cold(&self) -> Result<Arc<dyn ColdTier>> {
        self.cold_tier().ok_or_else(|| {
            Error::new(
                Kind::Invalid,
                "this server has no cold tier: it is started with --cold s3://BUCKET",
            )
        })
    }

    /// The cold-tier rules of a namespace.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Invalid`] without a cold tier.
    pub fn tier(&self, namespace: &str) -> Result<Tier> {
        let cold = self.cold()?;
        self.found(namespace)?;
        cold.tier(namespace)
    }

    /// Gives a namespace one rule instead of those that it has.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Invalid`] without a cold tier, or for a policy that says nothing.
    pub async fn set_tier(&self, namespace: &str, policy: TierPolicy) -> Result<Tier> {
        let cold = self.cold()?;
        self.found(namespace)?;
        check(&policy)?;
        let set = cold.set(namespace, Some(policy)).await?;
        tracing::info!(namespace, "tier rule set");
        Ok(set)
    }

    /// Adds a rule beside those that a namespace has; one of that name is replaced.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Invalid`] without a cold tier, for a name that is none, or for a policy that says nothing;
    /// [`Kind::Limit`] where there are as many as there may be.
    pub async fn add_tier_rule(
        &self,
        namespace: &str,
        rule: &str,
        policy: TierPolicy,
    ) -> Result<Tier> {
        let cold = self.cold()?;
        self.found(namespace)?;
        names::check_rule(rule)?;
        check(&policy)?;
        let set = cold.set_rule(namespace, rule, Some(policy)).await?;
        tracing::info!(namespace, rule, "tier rule added");
        Ok(set)
    }

    /// Takes one rule of a namespace away. What it sent away comes back when it is read, unless another one says never.
    ///
    /// # Errors
    /// As [`Admin::tier`]; [`Kind::NotFound`] for a rule that there is not, too.
    pub async fn remove_tier_rule(&self, namespace: &str, rule: &str) -> Result<()> {
        let cold = self.cold()?;
        self.found(namespace)?;
        cold.set_rule(namespace, rule, None).await?;
        tracing::info!(namespace, rule, "tier rule removed");
        Ok(())
    }

    /// Takes all rules of a namespace away. Bytes that are cold come back when they are read.
    ///
    /// # Errors
    /// As [`Admin::tier`].
    pub async fn remove_tier(&self, namespace: &str) -> Result<()> {
        let cold = self.cold()?;
        self.found(namespace)?;
        cold.set(namespace, None).await?;
        tracing::info!(namespace, "tier rules removed");
        Ok(())
    }

    /// Applies the rules of a namespace now.
    ///
    /// # Errors
    /// As [`Admin::tier`].
    pub async fn run_tier(&self, namespace: &str) -> Result<TierPass> {
        let cold = self.cold()?;
        self.found(namespace)?;
        cold.run(namespace).await
    }

    /// Brings the bytes of a value back.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Limit`] while the far side cannot be reached or the store has no room.
    pub async fn recall(
        &self,
        namespace: &str,
        key: &[u8],
        version: Option<u64>,
    ) -> Result<Recalled> {
        let cold = self.cold()?;
        self.found(namespace)?;
        let address = Address::object(namespace, key);
        let recalled = cold.recall(address, version.map(VersionId)).await?;
        Ok(Recalled { recalled })
    }

    /// Deletes copies to which nothing has referred for a day.
    ///
    /// # Errors
    /// [`Kind::Limit`] while the far side cannot be reached.
    pub async fn sweep_tier(&self) -> Result<Swept> {
        self.cold()?.sweep().await
    }
}

/// Refuses what would send everything away at once, or takes nothing.
fn check(policy: &TierPolicy) -> Result<()> {
    if !policy.says_something() {
        return Err(Error::new(
            Kind::Invalid,
            "say what goes: an age, an idle time, a size or a prefix",
        ));
    }
    if policy.prefix.len() > KEY_BYTES_MAX {
        return Err(Error::new(
            Kind::Invalid,
            format!("no key is longer than {KEY_BYTES_MAX} bytes, and so is no prefix of one"),
        ));
    }
    Ok(())
}

/// Where a store's name is kept.
const NAME: &[u8] = b"store/name";

/// A name that no other store has, for what stores keep side by side elsewhere. Made when it is asked for the first time.
///
/// # Errors
/// Of the store, or of the kernel's random numbers.
pub async fn store_name<S: Store>(store: &Arc<S>) -> Result<String> {
    // Makes the namespace when it is missing.
    Records::open(store.clone()).await?;
    let address = Address::object(SYSTEM_NAMESPACE, NAME);
    loop {
        match store.retrieve(address, None, ByteRange::Full).await {
            Ok(object) => {
                return String::from_utf8(object.bytes().await?)
                    .map_err(|_| Error::new(Kind::Failed, "the store's name cannot be read"));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let fresh = secrets::uuid().map_err(|error| Error::new(Kind::Failed, error.to_string()))?;
        let options = StoreOptions {
            size: Some(fresh.len() as u64),
            condition: Condition::IfAbsent,
        };
        // Another process on the same store may be first: then its name counts.
        let made = async {
            let mut upload = store.store(address, options).await?;
            upload.write(Buf::from(fresh.into_bytes())).await?;
            upload.commit(Seal::default()).await
        };
        match made.await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => {}
            Err(error) => return Err(error.into()),
        }
    }
}
