//! Administration of a server elsewhere: the calls of `forebay.v1.Admin`, each signed by whoever asks.

use std::time::Duration;

use forebay_api::v1;
use forebay_api::v1::admin_client::AdminClient;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::direct::{Options, Rpc};
use crate::{Credentials, Endpoint, Error, Execution, Result};

/// The longest answer: that of all namespaces of a large server.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A gRPC endpoint and who administers it: the root tenant all of it, any other tenant what is its own.
#[derive(Debug, Clone)]
pub struct Admin {
    rpc: Rpc,
    deadline: Duration,
}

macro_rules! calls {
    ($($(#[$words:meta])* $call:ident($asked:ident) -> $answer:ident;)*) => {$(
        $(#[$words])*
        ///
        /// # Errors
        /// [`Error::Refused`] with the server's reason as its code, or without an answer within [`Options::deadline`].
        pub async fn $call(&self, asked: v1::$asked) -> Result<v1::$answer> {
            let call = self.answered(asked, async |admin, request| admin.$call(request).await);
            match tokio::time::timeout(self.deadline, call).await {
                Ok(answer) => answer,
                Err(_) => Err(Error::TimedOut(self.deadline)),
            }
        }
    )*};
}

impl Admin {
    /// Of the server at `endpoint`; nothing is sent before the first call. Of the options the deadline and the trust count.
    ///
    /// # Errors
    /// When there are no certificates to trust.
    pub fn new(endpoint: &Endpoint, credentials: &Credentials, options: &Options) -> Result<Admin> {
        let tls = options.tls.as_ref();
        Ok(Admin {
            rpc: Rpc::new(endpoint, credentials, tls, options.deadline)?,
            deadline: options.deadline,
        })
    }

    /// The same server, for functions and modules.
    pub fn execution(&self) -> Execution {
        Execution::of(self.rpc.clone(), self.deadline)
    }

    calls! {
        /// What runs where.
        get_server(GetServerRequest) -> Server;
        /// All tenants that the caller may see, by name.
        list_tenants(ListTenantsRequest) -> ListTenantsResponse;
        /// One tenant.
        get_tenant(GetTenantRequest) -> Tenant;
        /// Makes a tenant.
        create_tenant(CreateTenantRequest) -> Tenant;
        /// Removes a tenant and its keys.
        remove_tenant(RemoveTenantRequest) -> RemoveTenantResponse;
        /// Bounds what a tenant's namespaces hold together.
        set_tenant_quota(SetTenantQuotaRequest) -> Tenant;
        /// Access keys, oldest first, without their secrets.
        list_keys(ListKeysRequest) -> ListKeysResponse;
        /// Makes an access key; the only answer that holds its secret.
        create_key(CreateKeyRequest) -> Key;
        /// Removes an access key.
        remove_key(RemoveKeyRequest) -> RemoveKeyResponse;
        /// All namespaces that the caller may see, by name.
        list_namespaces(ListNamespacesRequest) -> ListNamespacesResponse;
        /// One namespace.
        get_namespace(GetNamespaceRequest) -> Namespace;
        /// Makes a namespace.
        create_namespace(CreateNamespaceRequest) -> Namespace;
        /// Changes what is given and nothing else.
        change_namespace(ChangeNamespaceRequest) -> Namespace;
        /// Removes a namespace that holds nothing.
        remove_namespace(RemoveNamespaceRequest) -> RemoveNamespaceResponse;
        /// Hosts that may connect to the NVMe doors, by name, without their secrets.
        list_hosts(ListHostsRequest) -> ListHostsResponse;
        /// Makes a host known to the NVMe doors.
        create_host(CreateHostRequest) -> Host;
        /// Forgets a host.
        remove_host(RemoveHostRequest) -> RemoveHostResponse;
        /// What lets the server reach memory of its clients: a page of it.
        list_grants(ListGrantsRequest) -> ListGrantsResponse;
        /// Takes back a grant, a region or a session.
        remove_grant(RemoveGrantRequest) -> RemoveGrantResponse;
        /// Ends all sessions of a tenant.
        remove_grants(RemoveGrantsRequest) -> RemoveGrantsResponse;
        /// The cold-tier rules of a namespace.
        get_tier(GetTierRequest) -> Tier;
        /// Gives a namespace one rule for the cold tier instead of all that it has.
        set_tier(SetTierRequest) -> Tier;
        /// Takes all of them away.
        remove_tier(RemoveTierRequest) -> RemoveTierResponse;
        /// Adds one beside the others, or in the place of the one of that name.
        add_tier_rule(AddTierRuleRequest) -> Tier;
        /// Takes one away.
        remove_tier_rule(RemoveTierRuleRequest) -> RemoveTierRuleResponse;
    }

    /// Reads every value and checks it, however long that takes.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's reason as its code, or without a server.
    pub async fn scrub(&self) -> Result<v1::ScrubReport> {
        let asked = v1::ScrubRequest {};
        self.answered(asked, async |admin, request| admin.scrub(request).await)
            .await
    }

    /// Applies the cold-tier rules of a namespace now, however long that takes.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's reason as its code, or without a server.
    pub async fn run_tier(&self, asked: v1::RunTierRequest) -> Result<v1::TierPass> {
        self.answered(asked, async |admin, request| admin.run_tier(request).await)
            .await
    }

    /// Brings the bytes of a value back from the cold tier, however long that takes.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's reason as its code, or without a server.
    pub async fn recall(&self, asked: v1::RecallRequest) -> Result<v1::RecallResponse> {
        self.answered(asked, async |admin, request| admin.recall(request).await)
            .await
    }

    /// Deletes copies in the cold tier to which nothing refers, however long that takes.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's reason as its code, or without a server.
    pub async fn sweep_tier(&self) -> Result<v1::SweepTierResponse> {
        let asked = v1::SweepTierRequest {};
        let call =
            async |admin: &mut AdminClient<Channel>, request| admin.sweep_tier(request).await;
        self.answered(asked, call).await
    }

    /// Applies the lifecycle rules of all namespaces now, however long that takes.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's reason as its code, or without a server.
    pub async fn run_lifecycle(&self) -> Result<v1::LifecycleReport> {
        let asked = v1::RunLifecycleRequest {};
        let call =
            async |admin: &mut AdminClient<Channel>, request| admin.run_lifecycle(request).await;
        self.answered(asked, call).await
    }

    async fn answered<Q, A>(
        &self,
        asked: Q,
        call: impl AsyncFnOnce(&mut AdminClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A> {
        let mut admin = self.rpc.admin().max_decoding_message_size(ANSWER_BYTES_MAX);
        let answer = call(&mut admin, self.rpc.signed(asked)?).await;
        let answer = answer.map_err(|status| self.rpc.refused(&status))?;
        Ok(answer.into_inner())
    }
}
