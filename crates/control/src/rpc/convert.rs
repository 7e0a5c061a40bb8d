//! Between the messages of `forebay.v1` and what the rooms speak of.

use forebay_api::v1;
use forebay_store::{ByteRange, Condition, Durability, Etag, Meta, Quota, Usage, Versioning};

use super::status::{Outcome, Refusal};
use crate::api::{self, DurabilityText};

pub(crate) fn server(server: api::Server) -> v1::Server {
    v1::Server {
        version: server.version,
        pid: server.pid,
        uptime_s: server.uptime_s,
        doors: server.doors,
        backend: server.backend,
        disk_io: server.disk_io,
        shards: server.shards as u32,
    }
}

pub(crate) fn tenant(tenant: api::Tenant) -> v1::Tenant {
    v1::Tenant {
        name: tenant.name,
        display_name: tenant.display_name,
        created_ms: tenant.created,
        keys: tenant.keys as u64,
        namespaces: tenant.namespaces as u64,
        usage: Some(usage(tenant.usage)),
        quota: Some(quota(tenant.quota)),
    }
}

pub(crate) fn key(key: api::Key) -> v1::Key {
    v1::Key {
        access_key: key.access_key,
        secret_key: key.secret_key.unwrap_or_default(),
        tenant: key.tenant,
        created_ms: key.created,
    }
}

pub(crate) fn namespace(namespace: api::Namespace) -> v1::Namespace {
    let relaxed_ms = match namespace.durability.0 {
        Durability::Sync => 0,
        Durability::Relaxed { within_ms } => within_ms,
    };
    let versioning = match namespace.versioning {
        Versioning::Off => v1::Versioning::Off,
        Versioning::Enabled => v1::Versioning::Enabled,
        Versioning::Suspended => v1::Versioning::Suspended,
    };
    v1::Namespace {
        name: namespace.name,
        tenant: namespace.tenant,
        created_ms: namespace.created,
        durability: Some(v1::Durability { relaxed_ms }),
        versioning: versioning.into(),
        ttl_ms: namespace.ttl_ms,
        quota: Some(quota(namespace.quota)),
        usage: Some(usage(namespace.usage)),
        nsid: namespace.nsid,
    }
}

pub(crate) fn host(host: api::Host) -> v1::Host {
    v1::Host {
        nqn: host.nqn,
        tenant: host.tenant,
        chap: host.chap,
        tls: host.tls,
        created_ms: host.created,
    }
}

pub(crate) fn grant(grant: api::Grant) -> v1::StandingGrant {
    let kind = match grant.kind {
        api::GrantKind::Session => v1::GrantKind::Session,
        api::GrantKind::Region => v1::GrantKind::Region,
        api::GrantKind::Grant => v1::GrantKind::Grant,
    };
    v1::StandingGrant {
        id: grant.id.to_string(),
        kind: kind.into(),
        tenant: grant.tenant,
        access_key: grant.access_key,
        fabrics: grant.fabrics,
        memory: grant.memory.map(|memory| v1::GrantedMemory {
            region: memory.region,
            offset: memory.offset,
            length: memory.length,
            access: match memory.access {
                api::GrantedAccess::Read => v1::Access::Read,
                api::GrantedAccess::Write => v1::Access::Write,
                api::GrantedAccess::ReadWrite => v1::Access::ReadWrite,
            }
            .into(),
        }),
        since_ms: grant.since,
        until_ms: grant.until,
    }
}

fn usage(usage: Usage) -> v1::Usage {
    v1::Usage {
        objects: usage.objects,
        bytes: usage.bytes,
    }
}

fn quota(quota: Quota) -> v1::Quota {
    v1::Quota {
        bytes: quota.bytes,
        objects: quota.objects,
    }
}

pub(crate) fn scrub_report(report: api::ScrubReport) -> v1::ScrubReport {
    let findings = report.findings.into_iter().map(|finding| v1::Finding {
        namespace: finding.namespace,
        key: finding.key,
        version: finding.version,
        what: finding.what,
    });
    v1::ScrubReport {
        objects: report.objects,
        bytes: report.bytes,
        elapsed_ms: report.elapsed_ms,
        damaged: report.damaged,
        findings: findings.collect(),
    }
}

