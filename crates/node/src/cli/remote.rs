//! The admin API asked of a server elsewhere: what its socket answers as JSON, by calls of `forebay.v1.Admin`. The routes are those
//! of [`forebay_control::api`].

#[cfg(test)]
mod tests;

use forebay_api::v1;
use forebay_api::v1::add_module_request::Source;
use forebay_client::{Admin, Error};
use forebay_control::api::{
    DurabilityText, Finding, Host, Key, LifecycleReport, Limits, Module, ModuleSource, Namespace,
    NamespaceChange, NewHost, NewKey, NewModule, NewNamespace, NewTenant, Recall, Recalled,
    ScrubReport, Server, Swept, Tenant, Tier, TierPass, TierPolicy, TierRecall,
};
use forebay_control::{Error as Refused, Kind};
use forebay_store::{Durability, ModuleDigest, Quota, Usage, Versioning};
use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::grants;
use crate::exit::{Exit, Failure, Outcome};

/// Asks, and answers as the socket does; `null` where that says nothing.
pub async fn ask(admin: &Admin, method: &Method, path: &[&str], body: Value) -> Outcome<Value> {
    let name = |name: &&str| (*name).to_owned();
    match (method.as_str(), path) {
        ("GET", ["server"]) => {
            let asked = admin.get_server(v1::GetServerRequest {}).await;
            json(server(asked.map_err(refused)?))
        }
        ("POST", ["scrub"]) => json(scrub(admin.scrub().await.map_err(refused)?)),
        ("POST", ["lifecycle-run"]) => {
            json(lifecycle(admin.run_lifecycle().await.map_err(refused)?))
        }

        ("GET", ["tenants"]) => {
            let asked = admin.list_tenants(v1::ListTenantsRequest {}).await;
            let tenants = asked.map_err(refused)?.tenants.into_iter();
            json(tenants.map(tenant).collect::<Vec<_>>())
        }
        ("POST", ["tenants"]) => {
            let NewTenant { name, display_name } = parse(body)?;
            let new = v1::CreateTenantRequest { name, display_name };
            json(tenant(admin.create_tenant(new).await.map_err(refused)?))
        }
        ("GET", ["tenants", which]) => {
            let asked = v1::GetTenantRequest { name: name(which) };
            json(tenant(admin.get_tenant(asked).await.map_err(refused)?))
        }
        ("DELETE", ["tenants", which]) => {
            let asked = v1::RemoveTenantRequest { name: name(which) };
            done(admin.remove_tenant(asked).await)
        }
        ("PUT", ["tenants", which, "quota"]) => {
            let asked = v1::SetTenantQuotaRequest {
                name: name(which),
                quota: Some(limits(parse(body)?)),
            };
            let changed = admin.set_tenant_quota(asked).await;
            json(tenant(changed.map_err(refused)?))
        }

        ("GET", ["keys", whose @ ..]) if whose.len() <= 1 => {
            let tenant = whose.first().map(name).unwrap_or_default();
            let asked = admin.list_keys(v1::ListKeysRequest { tenant }).await;
            let keys = asked.map_err(refused)?.keys.into_iter();
            json(keys.map(key).collect::<Vec<_>>())
        }
        ("POST", ["keys", whose]) => {
            let new: NewKey = parse(body)?;
            let asked = v1::CreateKeyRequest {
                tenant: name(whose),
                access_key: new.access_key.unwrap_or_default(),
                secret_key: new.secret_key.unwrap_or_default(),
            };
            json(key(admin.create_key(asked).await.map_err(refused)?))
        }
        ("DELETE", ["keys", which]) => {
            let access_key = name(which);
            let asked = v1::RemoveKeyRequest { access_key };
            done(admin.remove_key(asked).await)
        }

        ("GET", ["namespaces"]) => {
            let asked = admin.list_namespaces(v1::ListNamespacesRequest {}).await;
            let namespaces = asked.map_err(refused)?.namespaces;
            let namespaces: Outcome<Vec<_>> = namespaces.into_iter().map(namespace).collect();
            json(namespaces?)
        }
        ("POST", ["namespaces"]) => {
            let new: NewNamespace = parse(body)?;
            let asked = v1::CreateNamespaceRequest {
                name: new.name,
                tenant: new.tenant,
                config: Some(change(new.config)),
            };
            let made = admin.create_namespace(asked).await;
            json(namespace(made.map_err(refused)?)?)
        }
        ("GET", ["namespaces", which]) => {
            let asked = v1::GetNamespaceRequest { name: name(which) };
            let found = admin.get_namespace(asked).await;
            json(namespace(found.map_err(refused)?)?)
        }
        ("DELETE", ["namespaces", which]) => {
            let asked = v1::RemoveNamespaceRequest { name: name(which) };
            done(admin.remove_namespace(asked).await)
        }
        ("PATCH", ["namespaces", which]) => {
            let asked = v1::ChangeNamespaceRequest {
                name: name(which),
                change: Some(change(parse(body)?)),
            };
            let changed = admin.change_namespace(asked).await;
            json(namespace(changed.map_err(refused)?)?)
        }

        ("GET", ["modules"]) => {
            let modules = admin.execution().list_modules().await.map_err(refused)?;
            json(modules.into_iter().map(module).collect::<Vec<_>>())
        }
        ("POST", ["modules"]) => {
            let asked = new_module(parse(body)?)?;
            let added = admin.execution().add_module(asked).await;
            json(module(added.map_err(refused)?))
        }
        ("DELETE", ["modules", tenant, which, namespace @ ..]) if namespace.len() <= 1 => {
            let asked = v1::RemoveModuleRequest {
                tenant: name(tenant),
                namespace: namespace.first().map(name).unwrap_or_default(),
                module: name(which),
            };
            done(admin.execution().remove_module(asked).await)
        }

        (method @ ("GET" | "PUT" | "DELETE" | "POST"), ["tier", rest @ ..]) => {
            tier(admin, method, rest, body).await
        }
        ("POST", ["tier-sweep"]) => {
            let done = admin.sweep_tier().await.map_err(refused)?;
            json(Swept {
                swept: done.swept,
                waiting: done.waiting,
            })
        }

        ("POST", ["grants", "list"]) => grants::page_elsewhere(admin, body).await,
        ("DELETE", ["grants", id]) => grants::remove_elsewhere(admin, id).await,
        ("DELETE", ["tenants", which, "grants"]) => grants::end_elsewhere(admin, which).await,

        ("GET", ["hosts"]) => {
            let asked = admin.list_hosts(v1::ListHostsRequest {}).await;
            let hosts = asked.map_err(refused)?.hosts.into_iter();
            json(hosts.map(host).collect::<Vec<_>>())
        }
        ("POST", ["hosts"]) => {
            let new: NewHost = parse(body)?;
            let asked = v1::CreateHostRequest {
                nqn: new.nqn,
                tenant: new.tenant,
                chap_secret: new.chap_secret.unwrap_or_default(),
                tls_key: new.tls_key.unwrap_or_default(),
            };
            json(host(admin.create_host(asked).await.map_err(refused)?))
        }
        ("DELETE", ["hosts", which]) => {
            let asked = v1::RemoveHostRequest { nqn: name(which) };
            done(admin.remove_host(asked).await)
        }
        _ => Err(Failure::new(
            Exit::NotFound,
            format_args!("there is no {method} {} in this API", path.join("/")),
        )),
    }
}

