//! Keys and values of any NVMe device that keeps them (Key Value command set), over NVMe/TCP or, on the same machine, vfio-user.
//!
//! ```no_run
//! # async fn example() -> Result<(), forebay_client::Error> {
//! use forebay_client::direct::Region;
//! use forebay_client::kv::{KeyValue, Options, StoreOptions};
//!
//! let values = KeyValue::connect("kv://127.0.0.1:4420/nqn.2026-01.org.example:pool/1", Options::default()).await?;
//! values.store(b"key", "value").await?;
//! let region = Region::alloc(4096).map_err(|source| forebay_client::Error::Local { what: "memory".to_owned(), source })?;
//! let found = values.retrieve_into(b"key", &region).await?;
//! assert_eq!(found.value_bytes, 5);
//! # Ok(())
//! # }
//! ```
//!
//! Payload moves between the socket and a [`Region`](crate::direct::Region) without passing through other memory of this process; over
//! vfio-user (`kv:///run/forebay/vfio/vm0/cntrl/1`) the device itself writes and reads the region.
//! What is repeated after a lost connection, and what then has no known outcome, is told in [`forebay_nvme::initiator`].

use bytes::Bytes;
pub use forebay_nvme::initiator::{
    Controller, HostIdentity, KeyValueInfo, Options, Place, Secret, StoreOptions,
};
use forebay_nvme::initiator::{
    Error as HostError, Hold, KeyValueNamespace, NamespaceUrl, Sink, Source,
};
use forebay_proto::nvme::Status;

use crate::direct::Window;
use crate::direct::loans::Use;
use crate::{Error, Kind, Refusal, Result};

/// Room that a value is first retrieved into whose length is not known.
const FIRST_BYTES: usize = 64 << 10;

/// A namespace of keys and values. Cloning shares its connections.
#[derive(Debug, Clone)]
pub struct KeyValue {
    namespace: KeyValueNamespace,
    endpoint: String,
}

/// How much of a value was retrieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The value's whole length, in bytes.
    pub value_bytes: u64,
    /// How many of its first bytes were placed.
    pub placed: u64,
}

impl KeyValue {
    /// Connects to the namespace of a `kv://HOST:PORT/SUBNQN/NSID` or `kv:///PATH/OF/SOCKET/NSID`.
    ///
    /// # Errors
    /// [`Error::Transport`]; [`Error::Refused`] for a host that is not let in; [`Error::Local`] for a URL that is none.
    pub async fn connect(url: &str, options: Options) -> Result<KeyValue> {
        let told = url.parse::<NamespaceUrl>();
        let parsed = told.map_err(|error| failed(url, error))?;
        let namespace = parsed.connect_key_value(options).await;
        Ok(KeyValue {
            namespace: namespace.map_err(|error| failed(url, error))?,
            endpoint: url.to_owned(),
        })
    }

    /// What the namespace was when it was connected to.
    pub fn info(&self) -> &KeyValueInfo {
        self.namespace.info()
    }

    /// The connections.
    pub fn controller(&self) -> &Controller {
        self.namespace.controller()
    }

