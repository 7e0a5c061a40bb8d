//! `forebay admin tier`: which values' bytes go to the cold tier.

use clap::{Args, Subcommand, ValueEnum};
use forebay_bench::Size;
use forebay_control::api::{Recall, Recalled, Swept, Tier, TierPass, TierPolicy, TierRecall};
use http::Method;
use serde_json::json;

use super::address::Address;
use super::server::ServerArgs;
use super::{admin, period, show, versions};
use crate::exit::{Exit, Failure, Outcome};

#[derive(Debug, Subcommand)]
pub enum TierCommand {
    /// Show what goes, and what the last pass came to
    #[command(after_help = "Example: forebay admin tier show frames")]
    Show {
        /// The namespace
        namespace: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Choose what goes to the cold tier, by this rule (`default`) and no other: values for which all that is given holds
    #[command(after_help = "\
Examples:
  forebay admin tier set frames --after 30d --larger-than 1MiB
  forebay admin tier set logs --prefix archive/ --not-read-for 7d --recall never")]
    Set {
        /// The namespace
        namespace: String,
        #[command(flatten)]
        policy: PolicyArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add a rule beside others, or replace the one of that name: a value goes when any of them says so
    #[command(after_help = "\
Examples:
  forebay admin tier add frames checkpoints --prefix checkpoints/ --after 7d
  forebay admin tier add frames large --larger-than 1GiB --after 30d")]
    Add {
        /// The namespace
        namespace: String,
        /// The name of the rule
        rule: String,
        #[command(flatten)]
        policy: PolicyArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Apply the rules now
    #[command(after_help = "Example: forebay admin tier run frames")]
    Run {
        /// The namespace
        namespace: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Bring the bytes of a value back
    #[command(after_help = "Example: forebay admin tier recall fb://frames/0001.bin")]
    Recall {
        /// fb://NAMESPACE/KEY
        object: Address,
        /// Which version, as `ls --versions` shows it; the current one otherwise
        #[arg(long, value_name = "ID", value_parser = versions::parse)]
        version: Option<u64>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Delete copies in the cold tier to which nothing refers, and nothing did at a sweep a day ago or before
    #[command(after_help = "Example: forebay admin tier sweep")]
    Sweep(ServerArgs),
    /// Remove a rule, or all of them: nothing more goes by it, and what is cold comes back when it is read
    #[command(after_help = "\
Examples:
  forebay admin tier rm frames checkpoints
  forebay admin tier rm frames")]
    Rm {
        /// The namespace
        namespace: String,
        /// The name of the rule; all of them otherwise
        rule: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// Stored at least so long ago: 90s, 15m, 12h, 30d
    #[arg(long, value_name = "AGE", value_parser = period::parse)]
    after: Option<u64>,
    /// Not read for so long
    #[arg(long, value_name = "TIME", value_parser = period::parse)]
    not_read_for: Option<u64>,
    /// Of more bytes than this [default: 64KiB]
    #[arg(long, value_name = "SIZE")]
    larger_than: Option<Size>,
    /// Keys that begin so
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// What reading such a value whole does: it comes back, or never
    #[arg(long, value_enum, default_value_t = RecallArg::Read)]
    recall: RecallArg,
}

impl From<PolicyArgs> for TierPolicy {
    fn from(args: PolicyArgs) -> TierPolicy {
        TierPolicy {
            after_ms: args.after,
            not_read_for_ms: args.not_read_for,
            larger_than: args.larger_than.map(|size| size.0),
            prefix: args.prefix,
            recall: match args.recall {
                RecallArg::Read => TierRecall::Read,
                RecallArg::Never => TierRecall::Never,
            },
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RecallArg {
    /// It comes back
    Read,
    /// It stays until it is recalled by name
    Never,
}

/// Administers the cold tier.
pub async fn run(command: TierCommand) -> Outcome {
    match command {
        TierCommand::Show { namespace, server } => {
            let path = ["tier", &namespace];
            let tier: Tier = server.ask(Method::GET, &path, &()).await?;
            show_tier(&server, &tier)
        }
        TierCommand::Set {
            namespace,
            policy,
            server,
        } => {
            let path = ["tier", &namespace];
            let policy = TierPolicy::from(policy);
            let tier: Tier = server.ask(Method::PUT, &path, &policy).await?;
            show_tier(&server, &tier)
        }
        TierCommand::Add {
            namespace,
            rule,
            policy,
            server,
        } => {
            let path = ["tier", &namespace, "rules", &rule];
            let policy = TierPolicy::from(policy);
            let tier: Tier = server.ask(Method::PUT, &path, &policy).await?;
            show_tier(&server, &tier)
        }
        TierCommand::Run { namespace, server } => {
            let path = ["tier", &namespace, "run"];
            let pass: TierPass = server.ask(Method::POST, &path, &json!({})).await?;
            show_pass(&server, &pass)?;
            match (pass.gave_up, pass.failed) {
                (true, _) => Err(Failure::new(
                    Exit::Failed,
                    "the cold tier could not be reached; the rest goes with a later pass",
                )),
                (false, 0) => Ok(()),
                (false, failed) => Err(Failure::new(
                    Exit::Failed,
                    format_args!("{failed} values did not go; the next pass tries again"),
                )),
            }
        }
        TierCommand::Recall {
            object,
            version,
            server,
        } => {
            let path = ["tier", &object.namespace, "recall"];
            let asked = Recall {
                key: object.key.clone(),
                version,
            };
            let recalled = server.ask(Method::POST, &path, &asked).await;
            let recalled: Recalled = recalled.map_err(|failure: Failure| {
                Failure::new(failure.exit, format_args!("{object}: {failure}"))
            })?;
            if server.json {
                return show::json(
                    &json!({"object": object.to_string(), "recalled": recalled.recalled}),
                );
            }
            show::line(&match recalled.recalled {
                true => format!("{object} is back"),
                false => format!("{object} was here"),
            })
        }
        TierCommand::Sweep(server) => {
            let swept: Swept = server
                .ask(Method::POST, &["tier-sweep"], &json!({}))
                .await?;
            match server.json {
                true => show::json(&swept),
                false => show::line(&format!(
                    "{} copies deleted; {} to which nothing refers wait until that has been so for a day",
                    swept.swept, swept.waiting
                )),
            }
        }
        TierCommand::Rm {
            namespace,
            rule,
            server,
        } => match rule {
            Some(rule) => admin::remove(&server, &["tier", &namespace, "rules", &rule]).await,
            None => admin::remove(&server, &["tier", &namespace]).await,
        },
    }
}

fn show_tier(server: &ServerArgs, tier: &Tier) -> Outcome {
    if server.json {
        return show::json(tier);
    }
    if tier.rules.is_empty() {
        return show::line(&format!(
            "{}: nothing goes to the cold tier",
            tier.namespace
        ));
    }
    let rows = tier.rules.iter().map(|(name, policy)| {
        vec![
            name.clone(),
            policy.after_ms.map_or("-".to_owned(), period::written),
            policy
                .not_read_for_ms
                .map_or("-".to_owned(), period::written),
            show::size(policy.larger_than.unwrap_or(64 << 10)),
            match policy.prefix.is_empty() {
                true => "-".to_owned(),
                false => policy.prefix.clone(),
            },
            match policy.recall {
                TierRecall::Read => "read",
                TierRecall::Never => "never",
            }
            .to_owned(),
        ]
    });
    let heading = [
        "rule",
        "after",
        "not read for",
        "larger than",
        "prefix",
        "recall",
    ];
    show::table(&heading, rows.collect())?;
    tier.last.map_or(Ok(()), |pass| {
        show::line(&format!(
            "{} values ({}) that the rules take were cold at {}",
            pass.cold,
            show::size(pass.cold_bytes),
            show::millis(pass.at)
        ))
    })
}

fn show_pass(server: &ServerArgs, pass: &TierPass) -> Outcome {
    if server.json {
        return show::json(pass);
    }
    show::line(&format!(
        "{} values ({}) went; of those that the rules take, or of all without rules, {} ({}) are cold; {} did not go",
        pass.moved,
        show::size(pass.moved_bytes),
        pass.cold,
        show::size(pass.cold_bytes),
        pass.failed
    ))
}
