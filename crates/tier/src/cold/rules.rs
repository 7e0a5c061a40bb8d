//! The rules of a namespace: policies by name. A value goes to the cold tier when one of them takes it.

use std::collections::BTreeMap;

use forebay_store::{Attributes, Meta, NamespaceInfo};
use serde::{Deserialize, Serialize};

use super::policy::{Policy, Recall};

/// The attribute of a namespace that holds its rules, as JSON.
pub const RULES: &str = "tier:cold";
/// The most rules of a namespace: a pass holds every value against each of them.
pub const RULES_MAX: usize = 100;
/// The name of a rule that was given none.
const DEFAULT: &str = "default";

/// What goes to the cold tier of a namespace: nothing where there are none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    rules: BTreeMap<String, Policy>,
}

impl Rules {
    /// One rule, `default`.
    pub fn only(policy: Policy) -> Rules {
        Rules {
            rules: BTreeMap::from([(DEFAULT.to_owned(), policy)]),
        }
    }

    /// The rules of a namespace. What cannot be read moves nothing.
    pub fn of(namespace: &NamespaceInfo) -> Rules {
        Rules::kept(&namespace.config.attributes).unwrap_or_else(|error| {
            tracing::warn!(namespace = namespace.name, %error, "the tier rules cannot be read");
            Rules::default()
        })
    }

    /// The rules among the attributes of a namespace.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn kept(attributes: &Attributes) -> serde_json::Result<Rules> {
        attributes
            .get(RULES)
            .map_or_else(|| Ok(Rules::default()), Rules::read)
    }

    /// What is kept, as JSON. A namespace used to have one policy and no names.
    pub(super) fn read(text: &[u8]) -> serde_json::Result<Rules> {
        match serde_json::from_slice(text) {
            Ok(policy) => Ok(Rules::only(policy)),
            Err(_) => serde_json::from_slice(text),
        }
    }

    /// The attributes of a namespace with these rules; `None` when they have no room for them. One without a name is kept as it was when
    /// there was only one: gateways of before read it.
    pub fn keep(&self, attributes: &Attributes) -> Option<Attributes> {
        let mut builder = attributes.to_builder();
        match (self.rules.len(), self.rules.get(DEFAULT)) {
            (0, _) => builder.remove(RULES),
            (1, Some(policy)) => builder.insert(RULES, serde_json::to_vec(policy).ok()?),
            _ => builder.insert(RULES, serde_json::to_vec(self).ok()?),
        }
        builder.build()
    }

    /// Adds a rule beside the others, or in the place of the one of that name; `false` when there are [`RULES_MAX`] others.
    pub fn add(&mut self, name: &str, policy: Policy) -> bool {
        let room = self.rules.len() < RULES_MAX || self.rules.contains_key(name);
        if room {
            self.rules.insert(name.to_owned(), policy);
        }
        room
    }

    /// Removes a rule; `false` when there is none of that name.
    pub fn remove(&mut self, name: &str) -> bool {
        self.rules.remove(name).is_some()
    }

    /// Whether nothing goes.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Each with its name, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Policy)> {
        self.rules
            .iter()
            .map(|(name, policy)| (name.as_str(), policy))
    }

    /// Whether a value goes by one of them, as [`Policy::takes`] says.
    pub fn take(&self, key: &[u8], meta: &Meta, now: u64, read: u64) -> bool {
        let mut policies = self.rules.values();
        policies.any(|policy| policy.takes(key, meta, now, read))
    }

    /// Whether a value whose bytes are cold comes back when it is read whole: unless one that covers it says never.
    pub fn bring_back(&self, key: &[u8], meta: &Meta) -> bool {
        let mut policies = self.rules.values();
        !policies.any(|policy| policy.recall == Recall::Never && policy.covers(key, meta))
    }

    /// Whether one of them asks when a value was read last.
    pub fn ask_for_reads(&self) -> bool {
        let mut policies = self.rules.values();
        policies.any(|policy| policy.not_read_for_ms.is_some())
    }

    /// Which prefixes have every key that they may take, each key once.
    pub fn prefixes(&self) -> Vec<&str> {
        let mut prefixes: Vec<_> = self
            .rules
            .values()
            .map(|policy| policy.prefix.as_str())
            .collect();
        prefixes.sort_unstable();
        prefixes.dedup_by(|longer, shorter| longer.starts_with(*shorter));
        prefixes
    }
}

#[cfg(test)]
mod tests {
    use forebay_store::{Etag, VersionId};

