//! A pool of a Ceph cluster as a leaf: how it is opened and looked after.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use forebay_control::api::{Finding, ScrubReport};
use forebay_mem::Pool;
use forebay_rados::{Config, RadosStore};
use forebay_store::{ErrorKind, Store, StoreError};

use crate::exit::{Exit, Failure, Outcome};
use crate::serve::UnixClock;
use crate::serve::leaf::scrub;

/// How the cluster is found, and how patiently it is waited for.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Ceph, for --backend rados:POOL")]
pub struct CephArgs {
    /// The cluster's configuration [default: where librados looks for it]
    #[arg(long, value_name = "FILE")]
    pub ceph_conf: Option<PathBuf>,
    /// The client's name, without `client.`
    #[arg(long, value_name = "NAME", default_value = "admin")]
    pub ceph_id: String,
    /// The file with the client's key [default: as the configuration says]
    #[arg(long, value_name = "FILE")]
    pub ceph_keyring: Option<PathBuf>,
    /// How long one operation of the cluster may take before it counts as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub ceph_patience: u32,
    /// How long after its last sign of life a gateway counts as dead, so that the others clean up after it
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub ceph_lease: u32,
    /// How long the bytes of a large value that was replaced stay for those who still read them
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub ceph_grace: u32,
}

/// `POOL` or `POOL/NAMESPACE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub pool: String,
    /// What the names of RADOS namespaces begin with; empty for none.
    pub base: String,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let (pool, base) = text.split_once('/').unwrap_or((text, ""));
        if pool.is_empty() || text.ends_with('/') {
            return Err("it is rados:POOL or rados:POOL/NAMESPACE".to_owned());
        }
        Ok(Place {
            pool: pool.to_owned(),
            base: base.to_owned(),
        })
    }
}

/// Connects; blocks for as long as the cluster is waited for.
pub fn open(place: &Place, args: &CephArgs, pool: Pool, clock: UnixClock) -> Outcome<RadosStore> {
    let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds));
    let config = Config {
        base: place.base.clone(),
        conf: args.ceph_conf.clone(),
        id: args.ceph_id.clone(),
        keyring: args.ceph_keyring.clone(),
        patience: seconds(args.ceph_patience),
        lease: seconds(args.ceph_lease),
        grace: seconds(args.ceph_grace),
        ..Config::new(&place.pool)
    };
    RadosStore::open(config, pool, move || clock())
        .map_err(|error| Failure::new(Exit::Failed, format!("rados:{}: {error}", place.pool)))
}

/// Takes over what other hands wrote, cleans up what is left of gateways that died, and looks for stripes that nothing refers to. What cannot
/// be read keeps nothing else back, and is told.
pub async fn tidy(store: &RadosStore) -> Result<ScrubReport, StoreError> {
    let mut passed_over = ScrubReport::default();
    for namespace in store.namespaces() {
        let mut found = |error| scrub::found(&mut passed_over, finding(&namespace.name, error));
        match store.adopt(&namespace.name).await {
            Ok(adopted) => {
                adopted.unreadable.into_iter().for_each(found);
                passed_over.damaged += adopted.unnamed as u64;
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => found(error),
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NoSuchNamespace => {}
            Err(error) => return Err(error),
        }
    }
    match store.sweep().await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            scrub::found(&mut passed_over, finding("", error));
        }
        swept => drop(swept?),
    }
    for namespace in store.namespaces() {
        match store.find_strays(&namespace.name).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                scrub::found(&mut passed_over, finding(&namespace.name, error));
            }
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NoSuchNamespace => {}
            found => drop(found?),
        }
    }
    Ok(passed_over)
}

/// The error names what cannot be read.
fn finding(namespace: &str, error: StoreError) -> Finding {
    Finding {
        namespace: namespace.to_owned(),
        key: String::new(),
        version: None,
        what: error.message().to_owned(),
    }
}

/// Leaves the cluster; blocking.
pub fn close(store: &RadosStore) {
    tokio::runtime::Handle::current().block_on(store.clone().close());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = |pool: &str, base: &str| Place {
            pool: pool.to_owned(),
            base: base.to_owned(),
        };
        assert_eq!("p".parse(), Ok(place("p", "")));
        assert_eq!("p/n".parse(), Ok(place("p", "n")));
        for wrong in ["", "/n", "p/"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
