//! Ceph's errors in the waist's words.

use forebay_store::{ErrorKind, Result, StoreError};

use crate::codec::Malformed;
use crate::sys::Errno;

/// Why a store over RADOS could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct OpenError {
    message: String,
}

impl OpenError {
    pub(crate) fn new(message: impl Into<String>) -> OpenError {
        OpenError {
            message: message.into(),
        }
    }
}

/// A look at the cluster that failed: nothing was changed.
pub(crate) fn unread(errno: Errno, what: &str) -> StoreError {
    failed(errno, what, ErrorKind::Io)
}

/// A change that failed. What the cluster did not answer may have happened.
pub(crate) fn unwritten(errno: Errno, what: &str) -> StoreError {
    failed(errno, what, ErrorKind::OutcomeUnknown)
}

fn failed(errno: Errno, what: &str, unanswered: ErrorKind) -> StoreError {
    let (kind, why) = match errno.0 {
        libc::ENOSPC => (ErrorKind::NoSpace, "the pool is full".to_owned()),
        libc::EDQUOT => (ErrorKind::NoSpace, "the pool's quota is reached".to_owned()),
        libc::ETIMEDOUT => (
            unanswered,
            "the cluster did not answer in time (a storage daemon is down, or the monitors have no quorum)".to_owned(),
        ),
        // EBLOCKLISTED: what was sent before may have been carried out, its answer lost.
        libc::ESHUTDOWN => (
            unanswered,
            "the cluster has blocklisted this gateway, or the connection is closed".to_owned(),
        ),
        libc::ENAMETOOLONG => (
            ErrorKind::Invalid,
            "the key is longer than this cluster's object names may be".to_owned(),
        ),
        libc::EFBIG => (
            ErrorKind::TooLarge,
            "the object is larger than this cluster's objects may be".to_owned(),
        ),
        libc::EPERM | libc::EACCES => (
            ErrorKind::Io,
            "the cluster does not allow that to this client (see its caps)".to_owned(),
        ),
        libc::EBUSY => (ErrorKind::Busy, "the object is busy".to_owned()),
        libc::EAGAIN => (ErrorKind::Busy, "too much is with the cluster already".to_owned()),
        _ if !is_certain(errno) => (unanswered, errno.to_string()),
        _ => (ErrorKind::Io, errno.to_string()),
    };
    StoreError::new(kind, format!("{what}: {why}")).with_source(errno)
}

/// Of a change that has happened, or may have, whatever failed after it.
pub(crate) fn unknown(error: StoreError) -> StoreError {
    StoreError::new(ErrorKind::OutcomeUnknown, error.to_string()).with_source(error)
}

/// The parts of some work, each of which is done whatever became of those before it; what failed first is told in the end.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    failed: Option<StoreError>,
}

impl Parts {
    /// A part was done, or failed.
    pub fn done<T>(&mut self, part: &str, done: Result<T>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                tracing::warn!(%error, part, "left for the next time");
                self.failed.get_or_insert(error);
                None
            }
        }
    }

    /// Every part was tried.
    pub fn end(self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
}

/// Whether the cluster has said for certain that nothing happened.
pub(crate) fn is_certain(errno: Errno) -> bool {
    !matches!(errno.0, libc::ETIMEDOUT | libc::ESHUTDOWN | libc::EIO)
}

pub(crate) fn malformed(what: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Corrupt,
        format!("the record of {what} does not follow its format"),
    )
    .with_source(Malformed)
}

/// Whether what is kept of something cannot be read: looking again does not help.
pub(crate) fn is_unreadable(error: &StoreError) -> bool {
    error.kind() == ErrorKind::Corrupt
}

pub(crate) fn not_found() -> StoreError {
    StoreError::new(ErrorKind::NotFound, "the key holds no value")
}

pub(crate) fn no_such_version() -> StoreError {
    StoreError::new(ErrorKind::NoSuchVersion, "the key has no such version")
}

pub(crate) fn too_large() -> StoreError {
    StoreError::new(
        ErrorKind::TooLarge,
        "the value is larger than allowed or declared",
    )
}

pub(crate) fn condition_failed() -> StoreError {
    StoreError::new(
        ErrorKind::PreconditionFailed,
        "the condition does not hold of the current value",
    )
}

/// A key as a person may read it.
pub(crate) fn shown(key: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_happened_is_told_so() {
        for errno in (1..200).map(Errno) {
            let told = unwritten(errno, "a change").kind();
            let unknown = told == ErrorKind::OutcomeUnknown;
            assert_eq!(unknown, !is_certain(errno), "{errno}: {told:?}");
            let told = unread(errno, "a look").kind();
            assert_ne!(told, ErrorKind::OutcomeUnknown, "{errno}");
        }
    }
}
