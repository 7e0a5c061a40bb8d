//! Why a request was refused, as the answering system's errno (Linux's numbers).

use forebay_proto::vfio_user::Malformed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Errno(pub(super) u32);

impl Errno {
    /// EPERM.
    pub(super) const DENIED: Errno = Errno(1);
    /// ENOENT.
    pub(super) const MISSING: Errno = Errno(2);
    /// EBUSY.
    pub(super) const BUSY: Errno = Errno(16);
    /// EEXIST.
    pub(super) const EXISTS: Errno = Errno(17);
    /// EINVAL.
    pub(super) const INVALID: Errno = Errno(22);
    /// ENOSPC.
    pub(super) const NO_SPACE: Errno = Errno(28);
    /// ENOTSUP.
    pub(super) const UNSUPPORTED: Errno = Errno(95);
}

impl From<Malformed> for Errno {
    fn from(malformed: Malformed) -> Errno {
        match malformed {
            Malformed::Unsupported(_) => Errno::UNSUPPORTED,
            Malformed::Truncated
            | Malformed::TooLong(_)
            | Malformed::Number(_)
            | Malformed::Contradiction(_)
            | Malformed::Capability(_) => Errno::INVALID,
        }
    }
}
