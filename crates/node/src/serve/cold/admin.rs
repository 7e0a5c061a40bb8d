//! What administration asks of the cold tier.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use forebay_control::api::{Swept, Tier, TierPass, TierPolicy, TierRecall};
use forebay_control::{ColdTier, Error, Kind, Result};
use forebay_store::{Address, Attributes, ErrorKind, NamespaceInfo, Store, VersionId};
use forebay_tier::cold::{Cold, Mover, Passed, Policy, RULES_MAX, Recall, Rules};

use crate::serve::leaf::Leaf;

/// The cold tier, as it is administered.
pub struct Administered {
    pub store: Cold<Leaf>,
    pub mover: Arc<Mover<Leaf>>,
}

impl Administered {
    fn shown(&self, info: &NamespaceInfo) -> Tier {
        let rules = Rules::of(info);
        let rules = rules
            .iter()
            .map(|(name, policy)| (name.to_owned(), shown(policy)));
        Tier {
            namespace: info.name.clone(),
            rules: rules.collect(),
            last: self.mover.passed(info).map(told),
        }
    }

    /// Gives a namespace the rules that are made of its attributes.
    async fn change(
        &self,
        namespace: &str,
        change: impl Fn(&Attributes) -> Result<Rules>,
    ) -> Result<Tier> {
        loop {
            let info = self.store.namespace(namespace)?;
            let mut config = info.config.clone();
            let rules = change(&config.attributes)?;
            config.attributes = rules.keep(&config.attributes).ok_or_else(|| {
                Error::new(Kind::Invalid, "the namespace has no room for the rules")
            })?;
            let revision = Some(info.revision);
            let updated = self.store.update_namespace(namespace, revision, config);
            match updated.await {
                Ok(info) => return Ok(self.shown(&info)),
                // Somebody else changed it meanwhile: that change is kept.
                Err(error) if error.kind() == ErrorKind::PreconditionFailed => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl ColdTier for Administered {
    fn tier(&self, namespace: &str) -> Result<Tier> {
        Ok(self.shown(&*self.store.namespace(namespace)?))
    }

    fn set<'a>(
        &'a self,
        namespace: &'a str,
        policy: Option<TierPolicy>,
    ) -> Pin<Box<dyn Future<Output = Result<Tier>> + Send + 'a>> {
        let rules = policy.map(|policy| Rules::only(meant(policy)));
        let rules = rules.unwrap_or_default();
        Box::pin(self.change(namespace, move |_| Ok(rules.clone())))
    }

    fn set_rule<'a>(
        &'a self,
        namespace: &'a str,
        rule: &'a str,
        policy: Option<TierPolicy>,
    ) -> Pin<Box<dyn Future<Output = Result<Tier>> + Send + 'a>> {
        let policy = policy.map(meant);
        Box::pin(self.change(namespace, move |attributes| {
            let mut rules = Rules::kept(attributes).map_err(|error| {
                let message = format!("the rules that there are cannot be read: {error}");
                Error::new(Kind::Failed, message)
            })?;
            match &policy {
                Some(policy) if rules.add(rule, policy.clone()) => Ok(rules),
                Some(_) => Err(Error::full(format!(
                    "a namespace has at most {RULES_MAX} rules"
                ))),
                None if rules.remove(rule) => Ok(rules),
                None => Err(Error::new(
                    Kind::NotFound,
                    format!("{namespace} has no rule {rule:?}"),
                )),
            }
        }))
    }

    fn run<'a>(
        &'a self,
        namespace: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<TierPass>> + Send + 'a>> {
        Box::pin(async move { Ok(told(self.mover.run(namespace).await?)) })
    }

    fn recall<'a>(
        &'a self,
        address: Address<'a>,
        version: Option<VersionId>,
    ) -> Pin<Box<dyn Future<Output = Result<bool>> + Send + 'a>> {
        Box::pin(async move { Ok(self.mover.recall(address, version).await?) })
    }

    fn sweep(&self) -> Pin<Box<dyn Future<Output = Result<Swept>> + Send + '_>> {
        Box::pin(async move {
            let done = self.mover.sweep().await?;
            Ok(Swept {
                swept: done.deleted,
                waiting: done.waiting,
            })
        })
    }
}

fn shown(policy: &Policy) -> TierPolicy {
    TierPolicy {
        after_ms: policy.after_ms,
        not_read_for_ms: policy.not_read_for_ms,
        larger_than: Some(policy.larger_than),
        prefix: policy.prefix.clone(),
        recall: match policy.recall {
            Recall::Read => TierRecall::Read,
            Recall::Never => TierRecall::Never,
        },
    }
}

fn meant(policy: TierPolicy) -> Policy {
    let usual = Policy::default();
    Policy {
        after_ms: policy.after_ms,
        not_read_for_ms: policy.not_read_for_ms,
        larger_than: policy.larger_than.unwrap_or(usual.larger_than),
        prefix: policy.prefix,
        recall: match policy.recall {
            TierRecall::Read => Recall::Read,
            TierRecall::Never => Recall::Never,
        },
    }
}

fn told(passed: Passed) -> TierPass {
    TierPass {
        at: passed.at,
        moved: passed.moved,
        moved_bytes: passed.moved_bytes,
        cold: passed.cold,
        cold_bytes: passed.cold_bytes,
        failed: passed.failed,
        gave_up: passed.gave_up,
    }
}