    /// Stores a value, replacing an older one.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn store(&self, key: &[u8], value: impl Into<Bytes>) -> Result<()> {
        let source = Source::from(value.into());
        self.store_source(key, source, StoreOptions::default())
            .await
    }

    /// Stores a value straight from registered memory.
    ///
    /// # Errors
    /// See [`Error`]; with kind [`Precondition`](crate::Kind::Precondition) when a condition of `options` does not hold.
    pub async fn store_from<'a>(
        &self,
        key: &[u8],
        from: impl Into<Window<'a>>,
        options: StoreOptions,
    ) -> Result<()> {
        let (memory, hold) = lend(&from.into(), Use::Source).await?;
        self.store_source(key, Source::Region(memory, Some(hold)), options)
            .await
    }

    async fn store_source(&self, key: &[u8], from: Source, options: StoreOptions) -> Result<()> {
        let stored = self.namespace.store(key, from, options).await;
        stored.map_err(|error| self.failed(error))
    }

    /// Retrieves a value whole.
    ///
    /// # Errors
    /// See [`Error`]; with kind [`NotFound`](crate::Kind::NotFound) when there is none.
    pub async fn retrieve(&self, key: &[u8]) -> Result<Bytes> {
        let mut room = FIRST_BYTES;
        loop {
            let sink = Sink::Bytes(vec![0; room]);
            let found = self.namespace.retrieve(key, sink).await;
            let found = found.map_err(|error| self.failed(error))?;
            match found.into {
                // It may have been replaced by a longer one since.
                Sink::Bytes(bytes) if found.value_bytes == bytes.len() as u64 => {
                    return Ok(bytes.into());
                }
                _ if found.value_bytes <= room as u64 => {
                    return Err(Error::Protocol("a value came in part".to_owned()));
                }
                _ => {
                    let max = self.info().value_bytes_max;
                    let more = room_for(found.value_bytes, room, max);
                    room = more.map_err(|error| self.failed(error))?;
                }
            }
        }
    }

    /// Retrieves a value, as far as there is room, straight into registered memory.
    ///
    /// # Errors
    /// As [`KeyValue::retrieve`].
    pub async fn retrieve_into<'a>(
        &self,
        key: &[u8],
        into: impl Into<Window<'a>>,
    ) -> Result<Found> {
        let (memory, hold) = lend(&into.into(), Use::Target).await?;
        let sink = Sink::Region(memory, Some(hold));
        let found = self.namespace.retrieve(key, sink).await;
        let found = found.map_err(|error| self.failed(error))?;
        Ok(Found {
            value_bytes: found.value_bytes,
            placed: found.received,
        })
    }

    /// Deletes a key and its value.
    ///
    /// # Errors
    /// See [`Error`]; with kind [`NotFound`](crate::Kind::NotFound) when there is none.
    pub async fn delete(&self, key: &[u8]) -> Result<()> {
        let deleted = self.namespace.delete(key).await;
        deleted.map_err(|error| self.failed(error))
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn exist(&self, key: &[u8]) -> Result<bool> {
        let found = self.namespace.exist(key).await;
        found.map_err(|error| self.failed(error))
    }

    /// The next keys after `after`, or the first ones, in the device's order; none when there are no more.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn list(&self, after: Option<&[u8]>) -> Result<Vec<Vec<u8>>> {
        let page = self.namespace.list(after).await;
        page.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: HostError) -> Error {
        failed(&self.endpoint, error)
    }
}

/// Room for a value that did not fit. Twice as much at least: a device that names another length each time has soon no more to name.
fn room_for(value_bytes: u64, room: usize, max: u32) -> Result<usize, HostError> {
    let max = max as usize;
    match usize::try_from(value_bytes) {
        Ok(bytes) if bytes <= max => Ok(bytes.max(room.saturating_mul(2)).min(max)),
        _ => Err(HostError::Status(Status::INVALID_VALUE_SIZE)),
    }
}

/// The memory of a window, lent until the command that uses it has ended.
async fn lend(window: &Window<'_>, what: Use) -> Result<(forebay_mem::RegionSlice, Hold)> {
    window.check()?;
    let region = window.region;
    let loan = region.lend_patiently(window.range.clone(), what).await;
    match region.slice(window.range.clone()) {
        Some(memory) => Ok((memory, Hold::of(loan))),
        None => Err(Error::Protocol("memory that there is not".to_owned())),
    }
}

/// What a caller needs to tell apart of commands that were completed with this status.
pub fn kind(status: Status) -> Kind {
    refused(status).kind()
}

/// A status in the words of the other paths.
fn refused(told: Status) -> Refusal {
    let (status, code) = match told.code() {
        Status::KV_KEY_DOES_NOT_EXIST | Status::KV_KEY_DOES_NOT_EXIST_SPECIFIC => {
            (404, "NoSuchKey")
        }
        Status::INVALID_NAMESPACE_OR_FORMAT => (404, "no_such_namespace"),
        Status::KEY_EXISTS => (412, "PreconditionFailed"),
        Status::CAPACITY_EXCEEDED => (507, "InsufficientStorage"),
        Status::INVALID_VALUE_SIZE => (413, "EntityTooLarge"),
        Status::NAMESPACE_WRITE_PROTECTED => (507, "read_only"),
        Status::NAMESPACE_NOT_READY => (503, "busy"),
        Status::CONNECT_INVALID_HOST | Status::AUTHENTICATION_REQUIRED => (403, "AccessDenied"),
        _ => (500, "InternalError"),
    };
    Refusal {
        status,
        code: code.to_owned(),
        message: told.to_string(),
        resource: String::new(),
        request_id: String::new(),
    }
}

