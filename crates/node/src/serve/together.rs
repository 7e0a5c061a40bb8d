//! Flags that mean nothing beside the others: refused, not passed over. Defaults say nothing, and never stand in the way.

use clap::{Args, FromArgMatches};
use forebay_bench::Size;

use super::args::{Backend, ServeArgs};
use super::exec::{ExecArgs, Switch};
use super::leaf::CephArgs;
use super::limits;
use super::nvme::flags::NvmeTls;
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
    if let Some((flag, closed)) = of_closed_door(args) {
        return refuse(format!("--{flag} is of a door that --{closed} closes"));
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

/// A flag that protects or bounds a door which is closed, and the flag that closes it. An address stands in nobody's way: it says where the
/// door would be. What NVMe hosts are shown stays published, and devices (`--vfio-user`) show it, too.
fn of_closed_door(args: &ServeArgs) -> Option<(&'static str, &'static str)> {
    let usual: ServeArgs = usual()?;
    let s3 = [
        ("s3-domain", args.s3_domain != usual.s3_domain),
        ("s3-region", args.s3_region != usual.s3_region),
        ("s3-etag", args.s3_etag != usual.s3_etag),
        ("s3-requests", args.s3_requests != usual.s3_requests),
        ("s3-decline-body", args.s3_decline_body),
        ("s3-vendor-tokens", args.s3_vendor_tokens),
        ("s3-tls-cert", args.s3_tls_cert.is_some()),
        ("s3-tls-key", args.s3_tls_key.is_some()),
    ];
    let rpc = [
        ("rpc-tls-cert", args.rpc_tls_cert.is_some()),
        ("rpc-tls-key", args.rpc_tls_key.is_some()),
        ("rpc-client-ca", args.rpc_client_ca.is_some()),
    ];
    let direct = [
        ("direct-tls-cert", args.direct_tls_cert.is_some()),
        ("direct-tls-key", args.direct_tls_key.is_some()),
        // Without the door every token is declined, whoever's it is.
        ("s3-vendor-tokens", args.s3_vendor_tokens),
    ];
    let nvme = [
        ("nvme-allow-any-host", args.nvme_allow_any_host),
        ("nvme-tls", args.nvme_tls != NvmeTls::Allowed),
        (
            "nvme-value",
            args.nvme_value != usual.nvme_value && args.vfio_user.is_none(),
        ),
    ];
    let doors: [(&str, bool, &[_]); 4] = [
        ("no-s3", args.no_s3, &s3),
        ("no-rpc", args.no_rpc, &rpc),
        ("no-direct", args.no_direct, &direct),
        ("no-nvme", args.no_nvme, &nvme),
    ];
    let mut closed = doors.iter().filter(|(_, closed, _)| *closed);
    closed.find_map(|(closes, _, flags)| Some((first(flags)?, *closes)))
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