pub(super) fn parse<T: DeserializeOwned>(body: Value) -> Outcome<T> {
    serde_json::from_value(body).map_err(|error| Failure::new(Exit::Usage, error))
}

pub(super) fn json(answer: impl Serialize) -> Outcome<Value> {
    serde_json::to_value(answer).map_err(|error| Failure::new(Exit::Failed, error))
}

pub(super) fn done<T>(answer: Result<T, Error>) -> Outcome<Value> {
    answer.map(|_| Value::Null).map_err(refused)
}

/// The same words and the same exit code as the socket's refusal.
pub(super) fn refused(error: Error) -> Failure {
    let Error::Refused(refusal) = &error else {
        return error.into();
    };
    let kind =
        match v1::Reason::from_str_name(&format!("REASON_{}", refusal.code.to_ascii_uppercase())) {
            Some(v1::Reason::Invalid | v1::Reason::Range | v1::Reason::Unsupported) => {
                Kind::Invalid
            }
            Some(v1::Reason::Exists) => Kind::Exists,
            Some(v1::Reason::NotEmpty) => Kind::NotEmpty,
            _ => match error.kind() {
                forebay_client::Kind::NotFound => Kind::NotFound,
                forebay_client::Kind::Denied => Kind::Denied,
                forebay_client::Kind::Limit => Kind::Limit,
                forebay_client::Kind::Precondition | forebay_client::Kind::Failed => Kind::Failed,
            },
        };
    Refused::new(kind, &refusal.message).into()
}

