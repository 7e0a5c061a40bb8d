//! `forebay admin host`: who may connect to the NVMe doors.

use clap::Subcommand;
use forebay_control::api::{Host, NewHost};
use http::Method;

use super::server::ServerArgs;
use super::{admin, show};
use crate::exit::Outcome;

#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Make a host known: it may connect to the NVMe doors and sees its tenant's namespaces
    #[command(after_help = "\
Example: forebay admin host add $(cat /etc/nvme/hostnqn) --tenant vision --chap-secret $(nvme gen-dhchap-key)")]
    Add {
        /// Its NVMe Qualified Name; on Linux /etc/nvme/hostnqn has it
        nqn: String,
        /// Whose namespaces it sees
        #[arg(long, default_value = forebay_control::ROOT_TENANT)]
        tenant: String,
        /// What it must prove to hold (DH-HMAC-CHAP): DHHC-1:...
        #[arg(long, value_name = "SECRET")]
        chap_secret: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List hosts, without secrets
    List(ServerArgs),
    /// Forget a host: its connections end
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
            server,
        } => {
            let new = NewHost {
                nqn,
                tenant,
                chap_secret,
            };
            let host: Host = server.ask(Method::POST, "/v1/hosts", &new).await?;
            show_hosts(&server, &[host])
        }
        HostCommand::List(server) => {
            let hosts: Vec<Host> = server.ask(Method::GET, "/v1/hosts", &()).await?;
            show_hosts(&server, &hosts)
        }
        HostCommand::Rm { nqn, server } => {
            admin::remove(&server, &format!("/v1/hosts/{nqn}")).await
        }
    }
}

fn show_hosts(server: &ServerArgs, hosts: &[Host]) -> Outcome {
    if server.json {
        return hosts.iter().try_for_each(show::json);
    }
    let rows = hosts.iter().map(|host| {
        vec![
            host.nqn.clone(),
            host.tenant.clone(),
            if host.chap { "CHAP" } else { "-" }.to_owned(),
            show::millis(host.created),
        ]
    });
    show::table(&["host", "tenant", "proves", "added"], rows.collect())
}
