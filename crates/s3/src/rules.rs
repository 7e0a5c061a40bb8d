//! What buckets say of who may do what with them, parsed.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_proto::s3::cors;
use forebay_proto::s3::lifecycle;
use forebay_proto::s3::policy::Policy;
use forebay_store::NamespaceInfo;
use parking_lot::RwLock;

use crate::bucket_config;

/// The most buckets whose parsed rules are kept, and the most bytes that those were parsed from; beyond it all are parsed anew.
const KEPT_MAX: usize = 4096;
const KEPT_BYTES_MAX: usize = 16 << 20;

/// A bucket's policy, CORS rules and lifecycle rules, parsed.
#[derive(Debug)]
pub(crate) struct Rules {
    revision: u64,
    /// What they were parsed from.
    bytes: usize,
    pub(crate) policy: Option<Policy>,
    /// The policy cannot be read: nobody but the owner is let in, and the owner may replace it.
    pub(crate) unreadable: bool,
    /// Whether the policy may look at the tags of objects that exist.
    pub(crate) asks_tags: bool,
    /// Whether the policy may look at the tags that a request sets.
    pub(crate) asks_new_tags: bool,
    pub(crate) cors: Option<cors::Configuration>,
    pub(crate) lifecycle: Option<lifecycle::Configuration>,
}

/// Parsed rules by namespace, as of its revision.
#[derive(Default)]
pub(crate) struct RulesCache {
    kept: RwLock<Kept>,
}

#[derive(Default)]
struct Kept {
    rules: HashMap<u32, Arc<Rules>>,
    bytes: usize,
}

impl Kept {
    fn keep(&mut self, id: u32, rules: &Arc<Rules>) {
        if self.rules.len() >= KEPT_MAX || self.bytes + rules.bytes > KEPT_BYTES_MAX {
            *self = Kept::default();
        }
        self.bytes += rules.bytes;
        if let Some(before) = self.rules.insert(id, Arc::clone(rules)) {
            self.bytes -= before.bytes;
        }
    }
}

impl RulesCache {
    /// The rules of a namespace; `None` when it has none.
    pub(crate) fn of(&self, info: &NamespaceInfo) -> Option<Arc<Rules>> {
        let attributes = &info.config.attributes;
        if attributes.is_empty() {
            return None;
        }
        if let Some(rules) = self.kept.read().rules.get(&info.id)
            && rules.revision == info.revision
        {
            return Some(Arc::clone(rules));
        }
        let text = attributes.get(bucket_config::POLICY);
        let policy = text.and_then(|text| Policy::parse(text, &info.name).ok());
        let asks = |key: &str| text.is_some_and(|text| may_ask(text, key));
        let rules = Arc::new(Rules {
            revision: info.revision,
            bytes: attributes.encoded().len(),
            unreadable: text.is_some() && policy.is_none(),
            asks_tags: asks("existingobjecttag/"),
            asks_new_tags: asks("requestobjecttag/"),
            policy,
            cors: attributes
                .get(bucket_config::CORS)
                .and_then(|text| cors::Configuration::from_xml(text).ok()),
            lifecycle: attributes
                .get(bucket_config::LIFECYCLE)
                .and_then(|text| lifecycle::Configuration::from_xml(text).ok()),
        });
        self.kept.write().keep(info.id, &rules);
        Some(rules)
    }
}

/// Whether a policy may have conditions on keys that begin with `stem`. JSON can spell a key with escapes (`\/` is a slash), so a
/// policy that has any is taken to ask: to look at tags for nothing costs a look, to miss a condition lets somebody in.
fn may_ask(policy: &[u8], stem: &str) -> bool {
    let text = String::from_utf8_lossy(policy).to_ascii_lowercase();
    text.contains('\\') || text.contains(stem)
}
