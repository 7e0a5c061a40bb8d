//! The flags of the cache before the leaf.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use forebay_bench::Size;
use forebay_tier::{Pin, PolicyKind, Share};

/// Values kept before the backend; without these flags there is nothing between.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cache before the backend")]
pub struct CacheArgs {
    /// Keep values in so much buffer memory, beside --memory
    #[arg(long, value_name = "SIZE")]
    pub cache_memory: Option<Size>,
    /// Keep what leaves that memory in DIR, which belongs to the cache and is made when missing; it survives a restart
    #[arg(long, value_name = "DIR:SIZE", requires = "cache_memory")]
    pub cache_disk: Option<CacheDisk>,
    /// Ask the backend before every hit: nothing old is served, whoever changed it
    #[arg(long, requires = "cache_memory", conflicts_with_all = ["cache_trust", "cache_write_back"])]
    pub cache_strict: bool,
    /// Ask the backend when it was not asked for so long: what another gateway changed is served at most so long after [default: 1000]
    #[arg(long, value_name = "MS", requires = "cache_memory")]
    pub cache_trust: Option<u64>,
    /// What leaves: s3-fifo, w-tinylfu or lru [default: s3-fifo]
    #[arg(long, value_name = "NAME", requires = "cache_memory", value_parser = policy)]
    pub cache_policy: Option<PolicyKind>,
    /// Keep nothing longer than so many milliseconds
    #[arg(long, value_name = "MS", requires = "cache_memory")]
    pub cache_ttl: Option<u64>,
    /// Give up last what begins so; may be repeated
    #[arg(long, value_name = "NAMESPACE[/PREFIX]", requires = "cache_memory")]
    pub cache_pin: Vec<CachePin>,
    /// What a tenant may hold when there is not enough for all, where others count 1; may be repeated
    #[arg(long, value_name = "TENANT=WEIGHT", requires = "cache_memory")]
    pub cache_share: Vec<CacheShare>,
    /// Answer stores in namespaces of relaxed durability before the backend has committed them, at most so many bytes at once, and of one
    /// tenant an eighth of --cache-memory (or 8MiB, if that is more): a crash loses those
    #[arg(long, value_name = "SIZE", requires = "cache_memory")]
    pub cache_write_back: Option<Size>,
}

/// `DIR:SIZE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheDisk {
    /// Where.
    pub dir: PathBuf,
    /// How much.
    pub size: Size,
}

/// `NAMESPACE[/PREFIX]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachePin(pub Pin);

/// `TENANT=WEIGHT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheShare(pub Share);

impl FromStr for CacheDisk {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheDisk, String> {
        let (dir, size) = text
            .rsplit_once(':')
            .filter(|(dir, _)| !dir.is_empty())
            .ok_or("a cache's disk is DIR:SIZE, such as /nvme/cache:100GiB")?;
        Ok(CacheDisk {
            dir: dir.into(),
            size: size.parse()?,
        })
    }
}

impl FromStr for CachePin {
    type Err = String;

    fn from_str(text: &str) -> Result<CachePin, String> {
        let (namespace, prefix) = text.split_once('/').unwrap_or((text, ""));
        if namespace.is_empty() {
            return Err("a pin is NAMESPACE or NAMESPACE/PREFIX".to_owned());
        }
        Ok(CachePin(Pin {
            namespace: namespace.to_owned(),
            prefix: prefix.into(),
        }))
    }
}

impl FromStr for CacheShare {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheShare, String> {
        let share = text.split_once('=').and_then(|(tenant, weight)| {
            let weight = weight.parse().ok().filter(|weight| *weight > 0)?;
            (!tenant.is_empty()).then(|| Share {
                tenant: tenant.to_owned(),
                weight,
            })
        });
        share
            .map(CacheShare)
            .ok_or_else(|| format!("{text:?} is not a share: TENANT=WEIGHT, of at least 1"))
    }
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    PolicyKind::from_label(text)
        .ok_or_else(|| format!("{text:?} is not one of s3-fifo, w-tinylfu, lru"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_read_as_they_are_written() {
        let disk: CacheDisk = "/a:b/c:2GiB".parse().expect("a disk");
        assert_eq!((disk.dir, disk.size.0), (PathBuf::from("/a:b/c"), 2 << 30));
        let pin: CachePin = "models/llama/".parse().expect("a pin");
        assert_eq!(pin.0.prefix, b"llama/");
        let share: CacheShare = "alice=3".parse().expect("a share");
        assert_eq!(share.0.weight, 3);
        for wrong in ["", ":1GiB", "/a", "/a:x"] {
            assert!(wrong.parse::<CacheDisk>().is_err(), "{wrong}");
        }
        for wrong in ["alice", "=1", "alice=0", "alice=x"] {
            assert!(wrong.parse::<CacheShare>().is_err(), "{wrong}");
        }
        assert!("/x".parse::<CachePin>().is_err());
    }
}