fn failed(endpoint: &str, error: HostError) -> Error {
    let refused_at = |refusal: Refusal| {
        Error::Refused(Refusal {
            resource: endpoint.to_owned(),
            ..refusal
        })
    };
    match error {
        HostError::Status(told) if told.code() == Status::UNRECOVERED_ERROR => {
            Error::Corrupt(format!("{endpoint}: {told}"))
        }
        HostError::Status(told) => refused_at(refused(told)),
        HostError::Denied(message) => refused_at(Refusal {
            message,
            ..refused(Status::CONNECT_INVALID_HOST)
        }),
        HostError::Damaged => Error::Corrupt(error.to_string()),
        HostError::Protocol(why) => Error::Protocol(why),
        HostError::Invalid(why) => Error::Local {
            what: endpoint.to_owned(),
            source: std::io::Error::new(std::io::ErrorKind::InvalidInput, why),
        },
        HostError::Lost(_) | HostError::Unreachable(_) | HostError::Closed => Error::Transport {
            endpoint: endpoint.to_owned(),
            what: error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_what_it_is_by_other_paths() {
        for (status, told) in [
            (Status::KV_KEY_DOES_NOT_EXIST, Kind::NotFound),
            (Status::KV_KEY_DOES_NOT_EXIST_SPECIFIC, Kind::NotFound),
            (Status::INVALID_NAMESPACE_OR_FORMAT, Kind::NotFound),
            (Status::KEY_EXISTS, Kind::Precondition),
            (Status::CAPACITY_EXCEEDED, Kind::Limit),
            (Status::INVALID_VALUE_SIZE, Kind::Limit),
            (Status::NAMESPACE_WRITE_PROTECTED, Kind::Limit),
            (Status::CONNECT_INVALID_HOST, Kind::Denied),
            (Status::AUTHENTICATION_REQUIRED, Kind::Denied),
            (Status::NAMESPACE_NOT_READY, Kind::Limit),
            (Status::UNRECOVERED_ERROR, Kind::Failed),
            (Status::INTERNAL_ERROR, Kind::Failed),
        ] {
            assert_eq!(kind(status), told, "{status}");
        }
        let damaged = failed("kv://device", HostError::Status(Status::UNRECOVERED_ERROR));
        assert!(matches!(damaged, Error::Corrupt(_)), "{damaged}");
        let of_s3 = |status: u16, code: &str| Refusal {
            status,
            code: code.to_owned(),
            ..refused(Status::INTERNAL_ERROR)
        };
        for (status, code) in [
            (400, "EntityTooLarge"),
            (400, "TooManyBuckets"),
            (403, "QuotaExceeded"),
        ] {
            assert_eq!(of_s3(status, code).kind(), Kind::Limit, "{code}");
        }
        assert_eq!(of_s3(400, "InvalidBucketName").kind(), Kind::Failed);
    }

    #[test]
    fn no_more_room_is_made_than_a_value_may_need() {
        for told in [(16 << 20) + 1, 1 << 32, 1 << 62, u64::MAX] {
            let refused = room_for(told, FIRST_BYTES, 16 << 20);
            assert!(matches!(refused, Err(HostError::Status(_))), "{told}");
        }
        assert_eq!(room_for(1 << 20, FIRST_BYTES, 16 << 20).unwrap(), 1 << 20);
    }

    #[test]
    fn a_value_that_is_always_a_byte_longer_is_soon_refused() {
        let mut room = FIRST_BYTES;
        let asked = std::iter::from_fn(|| {
            room = room_for(room as u64 + 1, room, u32::MAX).ok()?;
            Some(room)
        });
        assert_eq!(asked.take(100).count(), 16);
    }
}
