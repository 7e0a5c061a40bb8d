//! Flags that mean nothing beside the others: refused, not passed over. Defaults say nothing, and never stand in the way.

use clap::{Args, FromArgMatches};
use forebay_bench::Size;

use super::args::{Backend, ServeArgs};
use super::exec::{ExecArgs, Switch};
use super::leaf::CephArgs;
use super::limits;
use crate::exit::{Exit, Failure, Outcome};

/// Refuses what would have no effect.
pub fn check(args: &ServeArgs) -> Outcome {
    let refuse = |what: String| Err(Failure::new(Exit::Usage, what));
    let engine = args.backend == Backend::Engine;
    let rados = matches!(args.backend, Backend::Rados(_));
    let of_engine = [
        ("device", args.device.is_some(), "keeps the values"),
        ("cache", args.cache.is_some(), "is the memory"),
        (
            "lose-journal-from",
            args.lose_journal_from.is_some(),
            "opens the journal",
        ),
        (
            "accept-damaged-index",
            args.accept_damaged_index,
            "opens the index",
        ),
    ];
    if let Some((flag, _, does)) = of_engine.iter().find(|(_, given, _)| *given && !engine) {
        return refuse(format!("--{flag} {does} of --backend engine"));
    }
    if args.capacity.is_some() && rados {
        return refuse(
            "--capacity bounds --backend engine and memory: a pool is bounded by its cluster"
                .to_owned(),
        );
    }
    if !rados && let Some(flag) = ceph(&args.ceph) {
        return refuse(format!("--{flag} is of --backend rados:POOL"));
    }
    if args.exec.exec == Switch::Off
        && let Some(flag) = functions(&args.exec)
    {
        return refuse(format!(
            "--{flag} bounds functions, and --exec off runs none"
        ));
    }
    let bytes = limits::pool_bytes(args);
    match args.cache {
        Some(cache) if cache.0 > bytes => refuse(format!(
            "--cache {cache} is part of the buffer memory, which has {}: say more --memory or less --cache",
            Size(bytes)
        )),
        _ => Ok(()),
    }
}

/// The flags' defaults.
fn usual<T: Args + FromArgMatches>() -> Option<T> {
    let command = T::augment_args(clap::Command::new("serve").no_binary_name(true));
    let matches = command.try_get_matches_from::<_, &str>([]).ok()?;
    T::from_arg_matches(&matches).ok()
}

/// A flag for a cluster that is not at its default.
fn ceph(args: &CephArgs) -> Option<&'static str> {
    let usual: CephArgs = usual()?;
    let given = [
        ("ceph-conf", args.ceph_conf != usual.ceph_conf),
        ("ceph-id", args.ceph_id != usual.ceph_id),
        ("ceph-keyring", args.ceph_keyring != usual.ceph_keyring),
        ("ceph-patience", args.ceph_patience != usual.ceph_patience),
        ("ceph-lease", args.ceph_lease != usual.ceph_lease),
        ("ceph-grace", args.ceph_grace != usual.ceph_grace),
    ];
    first(&given)
}

/// A flag for functions that is not at its default.
fn functions(args: &ExecArgs) -> Option<&'static str> {
    let usual: ExecArgs = usual()?;
    let given = [
        ("exec-deadline", args.exec_deadline != usual.exec_deadline),
        ("exec-memory", args.exec_memory != usual.exec_memory),
        ("exec-threads", args.exec_threads != usual.exec_threads),
    ];
    first(&given)
}

fn first(given: &[(&'static str, bool)]) -> Option<&'static str> {
    let found = given.iter().find(|(_, given)| *given);
    found.map(|(flag, _)| *flag)
}
