//! Administration: who may, and the operations that the Unix socket offers too.

use forebay_api::v1::{self, admin_server};
use forebay_store::Store;
use tonic::{Request, Response, Status};

use super::admission::Ticket;
use super::convert;
use super::identity::Caller;
use super::status::{Outcome, Refusal};
use super::{Door, Service};
use crate::api::{
    GrantsAsked, Limits, Namespace, NamespaceChange, NewHost, NewKey, NewNamespace, NewTenant,
};

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

impl<S: Store> Service<S> {
    /// A namespace that the caller sees.
    fn seen_namespace(&self, caller: &Caller, name: &str) -> Outcome<Namespace> {
        self.admin
            .namespace(name)
            .ok()
            .filter(|namespace| caller.sees(&namespace.tenant))
            .ok_or_else(|| Refusal::no_namespace(name))
    }
}

/// Refuses another tenant in the words for one that does not exist.
fn seen_tenant<'a>(caller: &Caller, name: &'a str) -> Outcome<&'a str> {
    match caller.sees(name) {
        true => Ok(name),
        false => Err(crate::Error::no_tenant(name).into()),
    }
}

/// Whose things are listed: one tenant's, or those of all that the caller sees.
fn asked_for<'a>(caller: &'a Caller, name: &'a str) -> Outcome<Option<&'a str>> {
    match name {
        "" if caller.is_root() => Ok(None),
        "" => Ok(Some(caller.tenant())),
        name => seen_tenant(caller, name).map(Some),
    }
}

/// What a list takes whose lines have texts of these lengths.
fn memory_of<Line>(texts: impl ExactSizeIterator<Item = usize>) -> usize {
    texts.len() * size_of::<Line>() + texts.sum::<usize>()
}

#[tonic::async_trait]
impl<S: Store> admin_server::Admin for Door<S> {
    async fn get_server(&self, request: Request<v1::GetServerRequest>) -> Answer<v1::Server> {
        let (caller, _) = Caller::of(request)?;
        caller.must_be_root()?;
        answer(convert::server(self.admin.server()))
    }

    async fn get_limits(&self, _: Request<v1::GetLimitsRequest>) -> Answer<v1::Limits> {
        answer(self.limits())
    }

    async fn list_tenants(
        &self,
        request: Request<v1::ListTenantsRequest>,
    ) -> Answer<v1::ListTenantsResponse> {
        let call = Ticket::of(&request)?;
        let (caller, _) = Caller::of(request)?;
        let tenants = match asked_for(&caller, "")? {
            None => self.admin.tenants().await,
            Some(own) => vec![self.admin.tenant(own).map_err(Refusal::from)?],
        };
        let texts = tenants.iter();
        let texts = texts.map(|tenant| tenant.name.len() + tenant.display_name.len());
        call.hold(memory_of::<v1::Tenant>(texts))?;
        answer(v1::ListTenantsResponse {
            tenants: tenants.into_iter().map(convert::tenant).collect(),
        })
    }

    async fn get_tenant(&self, request: Request<v1::GetTenantRequest>) -> Answer<v1::Tenant> {
        let (caller, asked) = Caller::of(request)?;
        let name = seen_tenant(&caller, &asked.name)?;
        answer(convert::tenant(
            self.admin.tenant(name).map_err(Refusal::from)?,
        ))
    }

