//! `forebay admin grant`: what lets a server reach memory of its clients.

use clap::Subcommand;
use forebay_api::v1;
use forebay_client::Admin;
use forebay_control::api::{
    Grant, GrantId, GrantKind, GrantPage, GrantedAccess, GrantedMemory, GrantsAsked, SessionsEnded,
};
use http::Method;
use serde_json::{Value, json};

use super::remote::{done, json, parse, refused};
use super::server::ServerArgs;
use super::show;
use crate::exit::{Exit, Failure, Outcome};

#[derive(Debug, Subcommand)]
pub enum GrantCommand {
    /// List sessions, and the regions and grants in them
    #[command(after_help = "\
A session lets the server reach what its client exposes on its links, for S3 requests with a token (x-amz-rdma-token). A region is
what calls and messages of its session may name, a grant a part of one that any identity of the tenant may use. An id is no secret:
nobody can use it in place of a grant or a token.

They live in the memory of one server: another gateway over the same store has others, and a restart ends them.

Examples:
  forebay admin grant list
  forebay admin grant list --tenant vision --json | jq 'select(.kind == \"grant\")'
  forebay admin grant list --endpoint https://store.example:9001 --profile vision")]
    List {
        /// Only of this tenant
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Take back grants, regions with their grants, or sessions with all that they lend
    #[command(after_help = "\
Nothing begins any more by what is taken back. A transfer under a grant or region that has begun goes on to its answer; a session's
links are closed, and its tokens refused as those of a session that never was. A client whose session was ended may open another one
as long as it has its access key: `forebay admin key rm` ends that, too.

It is done at one server: another gateway over the same store has sessions of its own.

Examples:
  forebay admin grant rm 0f3c5a7e9b1d2f4c6a8e0b2d4f6a8c1e-7     one grant or region
  forebay admin grant rm 0f3c5a7e9b1d2f4c6a8e0b2d4f6a8c1e       a session
  forebay admin grant rm --tenant vision                        all sessions of a tenant")]
    Rm {
        /// Which, as `forebay admin grant list` shows them
        #[arg(value_name = "ID", required_unless_present = "tenant", value_parser = id)]
        ids: Vec<GrantId>,
        /// All of this tenant
        #[arg(long, value_name = "NAME", conflicts_with = "ids")]
        tenant: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
}

fn id(text: &str) -> Result<GrantId, String> {
    text.parse()
        .map_err(|_| "not an id; `forebay admin grant list` shows those there are".to_owned())
}

/// Administers grants.
pub async fn run(command: GrantCommand) -> Outcome {
    match command {
        GrantCommand::List { tenant, server } => list(&server, tenant).await,
        GrantCommand::Rm {
            tenant: Some(tenant),
            server,
            ..
        } => {
            let path = ["tenants", &tenant, "grants"];
            let ended: SessionsEnded = server.ask(Method::DELETE, &path, &()).await?;
            match server.json {
                true => show::json(&ended),
                false => show::line(&format!("ended {} sessions", ended.sessions)),
            }
        }
        GrantCommand::Rm { ids, server, .. } => remove(&server, &ids).await,
    }
}

async fn list(server: &ServerArgs, tenant: Option<String>) -> Outcome {
    let mut asked = GrantsAsked {
        tenant,
        ..GrantsAsked::default()
    };
    loop {
        let page: GrantPage = server
            .ask(Method::POST, &["grants", "list"], &asked)
            .await?;
        show_grants(server, &page.grants)?;
        asked.page_token = page.next_page_token;
        if asked.page_token.is_none() {
            return Ok(());
        }
    }
}

/// Takes back as many as there are: one that ended meanwhile keeps no other.
async fn remove(server: &ServerArgs, ids: &[GrantId]) -> Outcome {
    let mut failed = None;
    for id in ids {
        let path = ["grants", &id.to_string()];
        match server.ask::<Value>(Method::DELETE, &path, &()).await {
            Ok(_) if server.json => show::json(&json!({"id": id, "removed": true}))?,
            Ok(_) => show::line(&format!("removed {id}"))?,
            Err(failure) if failure.exit == Exit::NotFound => {
                let named = format!("{id}: {}", failure.message);
                failed.get_or_insert(Failure::new(failure.exit, named));
            }
            Err(failure) => return Err(failure),
        }
    }
    failed.map_or(Ok(()), Err)
}

fn show_grants(server: &ServerArgs, grants: &[Grant]) -> Outcome {
    if server.json {
        return grants.iter().try_for_each(show::json);
    }
    let rows = grants.iter().map(|grant| {
        let memory = |show: &dyn Fn(&GrantedMemory) -> String| match &grant.memory {
            Some(memory) => show(memory),
            None => "-".to_owned(),
        };
        vec![
            grant.id.to_string(),
            match grant.kind {
                GrantKind::Session => "session",
                GrantKind::Region => "region",
                GrantKind::Grant => "grant",
            }
            .to_owned(),
            grant.tenant.clone(),
            grant.access_key.clone(),
            match grant.fabrics.as_slice() {
                [] => "-".to_owned(),
                fabrics => fabrics.join(","),
            },
            memory(&|memory| memory.region.to_string()),
            memory(&|memory| memory.offset.to_string()),
            memory(&|memory| memory.length.to_string()),
            memory(&|memory| {
                match memory.access {
                    GrantedAccess::Read => "read",
                    GrantedAccess::Write => "write",
                    GrantedAccess::ReadWrite => "read-write",
                }
                .to_owned()
            }),
            show::millis(grant.since),
            show::bound(grant.until, show::millis),
        ]
    });
    let heading = [
        "id",
        "kind",
        "tenant",
        "access key",
        "fabric",
        "region",
        "offset",
        "bytes",
        "access",
        "since",
        "until",
    ];
    show::table(&heading, rows.collect())
}

/// A page, from a server elsewhere.
pub async fn page_elsewhere(admin: &Admin, body: Value) -> Outcome<Value> {
    let asked: GrantsAsked = parse(body)?;
    let page_token = asked.page_token.map(|token| token.to_string());
    let asked = v1::ListGrantsRequest {
        tenant: asked.tenant.unwrap_or_default(),
        page_token: page_token.unwrap_or_default(),
        limit: asked.limit,
    };
    let page = admin.list_grants(asked).await.map_err(refused)?;
    let grants: Outcome<Vec<Grant>> = page.grants.into_iter().map(grant).collect();
    json(GrantPage {
        grants: grants?,
        next_page_token: match page.next_page_token.as_str() {
            "" => None,
            next => Some(next.parse().map_err(odd)?),
        },
    })
}

/// Takes something back at a server elsewhere.
pub async fn remove_elsewhere(admin: &Admin, id: &str) -> Outcome<Value> {
    let id = id.to_owned();
    done(admin.remove_grant(v1::RemoveGrantRequest { id }).await)
}

/// Ends all sessions of a tenant at a server elsewhere.
pub async fn end_elsewhere(admin: &Admin, tenant: &str) -> Outcome<Value> {
    let tenant = tenant.to_owned();
    let ended = admin
        .remove_grants(v1::RemoveGrantsRequest { tenant })
        .await;
    json(SessionsEnded {
        sessions: ended.map_err(refused)?.sessions,
    })
}

/// What a newer server may say.
fn odd(what: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format_args!("the server's answer: {what}"))
}

fn grant(grant: v1::StandingGrant) -> Outcome<Grant> {
    Ok(Grant {
        id: grant.id.parse().map_err(odd)?,
        kind: match grant.kind() {
            v1::GrantKind::Session => GrantKind::Session,
            v1::GrantKind::Region => GrantKind::Region,
            v1::GrantKind::Grant => GrantKind::Grant,
            v1::GrantKind::Unspecified => return Err(odd("a kind of grant that is not known")),
        },
        tenant: grant.tenant,
        access_key: grant.access_key,
        fabrics: grant.fabrics,
        memory: grant.memory.map(memory).transpose()?,
        since: grant.since_ms,
        until: grant.until_ms,
    })
}

fn memory(memory: v1::GrantedMemory) -> Outcome<GrantedMemory> {
    Ok(GrantedMemory {
        region: memory.region,
        offset: memory.offset,
        length: memory.length,
        access: match memory.access() {
            v1::Access::Read => GrantedAccess::Read,
            v1::Access::Write => GrantedAccess::Write,
            v1::Access::ReadWrite => GrantedAccess::ReadWrite,
            v1::Access::Unspecified => return Err(odd("an access that is not known")),
        },
    })
}
