//! What a call can end with.

use std::time::Duration;

use forebay_proto::direct::Hop;

use crate::direct::Path;

/// The result of every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with an error.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No connection, or it was lost.
    #[error("{endpoint}: {what}")]
    Transport {
        /// Who did not answer.
        endpoint: String,
        /// What happened.
        what: String,
    },
    /// Nothing came for so long.
    #[error("no answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// Bytes do not match the checksum or the length that the server states.
    #[error("{0}")]
    Corrupt(String),
    /// The server's answer is none that its protocol knows.
    #[error("the server's answer makes no sense: {0}")]
    Protocol(String),
    /// Something local: a file, an argument.
    #[error("{what}: {source}")]
    Local {
        /// Which file.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
}

/// An S3 error answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}{}", self.resource())]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// S3's code, or the status in words when there was no body (HEAD).
    pub code: String,
    /// S3's message.
    pub message: String,
    /// What the request was about.
    pub resource: String,
    /// The server's name for this request, in its log too.
    pub request_id: String,
}

impl Refusal {
    /// What a caller needs to tell apart.
    pub fn kind(&self) -> Kind {
        match (self.code.as_str(), self.status) {
            // S3 has these as a bad request, or as forbidden.
            ("EntityTooLarge" | "TooManyBuckets" | "QuotaExceeded", _) => Kind::Limit,
            (_, 404) => Kind::NotFound,
            (_, 401 | 403) => Kind::Denied,
            (_, 413 | 429 | 503 | 507) => Kind::Limit,
            (_, 304 | 409 | 412) => Kind::Precondition,
            _ => Kind::Failed,
        }
    }

    fn resource(&self) -> String {
        match self.resource.as_str() {
            "" => String::new(),
            resource => format!(" ({resource})"),
        }
    }
}

/// What a caller needs to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No such namespace, object, version or upload.
    NotFound,
    /// The identity may not, or is not known.
    Denied,
    /// A quota, a full disk, or too many requests.
    Limit,
    /// A condition did not hold.
    Precondition,
    /// Anything else.
    Failed,
}

impl Error {
    /// What a caller needs to tell apart.
    pub fn kind(&self) -> Kind {
        match self {
            Error::Refused(refusal) => refusal.kind(),
            Error::Transport { .. }
            | Error::TimedOut(_)
            | Error::Corrupt(_)
            | Error::Protocol(_)
            | Error::Local { .. } => Kind::Failed,
        }
    }

    /// Whether the same call may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Refused(refusal) => matches!(refusal.status, 429 | 500 | 502 | 503 | 504),
            Error::Transport { .. } | Error::TimedOut(_) => true,
            Error::Corrupt(_) | Error::Protocol(_) | Error::Local { .. } => false,
        }
    }

    /// Whether the server says that it did nothing: then even a call may be made again that is to be done once.
    pub(crate) fn is_undone(&self) -> bool {
        matches!(self, Error::Refused(refusal) if matches!(refusal.status, 429 | 503))
    }

    /// As a call has it that is to be done once, and may have been done.
    pub(crate) fn of_unknown_outcome(self) -> Error {
        match self {
            Error::Transport { endpoint, what } => Error::Transport {
                endpoint,
                what: format!("{what}: the outcome is unknown"),
            },
            error => error,
        }
    }

    /// As a call that sent a value by this path has it: a checksum that did not match is no refusal but what happened on the way.
    pub(crate) fn of_upload(self, namespace: &str, key: &str, path: Path) -> Error {
        match self {
            Error::Refused(refusal) if refusal.code == "BadDigest" => Error::Corrupt(format!(
                "{namespace}/{key}: bytes changed {} ({path}): {}",
                Hop::ToServer.describe(),
                refusal.message
            )),
            error => error,
        }
    }

    /// Bytes that came by this path do not have the checksum that the server states.
    pub(crate) fn of_download(about: &str, path: Path, made: u64, stated: u64) -> Error {
        Error::Corrupt(format!(
            "{about}: bytes changed {} ({path}): their CRC-64/NVME is {made:016x} here, {stated:016x} there",
            Hop::ToClient.describe()
        ))
    }

    /// What comes of a value is not of the one that was asked about.
    pub(crate) fn replaced(about: impl std::fmt::Display) -> Error {
        Error::Corrupt(format!("{about} was replaced while it was read"))
    }

    pub(crate) fn local(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.to_string();
        move |source| Error::Local { what, source }
    }
}
