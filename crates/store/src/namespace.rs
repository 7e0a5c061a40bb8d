//! Namespaces: flat ordered key spaces with their own limits, owned by one tenant each.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::{NAMESPACES_MAX, STAGED_BYTES_MIN, check_name};
use crate::{Attributes, ErrorKind, Result, Space, StoreError};

/// When a store call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// After data and record are on stable storage.
    #[default]
    Sync,
    /// At once; on stable storage at most this many milliseconds later. A crash may lose that much.
    Relaxed {
        /// The bound.
        within_ms: u32,
    },
}

/// Whether replaced and deleted values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Versioning {
    /// Never were: a write replaces, a delete removes.
    #[default]
    Off,
    /// Every write makes a new version, a delete makes a delete marker.
    Enabled,
    /// New writes replace the null version only; other versions stay.
    Suspended,
}

/// A bound on what a namespace or tenant holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quota {
    /// Bytes of values, staged parts and kept versions.
    pub bytes: Option<u64>,
    /// Values, kept versions included.
    pub objects: Option<u64>,
}

impl Quota {
    /// Refuses what a bounded namespace or tenant, as `whose` says, may not grow by when it has `taken` so much. What does not grow is never
    /// refused, also beyond a bound that came later.
    ///
    /// # Errors
    /// [`ErrorKind::QuotaExceeded`].
    pub fn admit(self, taken: Usage, growth: Usage, whose: &str) -> Result<()> {
        let over = |taken: u64, growth: u64, bound: Option<u64>| {
            growth > 0 && bound.is_some_and(|bound| growth > bound.saturating_sub(taken))
        };
        if over(taken.bytes, growth.bytes, self.bytes)
            || over(taken.objects, growth.objects, self.objects)
        {
            return Err(StoreError::new(
                ErrorKind::QuotaExceeded,
                format!("the {whose}'s quota has no room"),
            ));
        }
        Ok(())
    }
}

/// What is chosen for a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamespaceConfig {
    /// Its owner.
    pub tenant: String,
    /// Its bound.
    pub quota: Quota,
    /// Values expire this long after they were stored, in milliseconds. Counts for values stored from now on, and not for
    /// staged parts.
    pub ttl_ms: Option<u64>,
    /// When stores are answered.
    pub durability: Durability,
    /// Whether old versions are kept; once they were, it cannot be [`Versioning::Off`] again.
    pub versioning: Versioning,
    /// What doors keep with it: policies, rules, tags.
    pub attributes: Attributes,
}

impl NamespaceConfig {
    /// Refuses a configuration that no namespace may have.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the tenant is not a legal name.
    pub fn check(&self) -> Result<()> {
        check_name(&self.tenant)
    }

    /// Refuses `next` as the successor of this configuration.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the tenant changes, or when versioning goes back to [`Versioning::Off`]: kept versions
    /// would have nobody to account for them.
    pub fn check_change(&self, next: &NamespaceConfig) -> Result<()> {
        if next.tenant != self.tenant {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "a namespace's tenant cannot be changed",
            ));
        }
        if next.versioning == Versioning::Off && self.versioning != Versioning::Off {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "versioning can be suspended, but not switched off again",
            ));
        }
        Ok(())
    }

    /// When a value stored at `now` expires, if it does: the earlier of its own time and the namespace's. Staged parts know
    /// only their own.
    pub fn expires(&self, space: Space, now: u64, own: Option<u64>) -> Option<u64> {
        let by_ttl = self
            .ttl_ms
            .filter(|_| space == Space::Objects)
            .map(|ttl| now.saturating_add(ttl));
        [own, by_ttl].into_iter().flatten().min()
    }
}

/// A namespace as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its name, unique in the store.
    pub name: String,
    /// Its number, never reused in this store.
    pub id: u32,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
    /// Grows with every change of `config`, and is no other namespace's of this name; lets doors keep what they derived from it.
    pub revision: u64,
    /// What was chosen.
    pub config: NamespaceConfig,
}

impl NamespaceInfo {
    /// The revision that the namespace of this number begins with: none that another one of its name ever has.
    pub fn first_revision(id: u32) -> u64 {
        u64::from(id) << 32 | 1
    }
}

/// Refuses one more namespace of a tenant that has as many of these as it may.
///
/// # Errors
/// [`ErrorKind::QuotaExceeded`].
pub fn check_namespaces(namespaces: &[Arc<NamespaceInfo>], tenant: &str) -> Result<()> {
    let own = namespaces
        .iter()
        .filter(|info| info.config.tenant == tenant);
    match own.count() < NAMESPACES_MAX {
        true => Ok(()),
        false => Err(StoreError::new(
            ErrorKind::QuotaExceeded,
            format!("a tenant has at most {NAMESPACES_MAX} namespaces"),
        )),
    }
}

/// Whose usage or quota is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// One namespace.
    Namespace(&'a str),
    /// All namespaces of a tenant.
    Tenant(&'a str),
}

/// What a namespace or tenant holds, exactly. An expired value counts until the store has reclaimed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Current values, kept versions, delete markers, and staged values of less than [`STAGED_BYTES_MIN`] bytes: whatever takes a
    /// place that its bytes do not tell of.
    pub objects: u64,
    /// Bytes of current values, kept versions and staged parts.
    pub bytes: u64,
}

impl Usage {
    /// What a delete marker counts.
    pub const MARKER: Usage = Usage {
        objects: 1,
        bytes: 0,
    };

    /// What a value of so many bytes counts.
    #[must_use]
    pub fn of(space: Space, bytes: u64) -> Usage {
        let counts = match space {
            Space::Objects => true,
            Space::Staging => bytes < STAGED_BYTES_MIN,
        };
        Usage {
            objects: u64::from(counts),
            bytes,
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Usage) -> Usage {
        Usage {
            objects: self.objects.saturating_add(other.objects),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// What is left of it without the other; none of what the other has more.
    #[must_use]
    pub fn less(self, other: Usage) -> Usage {
        Usage {
            objects: self.objects.saturating_sub(other.objects),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}