fn server(server: v1::Server) -> Server {
    Server {
        version: server.version,
        pid: server.pid,
        uptime_s: server.uptime_s,
        doors: server.doors.into_iter().collect(),
        backend: server.backend,
        disk_io: server.disk_io,
        shards: server.shards as usize,
    }
}

fn tenant(tenant: v1::Tenant) -> Tenant {
    Tenant {
        name: tenant.name,
        display_name: tenant.display_name,
        created: tenant.created_ms,
        keys: tenant.keys as usize,
        namespaces: tenant.namespaces as usize,
        usage: usage(tenant.usage),
        quota: quota(tenant.quota),
    }
}

fn key(key: v1::Key) -> Key {
    Key {
        access_key: key.access_key,
        secret_key: (!key.secret_key.is_empty()).then_some(key.secret_key),
        tenant: key.tenant,
        created: key.created_ms,
    }
}

fn namespace(namespace: v1::Namespace) -> Outcome<Namespace> {
    let versioning = match namespace.versioning() {
        v1::Versioning::Off => Versioning::Off,
        v1::Versioning::Enabled => Versioning::Enabled,
        v1::Versioning::Suspended => Versioning::Suspended,
        v1::Versioning::Unspecified => {
            let text = "the server has a versioning that this program does not know";
            return Err(Failure::new(Exit::Failed, text));
        }
    };
    let durability = match namespace.durability.unwrap_or_default().relaxed_ms {
        0 => Durability::Sync,
        within_ms => Durability::Relaxed { within_ms },
    };
    Ok(Namespace {
        name: namespace.name,
        tenant: namespace.tenant,
        created: namespace.created_ms,
        durability: DurabilityText(durability),
        versioning,
        ttl_ms: namespace.ttl_ms,
        quota: quota(namespace.quota),
        usage: usage(namespace.usage),
        nsid: namespace.nsid,
    })
}

fn host(host: v1::Host) -> Host {
    Host {
        nqn: host.nqn,
        tenant: host.tenant,
        chap: host.chap,
        tls: host.tls,
        created: host.created_ms,
    }
}

fn module(module: v1::AllowedModule) -> Module {
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let digest: Result<[u8; 32], _> = module.sha256.as_ref().try_into();
    Module {
        sha256: digest.map_or_else(|_| String::new(), |digest| ModuleDigest(digest).to_string()),
        tenant: module.tenant,
        namespace: given(module.namespace),
        namespace_id: None,
        name: given(module.name),
        number: module.number,
        function: given(module.function),
        size: module.size,
        created: module.created_ms,
    }
}

fn new_module(new: NewModule) -> Outcome<v1::AddModuleRequest> {
    let wasm = new.source.bytes();
    let source = match (new.source, wasm) {
        (ModuleSource::Object { namespace, key }, _) => Source::Object(v1::ModuleObject {
            namespace,
            key: key.into_bytes().into(),
        }),
        (ModuleSource::Base64(_), Some(wasm)) => Source::Wasm(wasm.into()),
        (ModuleSource::Base64(_), None) => {
            return Err(Failure::new(Exit::Usage, "the module is not base64"));
        }
    };
    Ok(v1::AddModuleRequest {
        tenant: new.tenant,
        namespace: new.namespace.unwrap_or_default(),
        name: new.name.unwrap_or_default(),
        number: new.number,
        function: new.function.unwrap_or_default(),
        source: Some(source),
    })
}

/// The cold tier of a namespace.
async fn tier(admin: &Admin, method: &str, rest: &[&str], body: Value) -> Outcome<Value> {
    let given = |name: &str| name.to_owned();
    match (method, rest) {
        ("GET", [namespace]) => {
            let namespace = given(namespace);
            let asked = admin.get_tier(v1::GetTierRequest { namespace }).await;
            json(tier_of(asked.map_err(refused)?))
        }
        ("PUT", [namespace]) => {
            let asked = v1::SetTierRequest {
                namespace: given(namespace),
                policy: Some(tier_policy(parse(body)?)),
            };
            let set = admin.set_tier(asked).await;
            json(tier_of(set.map_err(refused)?))
        }
        ("PUT", [namespace, "rules", rule]) => {
            let asked = v1::AddTierRuleRequest {
                namespace: given(namespace),
                name: given(rule),
                policy: Some(tier_policy(parse(body)?)),
            };
            let added = admin.add_tier_rule(asked).await;
            json(tier_of(added.map_err(refused)?))
        }
        ("DELETE", [namespace, "rules", rule]) => {
            let asked = v1::RemoveTierRuleRequest {
                namespace: given(namespace),
                name: given(rule),
            };
            done(admin.remove_tier_rule(asked).await)
        }
        ("DELETE", [namespace]) => {
            let namespace = given(namespace);
            done(admin.remove_tier(v1::RemoveTierRequest { namespace }).await)
        }
        ("POST", [namespace, "run"]) => {
            let namespace = given(namespace);
            let passed = admin.run_tier(v1::RunTierRequest { namespace }).await;
            json(tier_pass(passed.map_err(refused)?))
        }
        ("POST", [namespace, "recall"]) => {
            let Recall { key, version } = parse(body)?;
            let asked = v1::RecallRequest {
                namespace: given(namespace),
                key: key.into_bytes().into(),
                version,
            };
            let recalled = admin.recall(asked).await.map_err(refused)?.recalled;
            json(Recalled { recalled })
        }
        _ => Err(Failure::new(Exit::Usage, "the server has no such call")),
    }
}

