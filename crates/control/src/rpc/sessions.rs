//! Sessions, regions and grants: messages to the table that all doors share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_api::v1::{self, sessions_server};
use forebay_fabric::sessions::{Grant, LinkId, Principal, Registered, RegisteredId};
use forebay_fabric::{Access, Fabric, Session, SessionId, Sessions, Stag};
use forebay_store::Store;
use tonic::{Request, Response, Status};

use super::identity::Caller;
use super::status::{Outcome, Refusal};
use super::{Door, Service};
use crate::{AccessKey, Identities};

/// A lease for those who name none.
const LEASE: Duration = Duration::from_secs(30);
/// A shorter lease could not be kept alive in time.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// A grant's life for those who name none.
const LIFETIME: Duration = Duration::from_secs(60);

impl<S: Store> Service<S> {
    /// The caller's session of that name.
    pub(super) fn session(&self, caller: &Caller, id: &[u8]) -> Outcome<Arc<Session>> {
        let id = id.try_into().map(SessionId).ok();
        id.and_then(|id| {
            self.sessions
                .find_of(id, caller.tenant(), caller.principal())
        })
        .ok_or_else(Refusal::no_session)
    }

    /// The same, also when it has ended, by whatever, and what was asked over its links goes on.
    fn session_to_close(&self, caller: &Caller, id: &[u8]) -> Outcome<Arc<Session>> {
        self.session(caller, id).or_else(|none| {
            let id = id.try_into().map(SessionId).ok();
            id.and_then(|id| {
                self.sessions
                    .ending_of(id, caller.tenant(), caller.principal())
            })
            .ok_or(none)
        })
    }

    fn lease(&self, asked_ms: u64) -> Duration {
        let lease = match asked_ms {
            0 => LEASE,
            asked => Duration::from_millis(asked),
        };
        lease.max(LEASE_MIN).min(self.sessions.limits().lease)
    }
}

/// Has sessions end when the access keys that opened them are removed or replaced.
pub(super) fn end_with_their_keys<S: Store>(identities: &Identities<S>, sessions: &Arc<Sessions>) {
    let sessions = Arc::downgrade(sessions);
    identities.on_keys_changed(move |keys| {
        let Some(sessions) = sessions.upgrade().filter(|sessions| !sessions.is_empty()) else {
            return;
        };
        let known: HashMap<&str, &AccessKey> =
            keys.iter().map(|key| (key.id.as_str(), &**key)).collect();
        for session in sessions.all() {
            let key = known.get(session.principal());
            if !key.is_some_and(|key| session.is_of(principal(key))) {
                sessions.close(session.id());
            }
        }
    });
}

fn principal(key: &AccessKey) -> Principal<'_> {
    Principal {
        tenant: &key.tenant,
        id: &key.id,
        secret: &key.secret,
    }
}

