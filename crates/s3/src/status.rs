//! Why a request is refused, and the one mapping of store errors to S3's.

use forebay_proto::s3::checksum::Algorithm;
use forebay_proto::s3::chunked::ChunkError;
use forebay_proto::s3::error::{ErrorCode, S3Error};
use forebay_proto::s3::sigv4::AuthError;
use forebay_store::{ErrorKind, StoreError};
use http::StatusCode;
use http::header::{ALLOW, HeaderMap, HeaderName, HeaderValue};

use crate::headers;

/// A refusal on its way to the client: S3's error, and headers that some refusals carry.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: S3Error,
    pub(crate) headers: Option<Box<HeaderMap>>,
    pub(crate) manner: Manner,
    /// What the store failed at, for the log.
    pub(crate) cause: Option<StoreError>,
}

/// How a refusal is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Manner {
    /// With the status of its error.
    #[default]
    Plain,
    /// With `200 OK`, for the clients that take nothing else for a reason to fall back (docs/token.md section 6.3).
    AsOk,
    /// Not at all: the connection is cut, because the client's memory may still be written to and any answer would say
    /// that it may be used again.
    Unsaid,
}

/// What an operation comes to.
pub(crate) type Outcome<T> = Result<T, Refusal>;

impl Refusal {
    /// A refusal with words of its own.
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Refusal {
        S3Error::with_message(code, message).into()
    }

    /// The same with a header.
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Refusal {
        self.headers.get_or_insert_default().insert(name, value);
        self
    }

    /// The same told in another manner.
    pub(crate) fn manner(mut self, manner: Manner) -> Refusal {
        self.manner = manner;
        self
    }

    /// The HTTP status that tells it.
    pub(crate) fn status(&self) -> StatusCode {
        match self.manner {
            Manner::AsOk => StatusCode::OK,
            Manner::Plain | Manner::Unsaid => StatusCode::from_u16(self.error.status())
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// The same with another element in its document.
    pub(crate) fn field(mut self, name: &'static str, value: impl Into<String>) -> Refusal {
        self.error = self.error.field(name, value);
        self
    }

    pub(crate) fn code(&self) -> ErrorCode {
        self.error.code
    }

    /// A method that what is asked has not; it has those that are named (RFC 9110 section 15.5.6).
    pub(crate) fn not_allowed(methods: &'static str) -> Refusal {
        Refusal::from(ErrorCode::MethodNotAllowed).header(ALLOW, HeaderValue::from_static(methods))
    }

    /// An argument that is not what it may be.
    pub(crate) fn argument(name: &str, value: &str, message: impl Into<String>) -> Refusal {
        Refusal::new(ErrorCode::InvalidArgument, message)
            .field("ArgumentName", name)
            .field("ArgumentValue", value)
    }

    /// A body whose checksum is not the one that came with it.
    pub(crate) fn checksum_mismatch(algorithm: Algorithm) -> Refusal {
        Refusal::new(
            ErrorCode::BadDigest,
            format!(
                "The {} you specified did not match the calculated checksum.",
                algorithm.as_str()
            ),
        )
    }
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Refusal {
        S3Error::new(code).into()
    }
}

impl From<S3Error> for Refusal {
    fn from(error: S3Error) -> Refusal {
        Refusal {
            error,
            headers: None,
            manner: Manner::Plain,
            cause: None,
        }
    }
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Refusal {
        S3Error::from(error).into()
    }
}

impl From<ChunkError> for Refusal {
    fn from(error: ChunkError) -> Refusal {
        match error {
            ChunkError::SignatureDoesNotMatch => error.code().into(),
            _ => Refusal::new(error.code(), error.to_string()),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        let refusal = match error.kind() {
            ErrorKind::NotFound => Refusal::from(ErrorCode::NoSuchKey),
            ErrorKind::NoSuchVersion => ErrorCode::NoSuchVersion.into(),
            // A marker can be removed, and that is all (DeleteMarkers in the S3 user guide).
            ErrorKind::IsDeleteMarker => Refusal::not_allowed("DELETE"),
            ErrorKind::NoSuchNamespace => ErrorCode::NoSuchBucket.into(),
            ErrorKind::NamespaceExists => ErrorCode::BucketAlreadyExists.into(),
            ErrorKind::NamespaceNotEmpty => ErrorCode::BucketNotEmpty.into(),
            ErrorKind::PreconditionFailed => ErrorCode::PreconditionFailed.into(),
            ErrorKind::RangeNotSatisfiable => ErrorCode::InvalidRange.into(),
            ErrorKind::Invalid => Refusal::new(ErrorCode::InvalidArgument, error.message()),
            ErrorKind::TooLarge => Refusal::new(ErrorCode::EntityTooLarge, error.message()),
            ErrorKind::QuotaExceeded => ErrorCode::QuotaExceeded.into(),
            ErrorKind::NoSpace => ErrorCode::InsufficientStorage.into(),
            ErrorKind::Busy => ErrorCode::SlowDown.into(),
            // The words name the object at most, and hold none of its bytes.
            ErrorKind::Corrupt | ErrorKind::Io => {
                Refusal::new(ErrorCode::InternalError, error.message())
            }
            ErrorKind::ReadOnly => Refusal::new(
                ErrorCode::ServiceUnavailable,
                "The store takes no writes after a failed sync; reads go on.",
            ),
            ErrorKind::OutcomeUnknown => Refusal::new(
                ErrorCode::InternalError,
                format!(
                    "Whether the request took effect is not known: {}",
                    error.message()
                ),
            ),
            ErrorKind::Unsupported => Refusal::new(ErrorCode::NotImplemented, error.message()),
            ErrorKind::Denied => Refusal::new(ErrorCode::AccessDenied, error.message()),
            ErrorKind::ProgramStopped | ErrorKind::ProgramFailed => {
                Refusal::new(ErrorCode::InvalidRequest, error.message())
            }
        };
        let mut refusal = match error.marker() {
            Some(marker) => refusal
                .header(headers::DELETE_MARKER, headers::TRUE)
                .header(headers::VERSION_ID, headers::version_value(marker)),
            None => refusal,
        };
        if refusal.status().is_server_error() {
            refusal.cause = Some(error);
        }
        refusal
    }
}
