//! What every failure of the store and of files is called.
#![deny(
    clippy::wildcard_enum_match_arm,
    clippy::match_wildcard_for_single_variants
)]

use std::io;

use forebay_proto::nvme::Status;
use forebay_store::{Condition, ErrorKind, StoreError};

/// The status for a failed store call that had no condition.
pub(super) fn of_store(error: &StoreError) -> Status {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NoSuchVersion | ErrorKind::IsDeleteMarker => {
            Status::KV_KEY_DOES_NOT_EXIST
        }
        ErrorKind::NoSuchNamespace => Status::INVALID_NAMESPACE_OR_FORMAT,
        ErrorKind::Invalid | ErrorKind::RangeNotSatisfiable | ErrorKind::PreconditionFailed => {
            Status::INVALID_FIELD
        }
        ErrorKind::TooLarge => Status::INVALID_VALUE_SIZE,
        ErrorKind::QuotaExceeded | ErrorKind::NoSpace => Status::CAPACITY_EXCEEDED,
        // Trying again later is right.
        ErrorKind::Busy => Status::NAMESPACE_NOT_READY,
        ErrorKind::Corrupt => Status::UNRECOVERED_ERROR,
        ErrorKind::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED,
        // An operation that is not allowed is none.
        ErrorKind::Unsupported | ErrorKind::Denied => Status::INVALID_OPCODE,
        ErrorKind::ProgramStopped => Status::ABORT_REQUESTED,
        ErrorKind::OutcomeUnknown => Status::OUTCOME_UNKNOWN,
        // No command makes or removes namespaces of the store.
        ErrorKind::Io
        | ErrorKind::ProgramFailed
        | ErrorKind::NamespaceExists
        | ErrorKind::NamespaceNotEmpty => Status::INTERNAL_ERROR,
    }
}

/// Likewise where `condition` had to hold.
pub(super) fn of_condition(error: &StoreError, condition: Condition) -> Status {
    match (error.kind() == ErrorKind::PreconditionFailed, condition) {
        (true, Condition::IfAbsent) => Status::KEY_EXISTS,
        (true, Condition::IfPresent) => Status::KV_KEY_DOES_NOT_EXIST,
        (true, Condition::None | Condition::IfMatch(_)) | (false, _) => of_store(error),
    }
}

/// The status for a file that could not be read.
pub(super) fn of_read(error: &io::Error) -> Status {
    match error.raw_os_error() {
        // What it was to be read into is gone.
        Some(EFAULT) => Status::DATA_TRANSFER_ERROR,
        _ => Status::UNRECOVERED_READ_ERROR,
    }
}

/// The status for a file that could not be written, or made durable.
pub(super) fn of_change(error: &io::Error) -> Status {
    match error.raw_os_error().is_some_and(is_full) {
        true => Status::CAPACITY_EXCEEDED,
        false => Status::WRITE_FAULT,
    }
}

const EFAULT: i32 = 14;

/// ENOSPC and EDQUOT.
fn is_full(errno: i32) -> bool {
    errno == 28 || errno == 122
}