fn lifetime(asked_ms: u64) -> Duration {
    match asked_ms {
        0 => LIFETIME,
        asked => Duration::from_millis(asked),
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

fn access(access: i32) -> Outcome<Access> {
    match v1::Access::try_from(access) {
        Ok(v1::Access::Read) => Ok(Access::Read),
        Ok(v1::Access::Write) => Ok(Access::Write),
        Ok(v1::Access::ReadWrite) => Ok(Access::ReadWrite),
        Ok(v1::Access::Unspecified) | Err(_) => {
            Err(Refusal::invalid("an access is read, write or both"))
        }
    }
}

fn fabric(name: &str) -> Option<Fabric> {
    [Fabric::Shm, Fabric::Iwarp]
        .into_iter()
        .find(|fabric| fabric.name() == name)
}

#[tonic::async_trait]
impl<S: Store> sessions_server::Sessions for Door<S> {
    async fn open(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        let lease = self.lease(asked.lease_ms);
        let opened = self
            .sessions
            .open_with_random_key(principal(caller.key()), lease);
        let session = opened.map_err(Refusal::from)?;
        // A key that was removed or replaced meanwhile has taken its sessions with it already.
        if !self.stands(&caller) {
            self.sessions.close(session.id());
            return Err(Refusal::key_gone().into());
        }
        Ok(Response::new(v1::OpenSessionResponse {
            session: session.id().0.to_vec().into(),
            key: session.key().to_vec().into(),
            lease_ms: millis(lease),
            paths: self.config.paths.clone(),
        }))
    }

    async fn keep_alive(
        &self,
        request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::KeepAliveResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        let session = self.session(&caller, &asked.session)?;
        let lease = self.lease(asked.lease_ms);
        if !self.sessions.renew(session.id(), lease) {
            return Err(Refusal::no_session().into());
        }
        Ok(Response::new(v1::KeepAliveResponse {
            lease_ms: millis(lease),
        }))
    }

    async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        // Who is told that there is none takes that for quiet, too: as one whose first call was cut off does.
        let session = self.session_to_close(&caller, &asked.session)?;
        self.sessions.close(session.id());
        session.quiet().await;
        Ok(Response::new(v1::CloseSessionResponse {}))
    }

    async fn register_region(
        &self,
        request: Request<v1::RegisterRegionRequest>,
    ) -> Result<Response<v1::RegisterRegionResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        let session = self.session(&caller, &asked.session)?;
        let access = access(asked.access)?;
        let link = match (asked.link, asked.fabric.as_str()) {
            (0, "") => session.links().pop().map(|(id, _)| id),
            (0, name) => {
                let fabric =
                    fabric(name).ok_or_else(|| Refusal::invalid("a fabric is `shm` or `iwarp`"))?;
                let rail = session.rail(fabric, asked.rail as usize);
                rail.map(|(id, _)| id)
            }
            (id, _) => Some(LinkId(id)).filter(|id| session.link(*id).is_some()),
        };
        let link = link.ok_or_else(Refusal::no_region)?;
        let region = session.register(Registered {
            link,
            stag: Stag(asked.stag),
            base: asked.base,
            len: asked.length,
            access,
        });
        Ok(Response::new(v1::RegisterRegionResponse {
            region: region.map_err(Refusal::from)?.0,
        }))
    }

    async fn deregister_region(
        &self,
        request: Request<v1::DeregisterRegionRequest>,
    ) -> Result<Response<v1::DeregisterRegionResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        let session = self.session(&caller, &asked.session)?;
        match session.deregister(RegisteredId(asked.region)) {
            true => Ok(Response::new(v1::DeregisterRegionResponse {})),
            false => Err(Refusal::no_region().into()),
        }
    }

    async fn grant(
        &self,
        request: Request<v1::GrantRequest>,
    ) -> Result<Response<v1::GrantResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        let session = self.session(&caller, &asked.session)?;
        let granted = session.grant(
            RegisteredId(asked.region),
            asked.offset,
            asked.length,
            access(asked.access)?,
            lifetime(asked.lifetime_ms),
        );
        let grant = granted.map_err(Refusal::from)?;
        Ok(Response::new(v1::GrantResponse {
            grant: grant.encode().to_vec().into(),
            id: grant.id,
            expires_ms: grant.expires,
        }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        let renewed = Grant::decode(&asked.grant).and_then(|grant| {
            let session =
                self.sessions
                    .find_of(grant.session, caller.tenant(), caller.principal())?;
            session.renew_grant(&grant, lifetime(asked.lifetime_ms))
        });
        let grant = renewed.ok_or_else(Refusal::no_grant)?;
        Ok(Response::new(v1::RenewResponse {
            grant: grant.encode().to_vec().into(),
            expires_ms: grant.expires,
        }))
    }

    async fn revoke(
        &self,
        request: Request<v1::RevokeRequest>,
    ) -> Result<Response<v1::RevokeResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        let session = self.session(&caller, &asked.session)?;
        match session.revoke(asked.id) {
            true => Ok(Response::new(v1::RevokeResponse {})),
            false => Err(Refusal::no_grant().into()),
        }
    }
}
