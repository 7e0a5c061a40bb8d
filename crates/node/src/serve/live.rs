//! Who asks for what now, by links, by HTTP, by gRPC and by NVMe, for `forebay top`: `GET /v1/live` on the Unix socket.

use std::sync::Arc;

use forebay_control::rpc::Service;
use forebay_s3::Door;
use forebay_store::Store;
use forebay_store::live::LiveTenant;
use serde::{Deserialize, Serialize};

use super::direct::Direct;
use super::http::Answer;
use super::nvme::Nvme;

/// Where it is asked for.
pub const PATH: &str = "/v1/live";

/// The server's sessions and links now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Sessions, idle ones included.
    pub sessions: usize,
    /// Links being served, the oldest first.
    pub links: Vec<Link>,
    /// What goes by HTTP, by tenants.
    #[serde(default)]
    pub http: Vec<Tenant>,
    /// Calls of objects and functions by gRPC, by tenants.
    #[serde(default)]
    pub grpc: Vec<Tenant>,
    /// Controllers of NVMe, the oldest first.
    #[serde(default)]
    pub nvme: Vec<Controller>,
}

/// One controller of NVMe. Counts only grow: a rate is the difference of two looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controller {
    /// Names it while the server runs.
    pub id: u64,
    /// Whose namespaces it shows; empty: everybody's.
    pub tenant: String,
    /// The host's NVMe Qualified Name; empty: it is a device of a virtual machine.
    pub host: String,
    /// By what its commands travel: `nvme-tcp` or `vfio-user`.
    pub path: String,
    /// I/O commands that ended.
    pub commands: u64,
    /// Those of them that failed, or that the host gave up.
    pub failures: u64,
    /// Payload given to the host, in bytes.
    pub sent_bytes: u64,
    /// Payload taken from the host, in bytes.
    pub received_bytes: u64,
    /// I/O commands in progress.
    pub in_flight: u64,
}

/// Requests of one tenant by one door. Counts only grow: a rate is the difference of two looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Whose they are; empty: of callers without a key.
    pub tenant: String,
    /// Requests that ended.
    pub requests: u64,
    /// Those of them that were refused, failed, or were given up by the client, and elements of gRPC's batches that failed.
    pub failures: u64,
    /// Payload sent in bodies or messages, in bytes.
    pub sent_bytes: u64,
    /// Payload received in bodies or messages, in bytes.
    pub received_bytes: u64,
    /// Requests in progress.
    pub in_flight: u64,
}

impl From<LiveTenant> for Tenant {
    fn from(live: LiveTenant) -> Tenant {
        let LiveTenant {
            tenant,
            requests,
            failures,
            sent_bytes,
            received_bytes,
            in_flight,
        } = live;
        Tenant {
            tenant,
            requests,
            failures,
            sent_bytes,
            received_bytes,
            in_flight,
        }
    }
}

/// One link. Counts only grow: a rate is the difference of two looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Names it while the server runs.
    pub id: u64,
    /// Whose it is.
    pub tenant: String,
    /// The access key that opened its session.
    pub principal: String,
    /// Its session.
    pub session: String,
    /// By what its bytes travel: `shm` or `iwarp`.
    pub path: String,
    /// Requests answered.
    pub requests: u64,
    /// Elements of requests that failed.
    pub failures: u64,
    /// Payload placed in the client's memory, in bytes: of all the session's links of this path and by whichever door, told with
    /// the first of them alone.
    pub sent_bytes: u64,
    /// Payload taken from the client's memory, in bytes, likewise.
    pub received_bytes: u64,
    /// Requests in progress.
    pub in_flight: u64,
}

/// The doors that tell.
pub(super) struct Doors<S: Store> {
    pub direct: Arc<Direct<S>>,
    pub s3: Arc<Door<S>>,
    pub rpc: Arc<Service<S>>,
    pub nvme: Arc<Nvme<S>>,
}

pub(super) fn answer<S: Store>(doors: &Doors<S>) -> Answer {
    let Doors {
        direct,
        s3,
        rpc,
        nvme,
    } = doors;
    let links = direct.door.live().into_iter().map(|link| Link {
        id: link.id,
        tenant: link.tenant,
        principal: link.principal,
        session: link.session,
        path: link.path.to_owned(),
        requests: link.requests,
        failures: link.failures,
        sent_bytes: link.sent_bytes,
        received_bytes: link.received_bytes,
        in_flight: link.in_flight,
    });
    let controllers = nvme.target.live().into_iter().map(|controller| Controller {
        id: controller.id,
        tenant: controller.tenant.unwrap_or_default(),
        path: match controller.host {
            Some(_) => "nvme-tcp".to_owned(),
            None => "vfio-user".to_owned(),
        },
        host: controller.host.unwrap_or_default(),
        commands: controller.commands,
        failures: controller.failures,
        sent_bytes: controller.sent_bytes,
        received_bytes: controller.received_bytes,
        in_flight: controller.in_flight,
    });
    let live = Live {
        sessions: direct.sessions.len(),
        links: links.collect(),
        http: s3.live().into_iter().map(Tenant::from).collect(),
        grpc: rpc.live().into_iter().map(Tenant::from).collect(),
        nvme: controllers.collect(),
    };
    match serde_json::to_vec(&live) {
        Ok(body) => Answer {
            status: 200,
            content_type: "application/json",
            body,
        },
        Err(error) => Answer::text(500, error.to_string()),
    }
}