    use super::*;

    fn under(prefix: &str) -> Policy {
        Policy {
            prefix: prefix.to_owned(),
            larger_than: 0,
            ..Policy::default()
        }
    }

    fn rules<const N: usize>(policies: [(&str, Policy); N]) -> Rules {
        let mut rules = Rules::default();
        for (name, policy) in policies {
            assert!(rules.add(name, policy));
        }
        rules
    }

    fn meta(size: u64) -> Meta {
        Meta {
            size,
            etag: Etag::of_value(1, size),
            modified: 1000,
            version: VersionId::NULL,
            crc64nvme: 1,
            expires: None,
            attributes: Attributes::EMPTY,
        }
    }

    #[test]
    fn they_are_kept_beside_other_attributes() {
        let others = Attributes::builder().set("s3:policy", "{}").build();
        let others = others.expect("small");
        let rules = rules([("logs", under("logs/")), ("all", Policy::default())]);
        let kept = rules.keep(&others).expect("room");
        assert_eq!(kept.get("s3:policy"), Some(&b"{}"[..]));
        assert_eq!(Rules::kept(&kept).expect("JSON"), rules);
        assert_eq!(Rules::default().keep(&kept), Some(others.clone()));
        assert_eq!(Rules::kept(&others).expect("none"), Rules::default());
    }

    #[test]
    fn what_was_one_policy_is_one_rule() {
        let text = br#"{"after_ms":5,"larger_than":0,"prefix":"logs/","recall":"never"}"#;
        let policy = Policy {
            after_ms: Some(5),
            recall: Recall::Never,
            ..under("logs/")
        };
        assert_eq!(
            Rules::read(text).expect("kept"),
            Rules::only(policy.clone())
        );
        let kept = Rules::only(policy.clone()).keep(&Attributes::EMPTY);
        let kept = kept.expect("room");
        let as_before: Policy =
            serde_json::from_slice(kept.get(RULES).expect("one")).expect("JSON");
        assert_eq!(as_before, policy);
        let usual = Rules::only(Policy::default());
        assert_eq!(Rules::read(b"{}").expect("kept"), usual);
        assert_eq!(
            Rules::read(br#"{"rules":{}}"#)
                .expect("kept")
                .iter()
                .count(),
            0
        );
        assert!(Rules::read(br#"{"rules":{},"after_ms":5}"#).is_err());
    }

    #[test]
    fn there_are_no_more_than_a_hundred() {
        let mut rules = Rules::default();
        for number in 0..RULES_MAX {
            assert!(rules.add(&number.to_string(), under("a")));
        }
        assert!(!rules.add("one more", under("a")));
        assert!(rules.add("7", under("b")), "in the place of another");
        assert!(rules.remove("8") && !rules.remove("8"));
        assert!(rules.add("one more", under("a")));
    }

    #[test]
    fn long_texts_have_no_room() {
        let mut rules = Rules::default();
        for number in 0..RULES_MAX {
            assert!(rules.add(&number.to_string(), under(&"\u{1}".repeat(1024))));
        }
        assert_eq!(rules.keep(&Attributes::EMPTY), None);
    }

    #[test]
    fn each_key_is_under_one_prefix() {
        let rules = rules([
            ("1", under("b/c/")),
            ("2", under("b/")),
            ("3", under("a")),
            ("4", under("b/")),
            ("5", under("b")),
            ("6", under("c/d")),
        ]);
        assert_eq!(rules.prefixes(), ["a", "b", "c/d"]);
        let mut everywhere = rules;
        assert!(everywhere.add("7", under("")));
        assert_eq!(everywhere.prefixes(), [""]);
        assert_eq!(Rules::default().prefixes(), [""; 0]);
    }

    #[test]
    fn what_one_says_never_comes_back_does_not() {
        let never = |policy| Policy {
            recall: Recall::Never,
            ..policy
        };
        let large = Policy {
            larger_than: 100,
            ..under("")
        };
        let rules = rules([
            ("logs", under("logs/")),
            ("old", never(under("old/"))),
            ("large", never(large)),
        ]);
        for (key, size, comes) in [
            ("logs/a", 100, true),
            ("logs/a", 101, false),
            ("old/a", 1, false),
            ("other", 100, true),
        ] {
            let brought = rules.bring_back(key.as_bytes(), &meta(size));
            assert_eq!(brought, comes, "{key} of {size}");
        }
        assert!(Rules::default().bring_back(b"old/a", &meta(101)));
    }
}
