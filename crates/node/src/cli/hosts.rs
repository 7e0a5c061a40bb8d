//! `forebay admin host`: who may connect to the NVMe doors.

use clap::Subcommand;
use forebay_control::api::{Host, NewHost};
use forebay_proto::nvme::psk::TlsKey;
use http::Method;
use serde_json::json;

use super::server::ServerArgs;
use super::{admin, show};
use crate::exit::{Failure, Outcome};

/// Instead of a key: one that is made.
const NEW: &str = "new";

#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Make a host known: it may connect to the NVMe doors and sees its tenant's namespaces
    #[command(after_help = "\
Examples:
  forebay admin host add $(cat /etc/nvme/hostnqn) --tenant vision --tls-key new
  FOREBAY_HOST_CHAP_SECRET=$(nvme gen-dhchap-key) forebay admin host add $(cat /etc/nvme/hostnqn) --tenant vision")]
    Add {
        /// Its NVMe Qualified Name; on Linux /etc/nvme/hostnqn has it
        nqn: String,
        /// Whose namespaces it sees
        #[arg(long, default_value = forebay_control::ROOT_TENANT)]
        tenant: String,
        /// What it must prove to hold (DH-HMAC-CHAP): DHHC-1:...
        #[arg(
            long,
            value_name = "SECRET",
            env = "FOREBAY_HOST_CHAP_SECRET",
            hide_env_values = true
        )]
        chap_secret: Option<String>,
        /// The key of its TLS, NVMeTLSkey-1:..., or `new` for one that is made and printed this once; then it must come by TLS
        #[arg(
            long,
            value_name = "KEY",
            env = "FOREBAY_HOST_TLS_KEY",
            hide_env_values = true
        )]
        tls_key: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List hosts, without secrets
    #[command(after_help = "Example: forebay admin host list")]
    List(ServerArgs),
    /// Forget a host: its connections end
    #[command(after_help = "Example: forebay admin host rm nqn.2026-01.com.example:gpu7")]
    Rm {
        /// Its NVMe Qualified Name
        nqn: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Administers hosts.
pub async fn run(command: HostCommand) -> Outcome {
    match command {
        HostCommand::Add {
            nqn,
            tenant,
            chap_secret,
            tls_key,
            server,
        } => {
            let made = (tls_key.as_deref() == Some(NEW))
                .then(fresh_key)
                .transpose()?;
            let new = NewHost {
                nqn,
                tenant,
                chap_secret,
                tls_key: made.clone().or(tls_key),
            };
            let host: Host = server.ask(Method::POST, &["hosts"], &new).await?;
            match made {
                Some(key) => show_key(&server, &host, &key),
                None => show_hosts(&server, &[host]),
            }
        }
        HostCommand::List(server) => {
            let hosts: Vec<Host> = server.ask(Method::GET, &["hosts"], &()).await?;
            show_hosts(&server, &hosts)
        }
        HostCommand::Rm { nqn, server } => admin::remove(&server, &["hosts", &nqn]).await,
    }
}

/// A key, in its interchange format.
fn fresh_key() -> Outcome<String> {
    let mut bytes = [0; 32];
    forebay_io::random(&mut bytes).map_err(Failure::io("random bytes"))?;
    Ok(TlsKey::generate(|key| key.copy_from_slice(&bytes)).interchange())
}

/// A host, and the key that nobody is shown again.
fn show_key(server: &ServerArgs, host: &Host, key: &str) -> Outcome {
    if server.json {
        return show::json(&json!({
            "nqn": host.nqn, "tenant": host.tenant, "chap": host.chap, "tls": host.tls,
            "created": host.created, "tls_key": key,
        }));
    }
    show_hosts(server, std::slice::from_ref(host))?;
    show::table(&["TLS key"], vec![vec![key.to_owned()]])
}

fn show_hosts(server: &ServerArgs, hosts: &[Host]) -> Outcome {
    if server.json {
        return hosts.iter().try_for_each(show::json);
    }
    let rows = hosts.iter().map(|host| {
        vec![
            host.nqn.clone(),
            host.tenant.clone(),
            match (host.tls, host.chap) {
                (true, true) => "TLS, CHAP",
                (true, false) => "TLS",
                (false, true) => "CHAP",
                (false, false) => "-",
            }
            .to_owned(),
            show::millis(host.created),
        ]
    });
    show::table(&["host", "tenant", "proves", "added"], rows.collect())
}