pub(crate) fn tier(tier: api::Tier) -> v1::Tier {
    let rules = tier.rules.into_iter().map(|(name, policy)| {
        let policy = v1::TierPolicy {
            after_ms: policy.after_ms,
            not_read_for_ms: policy.not_read_for_ms,
            larger_than: policy.larger_than,
            prefix: policy.prefix,
            stays: policy.recall == api::TierRecall::Never,
        };
        (name, policy)
    });
    v1::Tier {
        namespace: tier.namespace,
        rules: rules.collect(),
        last: tier.last.map(tier_pass),
    }
}

pub(crate) fn tier_policy(policy: v1::TierPolicy) -> api::TierPolicy {
    api::TierPolicy {
        after_ms: policy.after_ms,
        not_read_for_ms: policy.not_read_for_ms,
        larger_than: policy.larger_than,
        prefix: policy.prefix,
        recall: match policy.stays {
            true => api::TierRecall::Never,
            false => api::TierRecall::Read,
        },
    }
}

pub(crate) fn tier_pass(pass: api::TierPass) -> v1::TierPass {
    v1::TierPass {
        at_ms: pass.at,
        moved: pass.moved,
        moved_bytes: pass.moved_bytes,
        cold: pass.cold,
        cold_bytes: pass.cold_bytes,
        failed: pass.failed,
        gave_up: pass.gave_up,
    }
}

pub(crate) fn lifecycle_report(report: api::LifecycleReport) -> v1::LifecycleReport {
    v1::LifecycleReport {
        expired: report.expired,
        versions: report.versions,
        markers: report.markers,
        uploads: report.uploads,
        failed: report.failed,
    }
}

pub(crate) fn limits(change: Option<v1::QuotaChange>) -> api::Limits {
    let change = change.unwrap_or_default();
    api::Limits {
        bytes: change.bytes.map(|bound| bound.value),
        objects: change.objects.map(|bound| bound.value),
    }
}

pub(crate) fn namespace_change(
    change: Option<v1::NamespaceChange>,
) -> Outcome<api::NamespaceChange> {
    let change = change.unwrap_or_default();
    let versioning = match v1::Versioning::try_from(change.versioning) {
        Ok(v1::Versioning::Unspecified) => None,
        Ok(v1::Versioning::Off) => Some(Versioning::Off),
        Ok(v1::Versioning::Enabled) => Some(Versioning::Enabled),
        Ok(v1::Versioning::Suspended) => Some(Versioning::Suspended),
        Err(_) => return Err(Refusal::invalid("there is no such versioning")),
    };
    let durability = change
        .durability
        .map(|durability| match durability.relaxed_ms {
            0 => "sync".parse(),
            // The text has the bound.
            within_ms => format!("relaxed:{within_ms}ms").parse::<DurabilityText>(),
        });
    let nsid = change.nsid.map(|bound| {
        let number = bound.value.map(u32::try_from).transpose();
        number.map_err(|_| Refusal::invalid("a namespace identifier has 32 bits"))
    });
    Ok(api::NamespaceChange {
        durability: durability.transpose().map_err(Refusal::invalid)?,
        versioning,
        ttl_ms: change.ttl_ms.map(|bound| bound.value),
        quota: limits(change.quota),
        nsid: nsid.transpose()?,
    })
}

pub(crate) fn object(meta: &Meta) -> v1::ObjectInfo {
    v1::ObjectInfo {
        size: meta.size,
        etag: meta.etag.as_str().to_owned(),
        modified_ms: meta.modified,
        version: meta.version.0,
        crc64nvme: meta.crc64nvme,
        expires_ms: meta.expires,
    }
}

pub(crate) fn range(range: Option<v1::Range>) -> ByteRange {
    match range {
        None
        | Some(v1::Range {
            offset: 0,
            length: 0,
        }) => ByteRange::Full,
        Some(v1::Range { offset, length: 0 }) => ByteRange::From(offset),
        Some(v1::Range { offset, length }) => {
            ByteRange::Inclusive(offset, offset.saturating_add(length - 1))
        }
    }
}

pub(crate) fn condition(condition: Option<v1::Condition>) -> Outcome<Condition> {
    use v1::condition::Rule;
    match condition.and_then(|condition| condition.rule) {
        None | Some(Rule::IfAbsent(false) | Rule::IfPresent(false)) => Ok(Condition::None),
        Some(Rule::IfAbsent(true)) => Ok(Condition::IfAbsent),
        Some(Rule::IfPresent(true)) => Ok(Condition::IfPresent),
        Some(Rule::IfMatch(tag)) => Etag::new(&tag)
            .map(Condition::IfMatch)
            .ok_or_else(|| Refusal::invalid("that is no tag")),
    }
}
