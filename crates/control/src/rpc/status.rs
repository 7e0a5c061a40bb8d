//! Why a call is refused, and the one mapping of every room's errors to gRPC's.
#![deny(clippy::wildcard_enum_match_arm)]

use forebay_api::REASON_METADATA;
use forebay_api::v1::{Failure, Reason};
use forebay_fabric::sessions::Refused;
use forebay_store::{ErrorKind, StoreError};
use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::Kind;

/// What a refusal says is cut after so many bytes: an answer repeats little of what was asked, and goes out as headers, which no client has
/// to have room for before they are sent.
const MESSAGE_BYTES_MAX: usize = 1024;

/// A refusal on its way to the client: of a call, or of one element of it.
#[derive(Debug)]
pub(crate) struct Refusal {
    reason: Reason,
    message: String,
}

/// What an operation comes to.
pub(crate) type Outcome<T> = Result<T, Refusal>;

impl Refusal {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Refusal {
        let mut message = message.into();
        if message.len() > MESSAGE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            // What was cut keeps no memory.
            message.shrink_to_fit();
        }
        Refusal { reason, message }
    }

    /// An argument that breaks a rule.
    pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::new(Reason::Invalid, message)
    }

    /// The words for a namespace that does not exist, and for one that is somebody else's.
    pub(crate) fn no_namespace(name: &str) -> Refusal {
        StoreError::no_namespace(name).into()
    }

    /// The words for an access key that is not any more what had proved itself.
    pub(crate) fn key_gone() -> Refusal {
        Refusal::new(
            Reason::Unauthenticated,
            "the access key was removed or replaced",
        )
    }

    /// The words for a session that never was, has ended, or is somebody else's.
    pub(crate) fn no_session() -> Refusal {
        Refusal::new(Reason::NoSuchSession, "there is no such session")
    }

    /// The words for a region that is not there, is too short or does not allow this.
    pub(crate) fn no_region() -> Refusal {
        Refusal::new(
            Reason::NoSuchRegion,
            "the session has no region that allows this",
        )
    }

    /// The words for a grant that does not hold, whyever.
    pub(crate) fn no_grant() -> Refusal {
        Refusal::new(Reason::NoSuchGrant, "there is no grant that allows this")
    }
}

/// What a call that is refused for this reason ends with.
fn code(reason: Reason) -> Code {
    match reason {
        Reason::NotFound
        | Reason::NoSuchVersion
        | Reason::DeleteMarker
        | Reason::NoSuchNamespace
        | Reason::NoSuchSession
        | Reason::NoSuchRegion
        | Reason::NoSuchGrant => Code::NotFound,
        Reason::Exists => Code::AlreadyExists,
        Reason::NotEmpty | Reason::Condition => Code::FailedPrecondition,
        Reason::Range => Code::OutOfRange,
        Reason::Invalid | Reason::TooLarge => Code::InvalidArgument,
        Reason::Quota | Reason::NoSpace | Reason::Busy => Code::ResourceExhausted,
        Reason::Corrupt | Reason::Checksum => Code::DataLoss,
        Reason::ReadOnly | Reason::LinkLost => Code::Unavailable,
        Reason::Unspecified | Reason::OutcomeUnknown => Code::Unknown,
        Reason::Unsupported => Code::Unimplemented,
        Reason::Io => Code::Internal,
        Reason::Unauthenticated => Code::Unauthenticated,
        Reason::Denied => Code::PermissionDenied,
        Reason::Stopped => Code::DeadlineExceeded,
        Reason::Program => Code::Aborted,
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let mut status = Status::new(code(refusal.reason), refusal.message);
        let name = MetadataValue::from_static(refusal.reason.as_str_name());
        status.metadata_mut().insert(REASON_METADATA, name);
        status
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure {
            code: code(refusal.reason).into(),
            reason: refusal.reason.into(),
            message: refusal.message,
        }
    }
}

