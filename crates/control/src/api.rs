//! The JSON of the admin API, shared by the node and the command line.
//!
//! | method and path | body | answer |
//! |---|---|---|
//! | `GET /v1/server` | | [`Server`] |
//! | `GET /v1/tenants` | | list of [`Tenant`] |
//! | `POST /v1/tenants` | [`NewTenant`] | [`Tenant`] |
//! | `GET, DELETE /v1/tenants/T` | | [`Tenant`]; nothing |
//! | `PUT /v1/tenants/T/quota` | [`Limits`] | [`Tenant`] |
//! | `GET /v1/keys[/T]` | | list of [`Key`], secrets left out |
//! | `POST /v1/keys/T` | [`NewKey`] | [`Key`] with its secret |
//! | `DELETE /v1/keys/ID` | | nothing |
//! | `GET /v1/namespaces` | | list of [`Namespace`] |
//! | `POST /v1/namespaces` | [`NewNamespace`] | [`Namespace`] |
//! | `GET, DELETE /v1/namespaces/N` | | [`Namespace`]; nothing |
//! | `PATCH /v1/namespaces/N` | [`NamespaceChange`] | [`Namespace`] |
//! | `GET /v1/hosts` | | list of [`Host`], secrets left out |
//! | `POST /v1/hosts` | [`NewHost`] | [`Host`] |
//! | `DELETE /v1/hosts/NQN` | | nothing |
//! | `POST /v1/grants/list` | [`GrantsAsked`] | [`GrantPage`] |
//! | `DELETE /v1/grants/ID` | | nothing |
//! | `DELETE /v1/tenants/T/grants` | | [`SessionsEnded`] |
//! | `GET /v1/modules` | | list of [`Module`] |
//! | `POST /v1/modules` | [`NewModule`] | [`Module`] |
//! | `DELETE /v1/modules/T/WHICH[/N]` | | nothing |
//! | `GET, DELETE /v1/tier/N` | | [`Tier`]; nothing |
//! | `PUT /v1/tier/N` | [`TierPolicy`] | [`Tier`] |
//! | `PUT /v1/tier/N/rules/RULE` | [`TierPolicy`] | [`Tier`] |
//! | `DELETE /v1/tier/N/rules/RULE` | | nothing |
//! | `POST /v1/tier/N/run` | | [`TierPass`] |
//! | `POST /v1/tier/N/recall` | [`Recall`] | [`Recalled`] |
//! | `POST /v1/tier-sweep` | | [`Swept`] |
//! | `POST /v1/scrub` | | [`ScrubReport`] |
//! | `POST /v1/lifecycle-run` | | [`LifecycleReport`] |
//!
//! Errors are [`crate::Error`] with the status of its kind.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use forebay_store::{Durability, Quota, Usage, Versioning};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use crate::grants::{
    Grant, GrantId, GrantKind, GrantPage, GrantedAccess, GrantedMemory, GrantsAsked, SessionsEnded,
};

/// A running server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Of the program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it began to serve.
    pub uptime_s: u64,
    /// Which doors are open where.
    pub doors: BTreeMap<String, String>,
    /// What keeps the data: `engine`, `memory`, `rados:POOL` or `rados:POOL/NAMESPACE`.
    pub backend: String,
    /// How it reaches the disk: `io_uring`, or `threads` and why.
    pub disk_io: String,
    /// Threads that serve connections.
    pub shards: usize,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// A name for people.
    pub display_name: String,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
    /// How many access keys it has.
    pub keys: usize,
    /// How many namespaces it owns.
    pub namespaces: usize,
    /// What they hold together.
    pub usage: Usage,
    /// The bound on that.
    pub quota: Quota,
}

/// A tenant to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// Its name.
    pub name: String,
    /// A name for people; the name itself when empty.
    #[serde(default)]
    pub display_name: String,
}

/// An access key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Its public half.
    pub access_key: String,
    /// Its secret half, in the answer that made it only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key: Option<String>,
    /// Whose it is.
    pub tenant: String,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
}

/// A key to be made: fresh when both are missing, else imported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// The public half.
    #[serde(default)]
    pub access_key: Option<String>,
    /// The secret half.
    #[serde(default)]
    pub secret_key: Option<String>,
}

/// A change of a quota: what is missing stays, `null` lifts the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The most bytes.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "given"
    )]
    pub bytes: Option<Option<u64>>,
    /// The most objects.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "given"
    )]
    pub objects: Option<Option<u64>>,
}

