//! One error for the waist, with a small closed set of kinds.

use std::error::Error;
use std::fmt;

use crate::limits::NAMESPACE_BYTES_MAX;
use crate::{Away, Meta, ProgramFault, VersionId};

/// The result of every store call.
pub type Result<T> = std::result::Result<T, StoreError>;

/// What went wrong. Closed on purpose: a new kind stops the build at every door until somebody decides what it means there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The key holds no value (or, with a version asked for, see [`StoreError::marker`]).
    NotFound,
    /// The key has no such version.
    NoSuchVersion,
    /// The version asked for is a delete marker.
    IsDeleteMarker,
    /// The namespace does not exist (or is another tenant's: the two look the same).
    NoSuchNamespace,
    /// A namespace of that name exists.
    NamespaceExists,
    /// The namespace still holds values or staged parts.
    NamespaceNotEmpty,
    /// A condition did not hold; nothing changed.
    PreconditionFailed,
    /// The range lies outside the value.
    RangeNotSatisfiable,
    /// A name, key, attribute or argument breaks a limit in [`limits`](crate::limits).
    Invalid,
    /// The value exceeds the largest size, or more bytes came than were declared.
    TooLarge,
    /// The namespace's or tenant's quota has no room; nothing was taken.
    QuotaExceeded,
    /// The device has no room; nothing was taken, reads and deletes go on.
    NoSpace,
    /// A bound on work in flight is reached, or what keeps the bytes cannot be reached just now; trying again later is right.
    Busy,
    /// Stored bytes do not match their checksum. The message names the object and the block.
    Corrupt,
    /// The store no longer takes writes after a failed sync; reads go on.
    ReadOnly,
    /// Whether the change happened is not known (a sync failed after it was sent).
    OutcomeUnknown,
    /// This store cannot do that; see its [`Caps`](crate::Caps).
    Unsupported,
    /// The device failed. The call did not change anything.
    Io,
    /// The module that was to run is not allowed to this tenant in this namespace (or there is none: the two look the same).
    Denied,
    /// A function was stopped at one of its bounds: time, memory, output. Nothing was stored.
    ProgramStopped,
    /// A function failed, by its own account or by doing what none may, or its module is not one. Nothing was stored.
    ProgramFailed,
}

impl ErrorKind {
    /// Whether what was asked for is not there: of something listed before, that it was deleted or replaced since.
    pub fn is_absence(self) -> bool {
        matches!(
            self,
            ErrorKind::NotFound
                | ErrorKind::NoSuchVersion
                | ErrorKind::IsDeleteMarker
                | ErrorKind::NoSuchNamespace
        )
    }

    /// The same, or that it is not the one that was seen.
    pub fn is_overtaken(self) -> bool {
        self.is_absence() || self == ErrorKind::PreconditionFailed
    }
}

/// A failed store call: kind, words for a person, and the cause.
pub struct StoreError {
    inner: Box<Inner>,
}

struct Inner {
    kind: ErrorKind,
    message: String,
    marker: Option<VersionId>,
    away: Option<(Meta, Away)>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> StoreError {
        StoreError {
            inner: Box::new(Inner {
                kind,
                message: message.into(),
                marker: None,
                away: None,
                source: None,
            }),
        }
    }

    /// The same with its cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
        self.inner.source = Some(source.into());
        self
    }

    /// The same, saying that the newest version of the key is this delete marker.
    pub fn with_marker(mut self, marker: VersionId) -> StoreError {
        self.inner.marker = Some(marker);
        self
    }

    /// That there is no namespace of this name, or none that the caller may know of: the words are the same, whoever finds it out. A name
    /// comes from whoever asks: of one that is longer than any no more is repeated.
    pub fn no_namespace(name: &str) -> StoreError {
        let shown = &name[..name.floor_char_boundary(NAMESPACE_BYTES_MAX)];
        StoreError::new(
            ErrorKind::NoSuchNamespace,
            format!("there is no namespace {shown:?}"),
        )
    }

    /// That the bytes of a value cannot be read here, for they were let go.
    pub fn let_go(meta: Meta, away: Away) -> StoreError {
        let mut error = StoreError::new(
            ErrorKind::Busy,
            "the bytes of the value are kept in another tier, which is not connected",
        );
        error.inner.away = Some((meta, away));
        error
    }

    /// That somebody else let the bytes of a value go or took them back, or changed it.
    pub fn moved() -> StoreError {
        StoreError::new(
            ErrorKind::PreconditionFailed,
            "the bytes of the value were moved meanwhile",
        )
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// For [`ErrorKind::ProgramStopped`] and [`ErrorKind::ProgramFailed`]: what the function had to say.
    pub fn program(&self) -> Option<&ProgramFault> {
        self.inner.source.as_ref()?.downcast_ref()
    }

    /// Words for a person.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Of a value that was to be read: its metadata, and where its bytes are, when the store let them go.
    pub fn away(&self) -> Option<(&Meta, Away)> {
        self.inner.away.as_ref().map(|(meta, away)| (meta, *away))
    }

    /// For [`ErrorKind::NotFound`] and [`ErrorKind::IsDeleteMarker`]: the delete marker that hides the value.
    pub fn marker(&self) -> Option<VersionId> {
        self.inner.marker
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError")
            .field("kind", &self.inner.kind)
            .field("message", &self.inner.message)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.inner
            .source
            .as_ref()
            .map(|source| &**source as &(dyn Error + 'static))
    }
}
