//! Bounds that hold for every store. A door refuses more in its own words before it calls; a store refuses again.

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
pub const EXIST_BATCH_MAX: usize = 1000;
/// The most values one `compose` call joins.
pub const COMPOSE_SOURCES_MAX: usize = 10_000;