impl Limits {
    /// The quota that this change makes of `quota`.
    pub fn apply(self, quota: Quota) -> Quota {
        Quota {
            bytes: self.bytes.unwrap_or(quota.bytes),
            objects: self.objects.unwrap_or(quota.objects),
        }
    }
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Its owner.
    pub tenant: String,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
    /// When stores are answered.
    pub durability: DurabilityText,
    /// Whether old versions are kept.
    pub versioning: Versioning,
    /// Values expire after this many milliseconds.
    pub ttl_ms: Option<u64>,
    /// The bound on what it holds.
    pub quota: Quota,
    /// What it holds.
    pub usage: Usage,
    /// The namespace identifier by which NVMe hosts see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
}

/// A namespace to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewNamespace {
    /// Its name.
    pub name: String,
    /// Its owner; nobody named: the tenant that asks, which over the socket is the root.
    #[serde(default)]
    pub tenant: String,
    /// What else is chosen for it.
    #[serde(default)]
    pub config: NamespaceChange,
}

/// A change of a namespace: what is missing stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceChange {
    /// When stores are answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<DurabilityText>,
    /// Whether old versions are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versioning: Option<Versioning>,
    /// The age at which values expire, in milliseconds; `null` for never.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "given"
    )]
    pub ttl_ms: Option<Option<u64>>,
    /// The bound.
    #[serde(default)]
    pub quota: Limits,
    /// The namespace identifier by which NVMe hosts see it: 0 for any that is free, `null` for none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "given"
    )]
    pub nsid: Option<Option<u32>>,
}

/// A host that may connect to the NVMe doors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its NVMe Qualified Name.
    pub nqn: String,
    /// Whose namespaces it sees.
    pub tenant: String,
    /// Whether it must prove a secret (DH-HMAC-CHAP).
    pub chap: bool,
    /// Whether it has a key of TLS, and must come by TLS.
    #[serde(default)]
    pub tls: bool,
    /// When it was made known, in milliseconds since 1970.
    pub created: u64,
}

/// A host to be made known.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewHost {
    /// Its NVMe Qualified Name.
    pub nqn: String,
    /// Whose namespaces it sees.
    pub tenant: String,
    /// What it must prove to hold: `DHHC-1:...`, as `nvme gen-dhchap-key` prints it.
    #[serde(default)]
    pub chap_secret: Option<String>,
    /// The key of its TLS: `NVMeTLSkey-1:...`, as `nvme gen-tls-key` prints it. With one it must come by TLS.
    #[serde(default)]
    pub tls_key: Option<String>,
}

impl fmt::Debug for NewHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewHost({} of {})", self.nqn, self.tenant)
    }
}

/// Leave for a module to run, as [`AllowedModule`](crate::AllowedModule) is kept.
pub type Module = crate::AllowedModule;

/// A module to be allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewModule {
    /// For whom.
    pub tenant: String,
    /// Where; in all of the tenant's namespaces when missing.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A name by which calls find it.
    #[serde(default)]
    pub name: Option<String>,
    /// A number by which calls find it.
    #[serde(default)]
    pub number: Option<u32>,
    /// The function that is called when a call names none.
    #[serde(default)]
    pub function: Option<String>,
    /// Its bytes.
    pub source: ModuleSource,
}

/// Where a module's bytes are.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleSource {
    /// An object.
    Object {
        /// Its namespace.
        namespace: String,
        /// Its key.
        key: String,
    },
    /// Here, in base64.
    Base64(String),
}

impl ModuleSource {
    /// These bytes.
    pub fn of(wasm: &[u8]) -> ModuleSource {
        ModuleSource::Base64(base64_simd::STANDARD.encode_to_string(wasm))
    }

    /// The bytes that are here; `None` when they are elsewhere, or not base64.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            ModuleSource::Object { .. } => None,
            ModuleSource::Base64(text) => base64_simd::STANDARD.decode_to_vec(text).ok(),
        }
    }
}

impl fmt::Debug for ModuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModuleSource::Object { namespace, key } => write!(f, "fb://{namespace}/{key}"),
            ModuleSource::Base64(text) => write!(f, "{} characters", text.len()),
        }
    }
}

/// A durability as people write it: `sync`, or `relaxed:50ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DurabilityText(pub Durability);

