//! What a call can end with.

use std::io;

use forebay_proto::nvme::Status;

/// The result of every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The controller completed the command with an error; nothing of it took place unless its command set says otherwise, as it does of
    /// blocks that could not be written.
    #[error("{0}")]
    Status(Status),
    /// The connection was lost, or silent, while the command was with the controller, or that said that it does not know what became of
    /// it; and it could not be repeated, or not in time: it may have taken place.
    #[error("the outcome is unknown: {0}")]
    Lost(String),
    /// There is no connection, and none was made within the command's patience: it did not take place.
    #[error("the controller cannot be reached: {0}")]
    Unreachable(String),
    /// The controller, or what answers in its place, broke the protocol.
    #[error("not NVMe as it should be: {0}")]
    Protocol(String),
    /// The controller does not let this host in, or could not prove who it is.
    #[error("not admitted: {0}")]
    Denied(String),
    /// The bytes that arrived do not match their digest.
    #[error("payload does not match its digest")]
    Damaged,
    /// The call makes no sense for this controller or namespace; nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// The host was closed: it did not take place.
    #[error("the host is closed")]
    Closed,
}

impl Error {
    pub(super) fn invalid(why: impl Into<String>) -> Error {
        Error::Invalid(why.into())
    }

    pub(super) fn protocol(why: impl Into<String>) -> Error {
        Error::Protocol(why.into())
    }

    /// Whether the key does not exist.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Error::Status(status) if status.code() == Status::KV_KEY_DOES_NOT_EXIST)
    }

    /// Whether the controller does not know what became of the command.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self, Error::Status(status) if status.code() == Status::OUTCOME_UNKNOWN)
    }

    /// Whether the same call may succeed a moment later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Status(status) => !status.do_not_retry(),
            Error::Lost(_) | Error::Unreachable(_) | Error::Damaged => true,
            Error::Protocol(_) | Error::Denied(_) | Error::Invalid(_) | Error::Closed => false,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Status(_) | Error::Protocol(_) => io::ErrorKind::Other,
            Error::Damaged => io::ErrorKind::InvalidData,
            Error::Lost(_) => io::ErrorKind::ConnectionReset,
            Error::Unreachable(_) => io::ErrorKind::TimedOut,
            Error::Denied(_) => io::ErrorKind::PermissionDenied,
            Error::Invalid(_) => io::ErrorKind::InvalidInput,
            Error::Closed => io::ErrorKind::NotConnected,
        };
        io::Error::new(kind, error)
    }
}
