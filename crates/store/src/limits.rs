//! Bounds that hold for every store. A door refuses more in its own words before it calls; a store refuses again.

use std::collections::HashSet;

use crate::{Address, ErrorKind, Meta, Result, Source, Space, StoreError};

/// The longest key, in bytes; the shortest is 1.
pub const KEY_BYTES_MAX: usize = 1024;
/// The longest key in the staging space: a key, an upload's name and a part number.
pub const STAGING_KEY_BYTES_MAX: usize = KEY_BYTES_MAX + 64;
/// The longest namespace name, in bytes. Names are visible ASCII without `/`.
pub const NAMESPACE_BYTES_MAX: usize = 63;
/// The largest value: 5 TiB.
pub const VALUE_BYTES_MAX: u64 = 5 << 40;
/// All attributes of one value, encoded.
pub const ATTRIBUTES_BYTES_MAX: usize = 512 << 10;
/// The longest entity tag, in bytes.
pub const ETAG_BYTES_MAX: usize = 64;
/// The most entries one list call returns.
pub const LIST_ITEMS_MAX: usize = 1000;
/// The most addresses one `exist` call takes.
pub const EXIST_BATCH_MAX: usize = 10_000;
/// Fewer bytes of a staged value do not count for what it takes: it then counts as an object, too.
pub const STAGED_BYTES_MIN: u64 = 4 << 10;
/// The most namespaces that doors make for one tenant.
pub const NAMESPACES_MAX: usize = 10_000;
/// The most values one `compose` call joins.
pub const COMPOSE_SOURCES_MAX: usize = 10_000;

/// Whether a tenant that has `own` of the `all` that is taken may have `more`, where there is `bound`: no more than is then free, so that
/// there is always room for one that has nothing yet.
#[must_use]
pub fn may_have(more: usize, own: usize, all: usize, bound: usize) -> bool {
    own.saturating_add(more) <= bound.saturating_sub(all)
}

/// So many bytes, and no more than `most`, as a length in memory.
#[must_use]
pub fn at_most(bytes: u64, most: usize) -> usize {
    usize::try_from(bytes).map_or(most, |bytes| bytes.min(most))
}

/// Refuses a key that is empty or too long for its space.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub fn check_key(space: Space, key: &[u8]) -> Result<()> {
    let max = match space {
        Space::Objects => KEY_BYTES_MAX,
        Space::Staging => STAGING_KEY_BYTES_MAX,
    };
    if key.is_empty() || key.len() > max {
        return Err(StoreError::new(
            ErrorKind::Invalid,
            format!("a key has 1 to {max} bytes, not {}", key.len()),
        ));
    }
    Ok(())
}

/// Refuses a namespace or tenant name that is not 1 to [`NAMESPACE_BYTES_MAX`] visible ASCII characters other than `/`.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub fn check_name(name: &str) -> Result<()> {
    let legal = !name.is_empty()
        && name.len() <= NAMESPACE_BYTES_MAX
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'/');
    if !legal {
        return Err(StoreError::new(
            ErrorKind::Invalid,
            format!("a name is 1 to {NAMESPACE_BYTES_MAX} visible ASCII characters without '/'"),
        ));
    }
    Ok(())
}

/// Refuses an `exist` call with too many addresses, or with an illegal key.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub fn check_batch(addresses: &[Address<'_>]) -> Result<()> {
    if addresses.len() > EXIST_BATCH_MAX {
        return Err(StoreError::new(
            ErrorKind::Invalid,
            format!("at most {EXIST_BATCH_MAX} addresses at once"),
        ));
    }
    addresses
        .iter()
        .try_for_each(|address| check_key(address.space, address.key))
}

/// Refuses to let go of what is not an object, or has no bytes.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub fn check_let_go(address: Address<'_>, seen: &Meta) -> Result<()> {
    if address.space != Space::Objects || seen.size == 0 {
        return Err(StoreError::new(
            ErrorKind::Invalid,
            "only bytes of objects can be let go",
        ));
    }
    Ok(())
}

/// Refuses to take back bytes that are not those of the value that `meta` is of.
///
/// # Errors
/// [`ErrorKind::Corrupt`].
pub fn check_back(meta: &Meta, size: u64, crc64nvme: u64) -> Result<()> {
    match (size, crc64nvme) == (meta.size, meta.crc64nvme) {
        true => Ok(()),
        false => Err(StoreError::new(
            ErrorKind::Corrupt,
            "the bytes that came back are not the value's",
        )),
    }
}

/// Refuses a `compose` call whose target is not in the objects space, that joins or consumes too many values, names one
/// source twice, or holds an illegal key.
///
/// # Errors
/// [`ErrorKind::Invalid`].
pub fn check_compose(
    target: Address<'_>,
    sources: &[Source<'_>],
    consumed: &[&[u8]],
) -> Result<()> {
    check_key(target.space, target.key)?;
    let refuse = |message: &str| Err(StoreError::new(ErrorKind::Invalid, message));
    if target.space != Space::Objects {
        return refuse("the target of compose is an object");
    }
    if sources.len() > COMPOSE_SOURCES_MAX || consumed.len() > COMPOSE_SOURCES_MAX {
        return refuse("too many values to join");
    }
    let mut seen = HashSet::with_capacity(sources.len());
    for source in sources {
        check_key(Space::Staging, source.key)?;
        if !seen.insert(source.key) {
            return refuse("a source is named twice");
        }
    }
    consumed
        .iter()
        .try_for_each(|key| check_key(Space::Staging, key))
}
