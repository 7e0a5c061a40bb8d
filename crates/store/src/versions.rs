//! What a write or delete does to the versions of a key: the one place where versioning is decided.
//!
//! A key has at most one *current* value and any number of *kept* entries (older values, and delete markers). When the
//! newest entry is a delete marker there is no current value and the marker is the newest kept entry. The *null* version
//! ([`VersionId::NULL`]) exists at most once among all of them (the S3 user guide's "Working with delete markers" and
//! "Adding objects to versioning-suspended buckets" give the rules that this follows).

use crate::{Deleted, Usage, VersionId, Versioning};

/// What is there before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Present {
    /// The version of the current value.
    pub current: Option<VersionId>,
    /// Whether a kept entry (value or delete marker) is the null version.
    pub kept_null: bool,
    /// The newest kept entry and whether it is a delete marker.
    pub newest_kept: Option<(VersionId, bool)>,
    /// The kept entry after that one.
    pub second_kept: Option<(VersionId, bool)>,
}

/// One step of a change; all steps of a plan happen together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The new value becomes current, as this version.
    PutCurrent(VersionId),
    /// The current value becomes a kept entry.
    KeepCurrent,
    /// The current value is gone for good.
    DropCurrent,
    /// The kept entry of this version is gone for good.
    DropKept(VersionId),
    /// A delete marker of this version becomes the newest kept entry.
    PutMarker(VersionId),
    /// The kept value of this version becomes current again.
    PromoteKept(VersionId),
}

/// The steps, at most three.
pub type Plan = Vec<Change>;

/// Storing a value; `fresh` is an unused version id.
pub fn plan_store(versioning: Versioning, present: Present, fresh: VersionId) -> Plan {
    let mut plan = Plan::new();
    match versioning {
        Versioning::Off => {
            if present.current.is_some() {
                plan.push(Change::DropCurrent);
            }
            plan.push(Change::PutCurrent(VersionId::NULL));
        }
        Versioning::Enabled => {
            if present.current.is_some() {
                plan.push(Change::KeepCurrent);
            }
            plan.push(Change::PutCurrent(fresh));
        }
        Versioning::Suspended => {
            replace_null(&mut plan, present);
            plan.push(Change::PutCurrent(VersionId::NULL));
        }
    }
    plan
}

/// Deleting: the key as a whole, or one version for good. An empty plan means that there is nothing to do.
pub fn plan_delete(
    versioning: Versioning,
    present: Present,
    version: Option<VersionId>,
    fresh: VersionId,
) -> Plan {
    let mut plan = Plan::new();
    match (version, versioning) {
        (None, Versioning::Off) => {
            if present.current.is_some() {
                plan.push(Change::DropCurrent);
            }
        }
        (None, Versioning::Enabled) => {
            if present.current.is_some() {
                plan.push(Change::KeepCurrent);
            }
            plan.push(Change::PutMarker(fresh));
        }
        (None, Versioning::Suspended) => {
            replace_null(&mut plan, present);
            plan.push(Change::PutMarker(VersionId::NULL));
        }
        (Some(version), _) if present.current == Some(version) => {
            plan.push(Change::DropCurrent);
            if let Some((newest, false)) = present.newest_kept {
                plan.push(Change::PromoteKept(newest));
            }
        }
        (Some(version), _) => {
            plan.push(Change::DropKept(version));
            if present.current.is_none()
                && present.newest_kept == Some((version, true))
                && let Some((next, false)) = present.second_kept
            {
                plan.push(Change::PromoteKept(next));
            }
        }
    }
    plan
}

/// Whether a plan makes a delete marker.
#[must_use]
pub fn makes_marker(plan: &[Change]) -> bool {
    plan.iter()
        .any(|change| matches!(change, Change::PutMarker(_)))
}

/// What a quota may refuse a delete for: the marker of a key that holds no value. Whoever deletes a value is not refused for the marker in
/// its place, so that there are no more such markers than there were values.
#[must_use]
pub fn growth_of_delete(plan: &[Change]) -> Usage {
    match plan {
        [Change::PutMarker(_)] => Usage::MARKER,
        _ => Usage::default(),
    }
}

/// What whoever asked for a delete is told of the `plan` for it. `marker` is of the kept entry of the `version` that is asked for, when there is one:
/// whether it is a delete marker.
pub fn answer_delete(
    present: Present,
    version: Option<VersionId>,
    plan: &[Change],
    marker: Option<bool>,
) -> Deleted {
    let made = plan.iter().find_map(|change| match change {
        Change::PutMarker(marker) => Some(*marker),
        _ => None,
    });
    match (version, made) {
        (Some(version), _) => {
            let existed = present.current == Some(version) || marker.is_some();
            Deleted {
                existed,
                version: existed.then_some(version),
                marker: marker.unwrap_or_default(),
            }
        }
        (None, made) => Deleted {
            existed: present.current.is_some(),
            version: made.or(present.current),
            marker: made.is_some(),
        },
    }
}

/// Makes way for a new null version: the old one goes, any other current value is kept.
fn replace_null(plan: &mut Plan, present: Present) {
    match present.current {
        Some(VersionId::NULL) => plan.push(Change::DropCurrent),
        Some(_) => plan.push(Change::KeepCurrent),
        None => {}
    }
    if present.kept_null {
        plan.push(Change::DropKept(VersionId::NULL));
    }
}
