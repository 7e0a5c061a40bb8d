//! What lies where in BAR 0.

use forebay_proto::nvme::property::offset;
use forebay_proto::vfio_user::reply::Area;

/// Its length. Drivers map the registers and one page of doorbells; tables of MSI-X follow.
pub(super) const BAR_BYTES: u64 = 0x4000;

/// Where the doorbells begin, and the one page of them: that for 512 pairs of queues, 4 bytes each.
pub(super) const DOORBELLS: Area = Area {
    offset: offset::DOORBELLS as u64,
    size: 0x1000,
};

/// The vectors' table. Vectors are wired by messages: it reads as zero, and writing it does nothing.
pub(super) const MSIX_TABLE_AT: u32 = 0x2000;
/// Which vectors wait; none do.
pub(super) const MSIX_PENDING_AT: u32 = 0x3000;
