//! The operations as JSON over whatever carries it: method, path and body in, status and JSON out.

use forebay_proto::s3::percent;
use forebay_store::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::Recall;
use crate::{Admin, Error, Kind, Result};

/// An answer to carry back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// An HTTP status.
    pub status: u16,
    /// JSON; empty for 204.
    pub body: Vec<u8>,
}

impl<S: Store> Admin<S> {
    /// Answers one request; see [`crate::api`] for the list. Names in segments of `path` may be percent-encoded.
    pub async fn handle(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        match self.route(method, path, body).await {
            Ok(Some(body)) => Reply { status: 200, body },
            Ok(None) => Reply {
                status: 204,
                body: Vec::new(),
            },
            Err(error) => {
                tracing::info!(method, path, kind = ?error.kind, message = error.message, "admin call refused");
                Reply {
                    status: error.kind.status(),
                    body: serde_json::to_vec(&error).unwrap_or_default(),
                }
            }
        }
    }

    async fn route(&self, method: &str, path: &str, body: &[u8]) -> Result<Option<Vec<u8>>> {
        let segments: Option<Vec<String>> = path.split('/').skip(1).map(decoded).collect();
        let segments =
            segments.ok_or_else(|| Error::new(Kind::Invalid, format!("{path:?} is no path")))?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match (method, segments.as_slice()) {
            ("GET", ["v1", "server"]) => json(&self.server()),
            ("POST", ["v1", "scrub"]) => json(&self.scrub().await?),
            ("POST", ["v1", "lifecycle-run"]) => json(&self.lifecycle_run().await?),

            ("GET", ["v1", "tenants"]) => json(&self.tenants().await),
            ("POST", ["v1", "tenants"]) => json(&self.create_tenant(parse(body)?).await?),
            ("GET", ["v1", "tenants", name]) => json(&self.tenant(name)?),
            ("DELETE", ["v1", "tenants", name]) => nothing(self.remove_tenant(name).await),
            ("PUT", ["v1", "tenants", name, "quota"]) => {
                json(&self.set_tenant_quota(name, parse(body)?).await?)
            }

            ("GET", ["v1", "keys"]) => json(&self.keys(None)?),
            ("GET", ["v1", "keys", tenant]) => json(&self.keys(Some(tenant))?),
            ("POST", ["v1", "keys", tenant]) => json(&self.create_key(tenant, parse(body)?).await?),
            ("DELETE", ["v1", "keys", id]) => nothing(self.remove_key(id).await),

            ("GET", ["v1", "namespaces"]) => json(&self.namespaces(None).await),
            ("POST", ["v1", "namespaces"]) => json(&self.create_namespace(parse(body)?).await?),
            ("GET", ["v1", "namespaces", name]) => json(&self.namespace(name)?),
            ("DELETE", ["v1", "namespaces", name]) => nothing(self.remove_namespace(name).await),
            ("PATCH", ["v1", "namespaces", name]) => {
                json(&self.change_namespace(name, parse(body)?).await?)
            }

            ("GET", ["v1", "modules"]) => json(&self.modules()),
            ("POST", ["v1", "modules"]) => json(&self.add_module(parse(body)?).await?),
            ("DELETE", ["v1", "modules", tenant, which]) => {
                nothing(self.remove_module(tenant, None, which).await)
            }
            ("DELETE", ["v1", "modules", tenant, which, namespace]) => {
                nothing(self.remove_module(tenant, Some(namespace), which).await)
            }

            ("POST", ["v1", "grants", "list"]) => json(&self.grants(&parse(body)?)?),
            ("DELETE", ["v1", "grants", id]) => nothing(self.remove_grant(id, None).await),
            ("DELETE", ["v1", "tenants", name, "grants"]) => json(&self.remove_grants(name).await?),

            ("GET", ["v1", "hosts"]) => json(&self.hosts()),
            ("POST", ["v1", "hosts"]) => json(&self.create_host(parse(body)?).await?),
            ("DELETE", ["v1", "hosts", nqn]) => nothing(self.remove_host(nqn).await),
            ("GET", ["v1", "tier", name]) => json(&self.tier(name)?),
            ("PUT", ["v1", "tier", name]) => json(&self.set_tier(name, parse(body)?).await?),
            ("DELETE", ["v1", "tier", name]) => nothing(self.remove_tier(name).await),
            ("PUT", ["v1", "tier", name, "rules", rule]) => {
                json(&self.add_tier_rule(name, rule, parse(body)?).await?)
            }
            ("DELETE", ["v1", "tier", name, "rules", rule]) => {
                nothing(self.remove_tier_rule(name, rule).await)
            }
            ("POST", ["v1", "tier", name, "run"]) => json(&self.run_tier(name).await?),
            ("POST", ["v1", "tier", name, "recall"]) => {
                let Recall { key, version } = parse(body)?;
                json(&self.recall(name, key.as_bytes(), version).await?)
            }
            ("POST", ["v1", "tier-sweep"]) => json(&self.sweep_tier().await?),
            _ => Err(Error::new(
                Kind::NotFound,
                format!("there is no {method} {path} in this API"),
            )),
        }
    }
}

/// A segment without its percent-encoding.
fn decoded(segment: &str) -> Option<String> {
    let bytes = percent::decode(segment, false)?;
    String::from_utf8(bytes.into_owned()).ok()
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| Error::new(Kind::Invalid, format!("the request is not right: {error}")))
}

fn json(value: &impl Serialize) -> Result<Option<Vec<u8>>> {
    serde_json::to_vec(value)
        .map(Some)
        .map_err(|error| Error::new(Kind::Failed, error.to_string()))
}

fn nothing(done: Result<()>) -> Result<Option<Vec<u8>>> {
    done.map(|()| None)
}
