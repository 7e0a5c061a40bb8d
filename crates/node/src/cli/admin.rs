//! `forebay admin`.

use clap::{Args, Subcommand, ValueEnum};
use forebay_bench::Size;
use forebay_control::api::{
    DurabilityText, Key, LifecycleReport, Limits, Namespace, NamespaceChange, NewKey, NewNamespace,
    NewTenant, ScrubReport, Tenant,
};
use forebay_store::Versioning;
use http::Method;
use serde_json::{Value, json};

use super::grants::{self, GrantCommand};
use super::hosts::{self, HostCommand};
use super::modules::{self, ModuleCommand};
use super::period;
use super::server::ServerArgs;
use super::show;
use super::tiers::{self, TierCommand};
use super::versions;
use crate::environment::variable;
use crate::exit::{Exit, Failure, Outcome};

/// Has the secret of a key that is imported.
const IMPORTED: &str = "FOREBAY_IMPORT_SECRET_KEY";

/// Administer a server
#[derive(Debug, Args)]
#[command(after_help = "\
Speaks to the server that uses DIR over its socket, as the owner of the directory or root; with --endpoint (or FOREBAY_ENDPOINT) to
a server elsewhere over gRPC, as the tenant whose access key is given.

Examples:
  forebay admin tenant create vision --display-name 'Vision team'
  forebay admin key create vision
  forebay admin namespace create frames --tenant vision --durability relaxed:50ms --quota-bytes 500GiB
  forebay admin namespace create cache --tenant vision --nvme nsid=2
  forebay admin host add nqn.2026-01.com.example:gpu7 --tenant vision
  forebay admin module add fb://tools/lines.wasm --tenant vision --name lines
  forebay admin grant list --tenant vision
  forebay admin tier set frames --after 30d --larger-than 1MiB
  forebay admin tier add frames checkpoints --prefix checkpoints/ --after 7d
  forebay admin quota tenant vision --bytes 1024GiB --objects none
  forebay admin scrub
  forebay admin tenant list --endpoint https://store.example:9001 --profile root")]