/// The longest bound that a relaxed durability may have.
const RELAXED_MS_MAX: u32 = 60_000;

impl fmt::Display for DurabilityText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Durability::Sync => f.write_str("sync"),
            Durability::Relaxed { within_ms } => write!(f, "relaxed:{within_ms}ms"),
        }
    }
}

impl FromStr for DurabilityText {
    type Err = String;

    fn from_str(text: &str) -> Result<DurabilityText, String> {
        if text == "sync" {
            return Ok(DurabilityText(Durability::Sync));
        }
        text.strip_prefix("relaxed:")
            .and_then(|bound| bound.strip_suffix("ms"))
            .and_then(|bound| bound.parse().ok())
            .filter(|within_ms| (1..=RELAXED_MS_MAX).contains(within_ms))
            .map(|within_ms| DurabilityText(Durability::Relaxed { within_ms }))
            .ok_or_else(|| {
                format!(
                    "{text:?} is not a durability: `sync`, or `relaxed:Nms` with N from 1 to {RELAXED_MS_MAX}"
                )
            })
    }
}

impl Serialize for DurabilityText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DurabilityText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DurabilityText, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a scrub found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Values read and checked.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// Values that are damaged.
    pub damaged: u64,
    /// What is damaged now, as far as it is remembered.
    pub findings: Vec<Finding>,
}

/// A damaged part of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its namespace.
    pub namespace: String,
    /// Its key; bytes that are not UTF-8 are shown as U+FFFD.
    pub key: String,
    /// Its version, `null` for the one of a namespace without versions.
    pub version: Option<u64>,
    /// Which block and what is wrong with it.
    pub what: String,
}

/// Whether a value whose bytes are cold comes back when it is read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierRecall {
    /// It does.
    #[default]
    Read,
    /// It is read from where it is.
    Never,
}

/// Which values' bytes go to the cold tier by one rule: those for which all that is given holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierPolicy {
    /// Stored at least so long ago, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// Not read for so long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_read_for_ms: Option<u64>,
    /// Of more bytes than this; 64 KiB when it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub larger_than: Option<u64>,
    /// Keys that begin so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// What reading does.
    #[serde(default)]
    pub recall: TierRecall,
}

impl TierPolicy {
    /// Whether it bounds anything: one that does not would send everything away at once.
    pub fn says_something(&self) -> bool {
        self.after_ms.is_some()
            || self.not_read_for_ms.is_some()
            || self.larger_than.is_some()
            || !self.prefix.is_empty()
    }
}

/// A namespace and its cold tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// The namespace.
    pub namespace: String,
    /// What goes, by the names of its rules: whatever one of them takes.
    pub rules: BTreeMap<String, TierPolicy>,
    /// What the last pass came to, since the server began.
    pub last: Option<TierPass>,
}

/// What a pass over a namespace came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierPass {
    /// When it ended, in milliseconds since 1970.
    pub at: u64,
    /// Values whose bytes went.
    pub moved: u64,
    /// Those bytes.
    pub moved_bytes: u64,
    /// Values that the rules take, or any where there are no rules, and whose bytes are cold.
    pub cold: u64,
    /// Their bytes.
    pub cold_bytes: u64,
    /// Values that should have gone, but did not; the next pass tries again.
    pub failed: u64,
    /// Whether it was given up because the far side could not be reached.
    pub gave_up: bool,
}

/// Asks for a value's bytes to come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recall {
    /// Its key.
    pub key: String,
    /// Which version; the current one when it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// What came of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalled {
    /// Whether they had been away.
    pub recalled: bool,
}

/// What a sweep of the cold tier did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// Copies deleted to which nothing referred, and nothing did a day before.
    pub swept: u64,
    /// Copies to which nothing refers now: they go when a sweep finds them so a day later.
    #[serde(default)]
    pub waiting: u64,
}

/// What a run of the lifecycle rules did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LifecycleReport {
    /// Current values removed.
    pub expired: u64,
    /// Kept versions removed.
    pub versions: u64,
    /// Delete markers removed that hid nothing any more.
    pub markers: u64,
    /// Unfinished multipart uploads removed.
    pub uploads: u64,
    /// Removals that did not work; the next run tries again.
    pub failed: u64,
}

/// Tells a field that is `null` (`Some(None)`) from one that is missing (`None`, by `default`).
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}