    async fn create_tenant(&self, request: Request<v1::CreateTenantRequest>) -> Answer<v1::Tenant> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let new = NewTenant {
            name: asked.name,
            display_name: asked.display_name,
        };
        let made = self.admin.create_tenant(new).await;
        answer(convert::tenant(made.map_err(Refusal::from)?))
    }

    async fn remove_tenant(
        &self,
        request: Request<v1::RemoveTenantRequest>,
    ) -> Answer<v1::RemoveTenantResponse> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let removed = self.admin.remove_tenant(&asked.name).await;
        removed.map_err(Refusal::from)?;
        answer(v1::RemoveTenantResponse {})
    }

    async fn set_tenant_quota(
        &self,
        request: Request<v1::SetTenantQuotaRequest>,
    ) -> Answer<v1::Tenant> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let limits = convert::limits(asked.quota);
        let changed = self.admin.set_tenant_quota(&asked.name, limits).await;
        answer(convert::tenant(changed.map_err(Refusal::from)?))
    }

    async fn list_keys(
        &self,
        request: Request<v1::ListKeysRequest>,
    ) -> Answer<v1::ListKeysResponse> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        let tenant = asked_for(&caller, &asked.tenant)?;
        let keys = self.admin.keys(tenant).map_err(Refusal::from)?;
        let texts = keys.iter();
        let texts = texts.map(|key| key.access_key.len() + key.tenant.len());
        call.hold(memory_of::<v1::Key>(texts))?;
        answer(v1::ListKeysResponse {
            keys: keys.into_iter().map(convert::key).collect(),
        })
    }

    async fn create_key(&self, request: Request<v1::CreateKeyRequest>) -> Answer<v1::Key> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let given = |text: String| (!text.is_empty()).then_some(text);
        let new = NewKey {
            access_key: given(asked.access_key),
            secret_key: given(asked.secret_key),
        };
        let made = self.admin.create_key(&asked.tenant, new).await;
        answer(convert::key(made.map_err(Refusal::from)?))
    }

    async fn remove_key(
        &self,
        request: Request<v1::RemoveKeyRequest>,
    ) -> Answer<v1::RemoveKeyResponse> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let removed = self.admin.remove_key(&asked.access_key).await;
        removed.map_err(Refusal::from)?;
        answer(v1::RemoveKeyResponse {})
    }

    async fn list_namespaces(
        &self,
        request: Request<v1::ListNamespacesRequest>,
    ) -> Answer<v1::ListNamespacesResponse> {
        let call = Ticket::of(&request)?;
        let (caller, _) = Caller::of(request)?;
        let namespaces = self.admin.namespaces(asked_for(&caller, "")?).await;
        let texts = namespaces.iter();
        let texts = texts.map(|namespace| namespace.name.len() + namespace.tenant.len());
        call.hold(memory_of::<v1::Namespace>(texts))?;
        answer(v1::ListNamespacesResponse {
            namespaces: namespaces.into_iter().map(convert::namespace).collect(),
        })
    }

    async fn get_namespace(
        &self,
        request: Request<v1::GetNamespaceRequest>,
    ) -> Answer<v1::Namespace> {
        let (caller, asked) = Caller::of(request)?;
        let namespace = self.seen_namespace(&caller, &asked.name)?;
        answer(convert::namespace(namespace))
    }

    async fn create_namespace(
        &self,
        request: Request<v1::CreateNamespaceRequest>,
    ) -> Answer<v1::Namespace> {
        let (caller, asked) = Caller::of(request)?;
        let tenant = match asked.tenant.as_str() {
            "" => caller.tenant(),
            name => seen_tenant(&caller, name)?,
        };
        let config = convert::namespace_change(asked.config)?;
        may_change(&caller, &config)?;
        let new = NewNamespace {
            name: asked.name,
            tenant: tenant.to_owned(),
            config,
        };
        let made = self.admin.create_namespace(new).await;
        self.tell();
        answer(convert::namespace(made.map_err(Refusal::from)?))
    }

    async fn change_namespace(
        &self,
        request: Request<v1::ChangeNamespaceRequest>,
    ) -> Answer<v1::Namespace> {
        let (caller, asked) = Caller::of(request)?;
        self.seen_namespace(&caller, &asked.name)?;
        let change = convert::namespace_change(asked.change)?;
        may_change(&caller, &change)?;
        let changed = self.admin.change_namespace(&asked.name, change).await;
        self.tell();
        answer(convert::namespace(changed.map_err(Refusal::from)?))
    }

    async fn remove_namespace(
        &self,
        request: Request<v1::RemoveNamespaceRequest>,
    ) -> Answer<v1::RemoveNamespaceResponse> {
        let (caller, asked) = Caller::of(request)?;
        self.seen_namespace(&caller, &asked.name)?;
        let removed = self.admin.remove_namespace(&asked.name).await;
        self.tell();
        removed.map_err(Refusal::from)?;
        answer(v1::RemoveNamespaceResponse {})
    }

    async fn list_hosts(
        &self,
        request: Request<v1::ListHostsRequest>,
    ) -> Answer<v1::ListHostsResponse> {
        let call = Ticket::of(&request)?;
        let (caller, _) = Caller::of(request)?;
        let mut hosts = self.admin.hosts();
        hosts.retain(|host| caller.sees(&host.tenant));
        let texts = hosts.iter();
        let texts = texts.map(|host| host.nqn.len() + host.tenant.len());
        call.hold(memory_of::<v1::Host>(texts))?;
        answer(v1::ListHostsResponse {
            hosts: hosts.into_iter().map(convert::host).collect(),
        })
    }

    async fn create_host(&self, request: Request<v1::CreateHostRequest>) -> Answer<v1::Host> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let new = NewHost {
            nqn: asked.nqn,
            tenant: asked.tenant,
            chap_secret: Some(asked.chap_secret).filter(|secret| !secret.is_empty()),
            tls_key: Some(asked.tls_key).filter(|key| !key.is_empty()),
        };
        let made = self.admin.create_host(new).await;
        answer(convert::host(made.map_err(Refusal::from)?))
    }

    async fn remove_host(
        &self,
        request: Request<v1::RemoveHostRequest>,
    ) -> Answer<v1::RemoveHostResponse> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let removed = self.admin.remove_host(&asked.nqn).await;
        removed.map_err(Refusal::from)?;
        answer(v1::RemoveHostResponse {})
    }

    async fn list_grants(
        &self,
        request: Request<v1::ListGrantsRequest>,
    ) -> Answer<v1::ListGrantsResponse> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        let tenant = asked_for(&caller, &asked.tenant)?;
        let page_token = match asked.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(Refusal::invalid)?),
        };
        let asked = GrantsAsked {
            tenant: tenant.map(str::to_owned),
            page_token,
            limit: asked.limit,
        };
        let page = self.admin.grants(&asked).map_err(Refusal::from)?;
        let next = page.next_page_token;
        let texts = page.grants.iter();
        let texts = texts.map(|grant| grant.tenant.len() + grant.access_key.len());
        call.hold(memory_of::<v1::StandingGrant>(texts))?;
        answer(v1::ListGrantsResponse {
            grants: page.grants.into_iter().map(convert::grant).collect(),
            next_page_token: next.map(|next| next.to_string()).unwrap_or_default(),
        })
    }

    async fn remove_grant(
        &self,
        request: Request<v1::RemoveGrantRequest>,
    ) -> Answer<v1::RemoveGrantResponse> {
        let (caller, asked) = Caller::of(request)?;
        let of_tenant = (!caller.is_root()).then_some(caller.tenant());
        let removed = self.admin.remove_grant(&asked.id, of_tenant).await;
        removed.map_err(Refusal::from)?;
        answer(v1::RemoveGrantResponse {})
    }

    async fn remove_grants(
        &self,
        request: Request<v1::RemoveGrantsRequest>,
    ) -> Answer<v1::RemoveGrantsResponse> {
        let (caller, asked) = Caller::of(request)?;
        let tenant = seen_tenant(&caller, &asked.tenant)?;
        let ended = self.admin.remove_grants(tenant).await;
        let ended = ended.map_err(Refusal::from)?;
        answer(v1::RemoveGrantsResponse {
            sessions: ended.sessions,
        })
    }

    async fn get_tier(&self, request: Request<v1::GetTierRequest>) -> Answer<v1::Tier> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let tier = self.admin.tier(&asked.namespace).map_err(Refusal::from)?;
        answer(convert::tier(tier))
    }

    async fn set_tier(&self, request: Request<v1::SetTierRequest>) -> Answer<v1::Tier> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let policy = convert::tier_policy(asked.policy.unwrap_or_default());
        let set = self.admin.set_tier(&asked.namespace, policy).await;
        answer(convert::tier(set.map_err(Refusal::from)?))
    }

    async fn remove_tier(
        &self,
        request: Request<v1::RemoveTierRequest>,
    ) -> Answer<v1::RemoveTierResponse> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let removed = self.admin.remove_tier(&asked.namespace).await;
        removed.map_err(Refusal::from)?;
        answer(v1::RemoveTierResponse {})
    }

    async fn add_tier_rule(&self, request: Request<v1::AddTierRuleRequest>) -> Answer<v1::Tier> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let policy = convert::tier_policy(asked.policy.unwrap_or_default());
        let set = self
            .admin
            .add_tier_rule(&asked.namespace, &asked.name, policy);
        answer(convert::tier(set.await.map_err(Refusal::from)?))
    }

    async fn remove_tier_rule(
        &self,
        request: Request<v1::RemoveTierRuleRequest>,
    ) -> Answer<v1::RemoveTierRuleResponse> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let removed = self.admin.remove_tier_rule(&asked.namespace, &asked.name);
        removed.await.map_err(Refusal::from)?;
        answer(v1::RemoveTierRuleResponse {})
    }

    async fn run_tier(&self, request: Request<v1::RunTierRequest>) -> Answer<v1::TierPass> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let passed = self.admin.run_tier(&asked.namespace).await;
        answer(convert::tier_pass(passed.map_err(Refusal::from)?))
    }

    async fn recall(&self, request: Request<v1::RecallRequest>) -> Answer<v1::RecallResponse> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let recalled = self
            .admin
            .recall(&asked.namespace, &asked.key, asked.version);
        let recalled = recalled.await.map_err(Refusal::from)?.recalled;
        answer(v1::RecallResponse { recalled })
    }

    async fn sweep_tier(
        &self,
        request: Request<v1::SweepTierRequest>,
    ) -> Answer<v1::SweepTierResponse> {
        let (caller, _) = Caller::of(request)?;
        caller.must_be_root()?;
        let done = self.admin.sweep_tier().await.map_err(Refusal::from)?;
        answer(v1::SweepTierResponse {
            swept: done.swept,
            waiting: done.waiting,
        })
    }

    async fn scrub(&self, request: Request<v1::ScrubRequest>) -> Answer<v1::ScrubReport> {
        let (caller, _) = Caller::of(request)?;
        caller.must_be_root()?;
        let report = self.admin.scrub().await.map_err(Refusal::from)?;
        answer(convert::scrub_report(report))
    }

    async fn run_lifecycle(
        &self,
        request: Request<v1::RunLifecycleRequest>,
    ) -> Answer<v1::LifecycleReport> {
        let (caller, _) = Caller::of(request)?;
        caller.must_be_root()?;
        let report = self.admin.lifecycle_run().await.map_err(Refusal::from)?;
        answer(convert::lifecycle_report(report))
    }
}

/// A tenant's own bounds, and what NVMe hosts see, are not the tenant's to choose.
fn may_change(caller: &Caller, change: &NamespaceChange) -> Outcome<()> {
    match change.quota == Limits::default() && change.nsid.is_none() {
        true => Ok(()),
        false => caller.must_be_root(),
    }
}
