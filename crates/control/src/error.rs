//! One error for the control plane; its kind becomes a status on the wire and an exit code of the command line.

use forebay_store::{ErrorKind, StoreError};
use serde::{Deserialize, Serialize};

use crate::names;

/// The result of every call here.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, as a caller needs to tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The thing named does not exist.
    NotFound,
    /// A thing of that name exists.
    Exists,
    /// The thing still holds something.
    NotEmpty,
    /// A name or argument is not legal.
    Invalid,
    /// The caller may not.
    Denied,
    /// A quota, the device's room or a bound on work in flight.
    Limit,
    /// Anything else.
    Failed,
}

impl Kind {
    /// The HTTP status that carries it.
    pub fn status(self) -> u16 {
        match self {
            Kind::NotFound => 404,
            Kind::Exists | Kind::NotEmpty => 409,
            Kind::Invalid => 400,
            Kind::Denied => 403,
            Kind::Limit => 429,
            Kind::Failed => 500,
        }
    }
}

/// A refused or failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Error {
    /// What went wrong.
    pub kind: Kind,
    /// Words for a person.
    pub message: String,
    /// What the store said, where it was the store that refused; stays in this process.
    #[serde(skip)]
    pub(crate) store: Option<ErrorKind>,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            store: None,
        }
    }
}

impl Error {
    /// The error for a table that takes no more until something is removed from it, as a quota does.
    pub fn full(message: impl Into<String>) -> Error {
        Error {
            store: Some(ErrorKind::QuotaExceeded),
            ..Error::new(Kind::Limit, message)
        }
    }

    /// The words for a tenant that does not exist.
    pub(crate) fn no_tenant(name: &str) -> Error {
        let name = names::shown(name);
        Error::new(Kind::NotFound, format!("there is no tenant {name:?}"))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        let kind = match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::NoSuchVersion
            | ErrorKind::IsDeleteMarker
            | ErrorKind::NoSuchNamespace => Kind::NotFound,
            ErrorKind::NamespaceExists => Kind::Exists,
            ErrorKind::NamespaceNotEmpty => Kind::NotEmpty,
            ErrorKind::Invalid | ErrorKind::RangeNotSatisfiable | ErrorKind::Unsupported => {
                Kind::Invalid
            }
            ErrorKind::TooLarge
            | ErrorKind::QuotaExceeded
            | ErrorKind::NoSpace
            | ErrorKind::ReadOnly
            | ErrorKind::Busy
            | ErrorKind::ProgramStopped => Kind::Limit,
            ErrorKind::Denied => Kind::Denied,
            ErrorKind::PreconditionFailed
            | ErrorKind::Corrupt
            | ErrorKind::OutcomeUnknown
            | ErrorKind::Io
            | ErrorKind::ProgramFailed => Kind::Failed,
        };
        Error {
            store: Some(error.kind()),
            ..Error::new(kind, error.message())
        }
    }
}