pub struct AdminArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Owners of namespaces
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Access keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Namespaces (S3 buckets)
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// Hosts that may connect to the NVMe doors
    #[command(subcommand)]
    Host(HostCommand),
    /// Modules whose functions may be executed
    #[command(subcommand)]
    Module(ModuleCommand),
    /// What lets this server reach memory of its clients: sessions, regions and grants
    #[command(subcommand)]
    Grant(GrantCommand),
    /// Which values' bytes go to the cold tier (`serve --cold`)
    #[command(subcommand)]
    Tier(TierCommand),
    /// Bounds on what a tenant or namespace holds
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Read everything and check it, parts of uploads included, bytes in the cold tier not; fails when anything is damaged
    #[command(after_help = "Example: forebay admin scrub --json")]
    Scrub(ServerArgs),
    /// Apply the lifecycle rules now
    #[command(after_help = "Example: forebay admin lifecycle-run")]
    LifecycleRun(ServerArgs),
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// Make a tenant
    #[command(
        after_help = "Example: forebay admin tenant create vision --display-name 'Vision team'"
    )]
    Create {
        /// 1 to 63 of a-z, 0-9, -, _ and .
        #[arg(verbatim_doc_comment)]
        name: String,
        /// A name for people
        #[arg(long, default_value = "", hide_default_value = true)]
        display_name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List tenants with what they hold
    #[command(after_help = "Example: forebay admin tenant list")]
    List(ServerArgs),
    /// Remove a tenant that owns no namespace, and its keys
    #[command(after_help = "Example: forebay admin tenant rm vision")]
    Rm {
        /// Which
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a key for a tenant, or import one; prints its secret, this once
    #[command(after_help = "Example: forebay admin key create vision >> ~/.aws/credentials")]
    Create {
        /// Whose
        tenant: String,
        /// Import this access key
        #[arg(long)]
        access_key: Option<String>,
        /// Its secret [env: FOREBAY_IMPORT_SECRET_KEY]
        #[arg(long, requires = "access_key", allow_hyphen_values = true)]
        secret_key: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List keys, without secrets
    #[command(after_help = "Example: forebay admin key list vision")]
    List {
        /// Only of this tenant
        tenant: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove a key; what it signs is refused from then on
    #[command(after_help = "Example: forebay admin key rm FBK3EXAMPLE")]
    Rm {
        /// Its public half
        access_key: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Subcommand)]
enum NamespaceCommand {
    /// Make a namespace
    #[command(
        after_help = "Example: forebay admin namespace create frames --tenant vision --durability relaxed:50ms"
    )]
    Create {
        /// 3 to 63 of a-z, 0-9, - and .
        #[arg(verbatim_doc_comment)]
        name: String,
        /// Its owner [default: the tenant whose access key asks, over the socket the root]
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List namespaces with their durability and what they hold
    #[command(after_help = "Example: forebay admin namespace list")]
    List(ServerArgs),
    /// Remove an empty namespace
    #[command(after_help = "Example: forebay admin namespace rm frames")]
    Rm {
        /// Which
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Change a namespace; what is not given stays
    #[command(
        after_help = "Example: forebay admin namespace set frames --ttl 30d --quota-bytes none"
    )]
    Set {
        /// Which
        name: String,
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// Show or change a tenant's
    #[command(after_help = "Example: forebay admin quota tenant vision --bytes 500GiB")]
    Tenant {
        /// Which
        name: String,
        #[command(flatten)]
        limits: QuotaArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show or change a namespace's
    #[command(after_help = "Example: forebay admin quota namespace frames --objects none")]
    Namespace {
        /// Which
        name: String,
        #[command(flatten)]
        limits: QuotaArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Clone, Copy, Args)]
struct QuotaArgs {
    /// The most bytes, such as 500GiB; `none` for no bound
    #[arg(long, value_parser = bytes_bound)]
    bytes: Option<Bound>,
    /// The most objects; `none` for no bound
    #[arg(long, value_parser = count_bound)]
    objects: Option<Bound>,
}

#[derive(Debug, Clone, Copy, Args)]
struct ConfigArgs {
    /// When writes are answered: `sync`, when they are on stable storage; `relaxed:Nms`, at once, on stable storage N ms later
    #[arg(long)]
    durability: Option<DurabilityText>,
    /// Whether old versions are kept
    #[arg(long, value_enum)]
    versioning: Option<VersioningArg>,
    /// Objects expire after this time (90s, 15m, 12h, 30d); `none` for never
    #[arg(long, value_parser = ttl)]
    ttl: Option<Bound>,
    /// The most bytes, such as 500GiB; `none` for no bound
    #[arg(long, value_parser = bytes_bound)]
    quota_bytes: Option<Bound>,
    /// The most objects; `none` for no bound
    #[arg(long, value_parser = count_bound)]
    quota_objects: Option<Bound>,
    /// Publish it to NVMe hosts as keys and values: `nsid=N`, or `auto` for any number that is free; `none` for not
    #[arg(long, value_name = "nsid=N", value_parser = nsid)]
    nvme: Option<Nsid>,
}

/// A namespace identifier: 0 for any, none for not published.
#[derive(Debug, Clone, Copy)]
struct Nsid(Option<u32>);

fn nsid(text: &str) -> Result<Nsid, String> {
    match text {
        "none" => return Ok(Nsid(None)),
        "auto" => return Ok(Nsid(Some(0))),
        _ => {}
    }
    text.strip_prefix("nsid=")
        .and_then(|number| number.parse().ok())
        .filter(|number| *number > 0)
        .map(|number| Nsid(Some(number)))
        .ok_or_else(|| format!("{text:?} is not nsid=N, `auto` or `none`"))
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum VersioningArg {
    /// Every write makes a new version
    Enabled,
    /// New writes replace; versions that are there stay
    Suspended,
}

/// A number, or none.
#[derive(Debug, Clone, Copy)]
struct Bound(Option<u64>);

fn count_bound(text: &str) -> Result<Bound, String> {
    match text {
        "none" => Ok(Bound(None)),
        _ => text
            .parse()
            .map(|count| Bound(Some(count)))
            .map_err(|_| format!("{text:?} is not a number or `none`")),
    }
}

fn bytes_bound(text: &str) -> Result<Bound, String> {
    match text {
        "none" => Ok(Bound(None)),
        _ => text.parse::<Size>().map(|size| Bound(Some(size.0))),
    }
}

fn ttl(text: &str) -> Result<Bound, String> {
    match text {
        "none" => Ok(Bound(None)),
        _ => match period::parse(text)? {
            0 => Err("nothing lives for no time: `none` is for ever".to_owned()),
            ms => Ok(Bound(Some(ms))),
        },
    }
}

impl From<QuotaArgs> for Limits {
    fn from(args: QuotaArgs) -> Limits {
        Limits {
            bytes: args.bytes.map(|bound| bound.0),
            objects: args.objects.map(|bound| bound.0),
        }
    }
}

impl From<ConfigArgs> for NamespaceChange {
    fn from(args: ConfigArgs) -> NamespaceChange {
        NamespaceChange {
            durability: args.durability,
            versioning: args.versioning.map(|versioning| match versioning {
                VersioningArg::Enabled => Versioning::Enabled,
                VersioningArg::Suspended => Versioning::Suspended,
            }),
            ttl_ms: args.ttl.map(|bound| bound.0),
            quota: Limits {
                bytes: args.quota_bytes.map(|bound| bound.0),
                objects: args.quota_objects.map(|bound| bound.0),
            },
            nsid: args.nvme.map(|nsid| nsid.0),
        }
    }
}

/// Administers.
pub async fn run(args: AdminArgs) -> Outcome {
    match args.what {
        What::Tenant(command) => tenant(command).await,
        What::Key(command) => key(command).await,
        What::Namespace(command) => namespace(command).await,
        What::Host(command) => hosts::run(command).await,
        What::Grant(command) => grants::run(command).await,
        What::Module(command) => modules::run(command).await,
        What::Tier(command) => tiers::run(command).await,
        What::Quota(command) => quota(command).await,
        What::Scrub(server) => scrub(&server).await,
        What::LifecycleRun(server) => {
            let report: LifecycleReport = server
                .ask(Method::POST, &["lifecycle-run"], &json!({}))
                .await?;
            match server.json {
                true => show::json(&report)?,
                false => show::line(&format!(
                    "removed: {} objects, {} old versions, {} delete markers, {} unfinished uploads; {} failed",
                    report.expired, report.versions, report.markers, report.uploads, report.failed
                ))?,
            }
            match report.failed {
                0 => Ok(()),
                failed => Err(Failure::new(
                    Exit::Failed,
                    format_args!("{failed} removals failed; the next run tries again"),
                )),
            }
        }
    }
}

async fn tenant(command: TenantCommand) -> Outcome {
    match command {
        TenantCommand::Create {
            name,
            display_name,
            server,
        } => {
            let new = NewTenant { name, display_name };
            let tenant: Tenant = server.ask(Method::POST, &["tenants"], &new).await?;
            show_tenants(&server, &[tenant])
        }
        TenantCommand::List(server) => {
            let tenants: Vec<Tenant> = server.ask(Method::GET, &["tenants"], &()).await?;
            show_tenants(&server, &tenants)
        }
        TenantCommand::Rm { name, server } => remove(&server, &["tenants", &name]).await,
    }
}

/// The secret of a key that is imported.
fn imported(given: Option<String>) -> Outcome<String> {
    let given = given.or_else(|| variable(IMPORTED));
    given.ok_or_else(|| {
        Failure::new(
            Exit::Usage,
            format_args!("--access-key imports a key: --secret-key or {IMPORTED} gives its secret"),
        )
    })
}

async fn key(command: KeyCommand) -> Outcome {
    match command {
        KeyCommand::Create {
            tenant,
            access_key,
            secret_key,
            server,
        } => {
            // Where none is imported, a variable with a secret is in nobody's way.
            let secret_key = match access_key {
                Some(_) => Some(imported(secret_key)?),
                None => None,
            };
            let new = NewKey {
                access_key,
                secret_key,
            };
            let key: Key = server.ask(Method::POST, &["keys", &tenant], &new).await?;
            if server.json {
                return show::json(&key);
            }
            show::line(&format!(
                "[{}]\naws_access_key_id = {}\naws_secret_access_key = {}",
                key.tenant,
                key.access_key,
                key.secret_key.unwrap_or_default()
            ))
        }
        KeyCommand::List { tenant, server } => {
            let path: Vec<&str> = ["keys"].into_iter().chain(tenant.as_deref()).collect();
            let keys: Vec<Key> = server.ask(Method::GET, &path, &()).await?;
            if server.json {
                return keys.iter().try_for_each(show::json);
            }
            let rows = keys
                .into_iter()
                .map(|key| vec![key.access_key, key.tenant, show::millis(key.created)]);
            show::table(&["access key", "tenant", "created"], rows.collect())
        }
        KeyCommand::Rm { access_key, server } => remove(&server, &["keys", &access_key]).await,
    }
}

async fn namespace(command: NamespaceCommand) -> Outcome {
    match command {
        NamespaceCommand::Create {
            name,
            tenant,
            config,
            server,
        } => {
            let new = NewNamespace {
                name,
                tenant: tenant.unwrap_or_default(),
                config: config.into(),
            };
            let made: Namespace = server.ask(Method::POST, &["namespaces"], &new).await?;
            show_namespaces(&server, &[made])
        }
        NamespaceCommand::List(server) => {
            let namespaces: Vec<Namespace> = server.ask(Method::GET, &["namespaces"], &()).await?;
            show_namespaces(&server, &namespaces)
        }
        NamespaceCommand::Rm { name, server } => remove(&server, &["namespaces", &name]).await,
        NamespaceCommand::Set {
            name,
            config,
            server,
        } => {
            let change = NamespaceChange::from(config);
            let changed: Namespace = server
                .ask(Method::PATCH, &["namespaces", &name], &change)
                .await?;
            show_namespaces(&server, &[changed])
        }
    }
}

async fn quota(command: QuotaCommand) -> Outcome {
    match command {
        QuotaCommand::Tenant {
            name,
            limits,
            server,
        } => {
            let limits = Limits::from(limits);
            let asked = match limits == Limits::default() {
                true => server.ask(Method::GET, &["tenants", &name], &()).await,
                false => {
                    let path = ["tenants", &name, "quota"];
                    server.ask(Method::PUT, &path, &limits).await
                }
            };
            let tenant: Tenant = asked?;
            show_tenants(&server, &[tenant])
        }
        QuotaCommand::Namespace {
            name,
            limits,
            server,
        } => {
            let path = ["namespaces", &name];
            let change = NamespaceChange {
                quota: limits.into(),
                ..NamespaceChange::default()
            };
            let asked = match change == NamespaceChange::default() {
                true => server.ask(Method::GET, &path, &()).await,
                false => server.ask(Method::PATCH, &path, &change).await,
            };
            let namespace: Namespace = asked?;
            show_namespaces(&server, &[namespace])
        }
    }
}

async fn scrub(server: &ServerArgs) -> Outcome {
    let report: ScrubReport = server.ask(Method::POST, &["scrub"], &json!({})).await?;
    if server.json {
        let findings = report.findings.iter().map(|finding| {
            json!({
                "namespace": finding.namespace, "key": finding.key,
                "version": finding.version.map(versions::text), "what": finding.what,
            })
        });
        show::json(&json!({
            "objects": report.objects, "bytes": report.bytes, "elapsed_ms": report.elapsed_ms,
            "damaged": report.damaged, "findings": findings.collect::<Vec<_>>(),
        }))?;
    } else {
        show::line(&format!(
            "{} objects, {} read in {:.1} s, {} damaged",
            report.objects,
            show::size(report.bytes),
            report.elapsed_ms as f64 / 1000.0,
            report.damaged
        ))?;
        for finding in &report.findings {
            let line = format!(
                "  fb://{}/{}{}: {}",
                finding.namespace,
                finding.key,
                finding.version.map_or_else(String::new, |version| format!(
                    " (version {})",
                    versions::text(version)
                )),
                finding.what
            );
            show::line(&show::plain(&line))?;
        }
    }
    match report.damaged {
        0 => Ok(()),
        damaged => Err(Failure::new(
            Exit::Failed,
            format_args!("{damaged} objects are damaged"),
        )),
    }
}

/// Removes what `path` names.
pub async fn remove(server: &ServerArgs, path: &[&str]) -> Outcome {
    server.ask::<Value>(Method::DELETE, path, &()).await?;
    match server.json {
        true => show::json(&json!({"removed": true})),
        false => show::line("removed"),
    }
}

fn show_tenants(server: &ServerArgs, tenants: &[Tenant]) -> Outcome {
    if server.json {
        return tenants.iter().try_for_each(show::json);
    }
    let rows = tenants.iter().map(|tenant| {
        vec![
            tenant.name.clone(),
            tenant.display_name.clone(),
            tenant.keys.to_string(),
            tenant.namespaces.to_string(),
            tenant.usage.objects.to_string(),
            show::size(tenant.usage.bytes),
            show::bound(tenant.quota.objects, |count| count.to_string()),
            show::bound(tenant.quota.bytes, show::size),
        ]
    });
    let heading = [
        "tenant",
        "display name",
        "keys",
        "namespaces",
        "objects",
        "bytes",
        "max objects",
        "max bytes",
    ];
    show::table(&heading, rows.collect())
}

/// Namespaces, each with its durability.
pub fn show_namespaces(server: &ServerArgs, namespaces: &[Namespace]) -> Outcome {
    if server.json {
        return namespaces.iter().try_for_each(show::json);
    }
    let rows = namespaces.iter().map(|namespace| {
        vec![
            namespace.name.clone(),
            namespace.tenant.clone(),
            namespace.durability.to_string(),
            match namespace.versioning {
                Versioning::Off => "off",
                Versioning::Enabled => "enabled",
                Versioning::Suspended => "suspended",
            }
            .to_owned(),
            show::bound(namespace.ttl_ms, |ms| format!("{} s", ms / 1000)),
            namespace.usage.objects.to_string(),
            show::size(namespace.usage.bytes),
            show::bound(namespace.quota.objects, |count| count.to_string()),
            show::bound(namespace.quota.bytes, show::size),
            show::bound(namespace.nsid.map(u64::from), |nsid| nsid.to_string()),
        ]
    });
    let heading = [
        "namespace",
        "tenant",
        "durability",
        "versioning",
        "ttl",
        "objects",
        "bytes",
        "max objects",
        "max bytes",
        "nsid",
    ];
    show::table(&heading, rows.collect())
}