/// Gives a reason to the headers of a refusal that has none: one of what reads calls before they are served, whose codes are its own.
pub(crate) fn give_reason(headers: &mut HeaderMap) {
    if headers.contains_key(REASON_METADATA) {
        return;
    }
    let Some(status) = Status::from_header_map(headers) else {
        return;
    };
    let reason = match status.code() {
        // A message that is too long.
        Code::OutOfRange => Reason::TooLarge,
        // One that is none, or that takes too many steps.
        Code::Internal | Code::InvalidArgument => Reason::Invalid,
        // No such call, or an encoding of messages that is not spoken.
        Code::Unimplemented => Reason::Unsupported,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => return,
    };
    headers.insert("grpc-status", HeaderValue::from(code(reason) as i32));
    let name = HeaderValue::from_static(reason.as_str_name());
    headers.insert(REASON_METADATA, name);
}

/// Why the store refuses.
fn reason(kind: ErrorKind) -> Reason {
    match kind {
        ErrorKind::NotFound => Reason::NotFound,
        ErrorKind::NoSuchVersion => Reason::NoSuchVersion,
        ErrorKind::IsDeleteMarker => Reason::DeleteMarker,
        ErrorKind::NoSuchNamespace => Reason::NoSuchNamespace,
        ErrorKind::NamespaceExists => Reason::Exists,
        ErrorKind::NamespaceNotEmpty => Reason::NotEmpty,
        ErrorKind::PreconditionFailed => Reason::Condition,
        ErrorKind::RangeNotSatisfiable => Reason::Range,
        ErrorKind::Invalid => Reason::Invalid,
        ErrorKind::TooLarge => Reason::TooLarge,
        ErrorKind::QuotaExceeded => Reason::Quota,
        ErrorKind::NoSpace => Reason::NoSpace,
        ErrorKind::Busy => Reason::Busy,
        ErrorKind::Corrupt => Reason::Corrupt,
        ErrorKind::ReadOnly => Reason::ReadOnly,
        ErrorKind::OutcomeUnknown => Reason::OutcomeUnknown,
        ErrorKind::Unsupported => Reason::Unsupported,
        ErrorKind::Io => Reason::Io,
        ErrorKind::Denied => Reason::Denied,
        ErrorKind::ProgramStopped => Reason::Stopped,
        ErrorKind::ProgramFailed => Reason::Program,
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        Refusal::new(reason(error.kind()), error.message())
    }
}

impl From<forebay_fabric::Error> for Refusal {
    fn from(error: forebay_fabric::Error) -> Refusal {
        use forebay_fabric::ErrorKind;
        match error.kind {
            ErrorKind::NotReachable => Refusal::no_region(),
            ErrorKind::Closed => Refusal::new(Reason::LinkLost, error.message),
            ErrorKind::Busy => Refusal::new(Reason::Busy, error.message),
            ErrorKind::Invalid => Refusal::invalid(error.message),
            ErrorKind::Corrupt => Refusal::new(Reason::Checksum, error.message),
            ErrorKind::Io => Refusal::new(Reason::Io, error.message),
        }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        match refused {
            Refused::Sessions
            | Refused::TenantSessions
            | Refused::Links
            | Refused::TenantLinks
            | Refused::Regions
            | Refused::Grants => Refusal::new(Reason::Busy, refused.to_string()),
            Refused::Ended => Refusal::no_session(),
            Refused::Unknown | Refused::Range => Refusal::no_region(),
            Refused::Entropy => Refusal::new(Reason::Io, refused.to_string()),
        }
    }
}

impl From<crate::Error> for Refusal {
    fn from(error: crate::Error) -> Refusal {
        let own = match error.kind {
            Kind::NotFound => Reason::NotFound,
            Kind::Exists => Reason::Exists,
            Kind::NotEmpty => Reason::NotEmpty,
            Kind::Invalid => Reason::Invalid,
            Kind::Denied => Reason::Denied,
            Kind::Limit => Reason::Busy,
            Kind::Failed => Reason::Io,
        };
        Refusal::new(error.store.map_or(own, reason), error.message)
    }
}
