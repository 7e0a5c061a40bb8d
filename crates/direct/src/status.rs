//! What every failure is called on the wire.
#![deny(
    clippy::wildcard_enum_match_arm,
    clippy::match_wildcard_for_single_variants
)]

use std::borrow::Cow;

use forebay_fabric as fabric;
use forebay_proto::direct::{Hop, Malformed, Status};
use forebay_proto::s3::error::S3Error;
use forebay_store::{ErrorKind, StoreError};

/// A failed element.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) hop: Hop,
    pub(crate) text: Cow<'static, str>,
}

impl Failure {
    pub(crate) const fn new(status: Status, text: &'static str) -> Failure {
        Failure {
            status,
            hop: Hop::None,
            text: Cow::Borrowed(text),
        }
    }

    /// A namespace that does not exist, and one of somebody else, in the same words.
    pub(crate) const NO_NAMESPACE: Failure =
        Failure::new(Status::NoSuchNamespace, "there is no such namespace");

    /// A window of another session, outside of what is exposed, not exposed for this, or none at all, in the same words.
    pub(crate) const NOT_REACHABLE: Failure = Failure::new(
        Status::NotReachable,
        "the window is not in memory that this link may reach so",
    );

    /// The bytes asked for are more than there is room for.
    pub(crate) const TOO_SHORT: Failure = Failure::new(
        Status::TooShort,
        "there is less room than the bytes asked for",
    );

    /// Nobody will hear it.
    pub(crate) const LINK_ENDED: Failure = Failure::new(Status::Io, "the link has ended");

    /// A message that is no request.
    pub(crate) fn malformed(why: Malformed) -> Failure {
        Failure {
            status: Status::Malformed,
            hop: Hop::None,
            text: Cow::Owned(why.to_string()),
        }
    }

    /// What came is not what the caller's checksum says.
    pub(crate) fn changed_on_the_way() -> Failure {
        Failure {
            status: Status::Corrupt,
            hop: Hop::ToServer,
            text: Cow::Borrowed("the bytes that came do not match the checksum sent with them"),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let (status, hop) = match error.kind() {
            ErrorKind::NotFound => (Status::NotFound, Hop::None),
            ErrorKind::NoSuchVersion => (Status::NoSuchVersion, Hop::None),
            ErrorKind::IsDeleteMarker => (Status::IsDeleteMarker, Hop::None),
            ErrorKind::NoSuchNamespace => return Failure::NO_NAMESPACE,
            ErrorKind::PreconditionFailed => (Status::PreconditionFailed, Hop::None),
            ErrorKind::RangeNotSatisfiable => (Status::RangeNotSatisfiable, Hop::None),
            // No call of this door makes or removes a namespace.
            ErrorKind::Invalid | ErrorKind::NamespaceExists | ErrorKind::NamespaceNotEmpty => {
                (Status::Invalid, Hop::None)
            }
            ErrorKind::TooLarge => (Status::TooLarge, Hop::None),
            ErrorKind::QuotaExceeded => (Status::QuotaExceeded, Hop::None),
            ErrorKind::NoSpace => (Status::NoSpace, Hop::None),
            ErrorKind::Busy => (Status::Busy, Hop::None),
            ErrorKind::Corrupt => (Status::Corrupt, Hop::Storage),
            ErrorKind::ReadOnly => (Status::ReadOnly, Hop::None),
            ErrorKind::OutcomeUnknown => (Status::OutcomeUnknown, Hop::None),
            // No call of this door runs a function.
            ErrorKind::Unsupported
            | ErrorKind::Denied
            | ErrorKind::ProgramStopped
            | ErrorKind::ProgramFailed => (Status::Unsupported, Hop::None),
            ErrorKind::Io => (Status::Io, Hop::None),
        };
        Failure {
            status,
            hop,
            text: Cow::Owned(error.message().to_owned()),
        }
    }
}

impl From<S3Error> for Failure {
    fn from(error: S3Error) -> Failure {
        Failure {
            status: Status::Invalid,
            hop: Hop::None,
            text: Cow::Owned(error.message().to_owned()),
        }
    }
}

impl From<fabric::Error> for Failure {
    fn from(error: fabric::Error) -> Failure {
        let (status, hop) = match error.kind {
            fabric::ErrorKind::NotReachable => return Failure::NOT_REACHABLE,
            fabric::ErrorKind::Busy => (Status::Busy, Hop::None),
            fabric::ErrorKind::Invalid => (Status::Invalid, Hop::None),
            fabric::ErrorKind::Corrupt => (Status::Corrupt, Hop::ToServer),
            // Nobody will hear it.
            fabric::ErrorKind::Closed | fabric::ErrorKind::Io => (Status::Io, Hop::None),
        };
        Failure {
            status,
            hop,
            text: Cow::Owned(error.message),
        }
    }
}