fn tier_policy(policy: TierPolicy) -> v1::TierPolicy {
    v1::TierPolicy {
        after_ms: policy.after_ms,
        not_read_for_ms: policy.not_read_for_ms,
        larger_than: policy.larger_than,
        prefix: policy.prefix,
        stays: policy.recall == TierRecall::Never,
    }
}

fn tier_of(tier: v1::Tier) -> Tier {
    let rules = tier.rules.into_iter().map(|(name, policy)| {
        let policy = TierPolicy {
            after_ms: policy.after_ms,
            not_read_for_ms: policy.not_read_for_ms,
            larger_than: policy.larger_than,
            prefix: policy.prefix,
            recall: match policy.stays {
                true => TierRecall::Never,
                false => TierRecall::Read,
            },
        };
        (name, policy)
    });
    Tier {
        namespace: tier.namespace,
        rules: rules.collect(),
        last: tier.last.map(tier_pass),
    }
}

fn tier_pass(pass: v1::TierPass) -> TierPass {
    TierPass {
        at: pass.at_ms,
        moved: pass.moved,
        moved_bytes: pass.moved_bytes,
        cold: pass.cold,
        cold_bytes: pass.cold_bytes,
        failed: pass.failed,
        gave_up: pass.gave_up,
    }
}

fn usage(usage: Option<v1::Usage>) -> Usage {
    let v1::Usage { objects, bytes } = usage.unwrap_or_default();
    Usage { objects, bytes }
}

fn quota(quota: Option<v1::Quota>) -> Quota {
    let v1::Quota { bytes, objects } = quota.unwrap_or_default();
    Quota { bytes, objects }
}

fn scrub(report: v1::ScrubReport) -> ScrubReport {
    let findings = report.findings.into_iter().map(|finding| Finding {
        namespace: finding.namespace,
        key: finding.key,
        version: finding.version,
        what: finding.what,
    });
    ScrubReport {
        objects: report.objects,
        bytes: report.bytes,
        elapsed_ms: report.elapsed_ms,
        damaged: report.damaged,
        findings: findings.collect(),
    }
}

fn lifecycle(report: v1::LifecycleReport) -> LifecycleReport {
    LifecycleReport {
        expired: report.expired,
        versions: report.versions,
        markers: report.markers,
        uploads: report.uploads,
        failed: report.failed,
    }
}

fn bound(value: Option<u64>) -> v1::Bound {
    v1::Bound { value }
}

fn limits(limits: Limits) -> v1::QuotaChange {
    v1::QuotaChange {
        bytes: limits.bytes.map(bound),
        objects: limits.objects.map(bound),
    }
}

fn change(change: NamespaceChange) -> v1::NamespaceChange {
    let versioning = match change.versioning {
        None => v1::Versioning::Unspecified,
        Some(Versioning::Off) => v1::Versioning::Off,
        Some(Versioning::Enabled) => v1::Versioning::Enabled,
        Some(Versioning::Suspended) => v1::Versioning::Suspended,
    };
    v1::NamespaceChange {
        durability: change
            .durability
            .map(|DurabilityText(durability)| v1::Durability {
                relaxed_ms: match durability {
                    Durability::Sync => 0,
                    Durability::Relaxed { within_ms } => within_ms,
                },
            }),
        versioning: versioning.into(),
        ttl_ms: change.ttl_ms.map(bound),
        quota: Some(limits(change.quota)),
        nsid: change.nsid.map(|nsid| bound(nsid.map(u64::from))),
    }
}
