//! What a request is about: target, bucket and key, query, range, entity-tag conditions.
//!
//! Keys are decoded once and kept as they are: `..`, `//` and a trailing `/` are parts of keys,
//! never steps of a path. Dates are in [`super::date`].

mod condition;
mod query;
mod range;

pub use condition::{EntityTag, EntityTags, parse_entity_tags};
pub use query::{MAX_PARAMETERS, Query};
pub use range::{ByteRange, parse_copy_range, parse_range};

use std::borrow::Cow;

use super::{
    error::{ErrorCode, S3Error},
    percent::{self, Slash},
};

/// The longest key, in bytes of UTF-8.
pub const MAX_KEY: usize = 1024;
/// The longest bucket name that is looked up; new ones follow [`check_bucket_name`].
const MAX_BUCKET: usize = 255;

/// A request target in its parts, as sent (percent-encoded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The authority of an absolute-form target; it stands in for the `Host` header.
    pub host: Option<&'a str>,
    /// The path; `/` when there was none.
    pub path: &'a str,
    /// The query without its `?`; empty when there was none.
    pub query: &'a str,
}

/// Splits the target of a request line, in origin form (`/bucket/key?list`) or in absolute form
/// (`http://host/bucket/key?list`), as clients behind a proxy send it.
///
/// # Errors
/// `InvalidURI`.
pub fn parse_target(target: &str) -> Result<Target<'_>, S3Error> {
    let invalid = || S3Error::new(ErrorCode::InvalidURI);
    if target.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err(invalid());
    }
    let target = target.split_once('#').map_or(target, |(before, _)| before);
    let (host, rest) = if target.starts_with('/') {
        (None, target)
    } else {
        let (scheme, rest) = target.split_once("://").ok_or_else(invalid)?;
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return Err(invalid());
        }
        let (host, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if host.is_empty() || host.contains('@') {
            return Err(invalid());
        }
        (Some(host), rest)
    };
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    Ok(Target {
        host,
        path: if path.is_empty() { "/" } else { path },
        query,
    })
}

/// What a path and a host name together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The service: its buckets.
    Service,
    /// A bucket.
    Bucket(String),
    /// An object in a bucket.
    Object {
        /// The bucket's name.
        bucket: String,
        /// The key, 1 to [`MAX_KEY`] bytes.
        key: String,
    },
}

impl Resource {
    /// The bucket, unless it is the service.
    #[must_use]
    pub fn bucket(&self) -> Option<&str> {
        match self {
            Resource::Service => None,
            Resource::Bucket(bucket) | Resource::Object { bucket, .. } => Some(bucket),
        }
    }

    /// The key, when it is an object.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Resource::Object { key, .. } => Some(key),
            Resource::Service | Resource::Bucket(_) => None,
        }
    }
}

/// Finds the bucket that a host names in virtual-host style: what stands before the longest of the
/// base domains that it ends in. Ports and case do not count. `None`: path style, as of a base itself.
fn virtual_host_bucket<'a>(host: &'a str, base_domains: &[&str]) -> Option<&'a str> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let before = |base: &&str| {
        let at = name.len().checked_sub(base.len())?;
        let (before, end) = (name.get(..at)?, name.get(at..)?);
        let whole = before.is_empty() || before.ends_with('.');
        (end.eq_ignore_ascii_case(base) && whole).then_some(before)
    };
    let shortest = base_domains
        .iter()
        .filter_map(before)
        .min_by_key(|before| before.len())?;
    shortest
        .strip_suffix('.')
        .filter(|bucket| !bucket.is_empty())
}

/// Finds bucket and key of a path (as sent) and a host (`Host` header or absolute form).
///
/// # Errors
/// `InvalidURI` for a broken escape, a key that is not UTF-8 or holds NUL; `KeyTooLongError`;
/// `InvalidBucketName` when there is a key but no bucket, or a name that no bucket can have.
pub fn parse_resource(
    path: &str,
    host: Option<&str>,
    base_domains: &[&str],
) -> Result<Resource, S3Error> {
    let path = path.strip_prefix('/').ok_or(ErrorCode::InvalidURI)?;
    let virtual_bucket = host.and_then(|host| virtual_host_bucket(host, base_domains));
    let (bucket, key) = match virtual_bucket {
        Some(bucket) => (Cow::Owned(bucket.to_ascii_lowercase()), path),
        None if path.is_empty() => return Ok(Resource::Service),
        None => {
            let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
            (text(bucket, false)?, key)
        }
    };
    if bucket.is_empty() || bucket.len() > MAX_BUCKET {
        return Err(S3Error::new(ErrorCode::InvalidBucketName).field("BucketName", bucket));
    }
    let bucket = bucket.into_owned();
    if key.is_empty() {
        return Ok(Resource::Bucket(bucket));
    }
    let key = text(key, false)?.into_owned();
    check_key(&key)?;
    Ok(Resource::Object { bucket, key })
}

