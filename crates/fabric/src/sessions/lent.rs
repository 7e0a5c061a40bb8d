//! What a client lets the server reach.

use forebay_io::UnixMillis;

use super::LinkId;
use crate::{Access, Fabric, RemoteRange, Stag};

/// Names a registered region in its session; never reused there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegisteredId(pub u64);

/// Memory of a client that its session's calls may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// The link on which the client exposed it.
    pub link: LinkId,
    /// Its name there.
    pub stag: Stag,
    /// The tagged offset of its first byte.
    pub base: u64,
    /// Its length in bytes.
    pub len: u64,
    /// What the server may do with it.
    pub access: Access,
}

impl Registered {
    /// Bytes of it as the link knows them; `None` when it does not have these bytes or this access.
    pub fn range(&self, offset: u64, len: u64, access: Access) -> Option<RemoteRange> {
        let end = offset.checked_add(len)?;
        (end <= self.len && self.access.includes(access)).then_some(())?;
        Some(RemoteRange {
            stag: self.stag,
            offset: self.base.checked_add(offset)?,
            len,
        })
    }
}

/// Memory that a session lets the server reach: a region, or a grant for a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Names it in its session; a region's is the region itself.
    pub name: u64,
    /// The region.
    pub region: RegisteredId,
    /// By what it is reached.
    pub fabric: Fabric,
    /// The first byte, counted from the region's first.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// What may be done with them.
    pub access: Access,
    /// When it was registered or first granted.
    pub since: UnixMillis,
    /// When the last one issued of a grant ends; `None` of a region, which lasts as long as its link.
    pub until: Option<UnixMillis>,
}