/// Decodes a component of a path to text without NUL; with `plus_is_space` one of a form.
fn text(component: &str, plus_is_space: bool) -> Result<Cow<'_, str>, S3Error> {
    let decoded = match percent::decode(component, plus_is_space).ok_or(ErrorCode::InvalidURI)? {
        Cow::Borrowed(_) => Cow::Borrowed(component),
        Cow::Owned(bytes) => {
            Cow::Owned(String::from_utf8(bytes).map_err(|_| ErrorCode::InvalidURI)?)
        }
    };
    if decoded.contains('\0') {
        return Err(ErrorCode::InvalidURI.into());
    }
    Ok(decoded)
}

/// Checks a decoded key: 1 to [`MAX_KEY`] bytes, no NUL. For keys that come in bodies.
///
/// # Errors
/// `KeyTooLongError`, `InvalidArgument`.
pub fn check_key(key: &str) -> Result<(), S3Error> {
    if key.len() > MAX_KEY {
        return Err(S3Error::new(ErrorCode::KeyTooLongError)
            .field("Size", key.len().to_string())
            .field("MaxSizeAllowed", MAX_KEY.to_string()));
    }
    if key.is_empty() || key.contains('\0') {
        return Err(S3Error::with_message(
            ErrorCode::InvalidArgument,
            "The key is not valid.",
        ));
    }
    Ok(())
}

/// Checks a new bucket's name by S3's rules: 3 to 63 of `a-z 0-9 . -`, letter or digit at both
/// ends, no two dots together, not an IP address, none of the reserved prefixes and suffixes.
///
/// # Errors
/// `InvalidBucketName`.
pub fn check_bucket_name(name: &str) -> Result<(), S3Error> {
    let edge = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let bytes = name.as_bytes();
    let valid = (3..=63).contains(&bytes.len())
        && bytes
            .iter()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-'))
        && edge(bytes.first())
        && edge(bytes.last())
        && !name.contains("..")
        && name.parse::<std::net::Ipv4Addr>().is_err()
        && !["xn--", "sthree-", "amzn-s3-demo-"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        && !["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"]
            .iter()
            .any(|suffix| name.ends_with(suffix));
    if valid {
        Ok(())
    } else {
        Err(S3Error::new(ErrorCode::InvalidBucketName).field("BucketName", name))
    }
}

/// The path of a bucket or an object, encoded as clients must sign it.
#[must_use]
pub fn encode_path(bucket: &str, key: Option<&str>) -> String {
    let mut path = String::with_capacity(bucket.len() + key.map_or(0, str::len) + 16);
    path.push('/');
    path.push_str(bucket);
    if let Some(key) = key {
        path.push('/');
        percent::encode_into(&mut path, key.as_bytes(), Slash::Keep);
    }
    path
}

/// What `x-amz-copy-source` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySource {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The version, when one is named.
    pub version_id: Option<String>,
}

/// Parses `x-amz-copy-source`: `[/]bucket/key[?versionId=id]`, percent-encoded; `+` is a space.
///
/// # Errors
/// `InvalidArgument`, or as [`parse_resource`].
pub fn parse_copy_source(value: &str) -> Result<CopySource, S3Error> {
    let invalid = || {
        S3Error::with_message(
            ErrorCode::InvalidArgument,
            "Copy Source must mention the source bucket and key: sourcebucket/sourcekey",
        )
        .field("ArgumentName", "x-amz-copy-source")
    };
    let (path, version) = match value.split_once("?versionId=") {
        Some((path, version)) => (path, Some(version)),
        None => (value, None),
    };
    // Some clients encode the slash between bucket and key as well.
    let path = text(path, true).map_err(|_| invalid())?;
    let (bucket, key) = path
        .strip_prefix('/')
        .unwrap_or(&path)
        .split_once('/')
        .ok_or_else(invalid)?;
    if bucket.is_empty() || bucket.len() > MAX_BUCKET || key.is_empty() {
        return Err(invalid());
    }
    check_key(key)?;
    let version_id = version
        .filter(|version| !version.is_empty())
        .map(|version| text(version, true).map(Cow::into_owned))
        .transpose()?;
    Ok(CopySource {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        version_id,
    })
}

#[cfg(test)]
mod tests;
