//! A namespace of keys and values: of a controller elsewhere or behind a vfio-user socket, or of this machine's kernel.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use forebay_client::kv;
use forebay_io::passthrough::{self, Data};
use forebay_nvme::initiator::{Executed, KeyValueNamespace, Sink, StoreOptions};
use forebay_proto::nvme::Status;
use forebay_proto::nvme::kv::{Key, KeyAt, KvCommand, ListReader, ListStart, head};

use super::connect::{HostArgs, Place, socket_at};
use crate::exit::{Exit, Failure, Outcome};

/// Room for a value whose length is not known yet.
const FIRST_BYTES: usize = 1 << 20;
/// Room for a page of keys.
const PAGE_BYTES: usize = 64 << 10;
/// What is fetched of a result at once.
const RESULT_PIECE_BYTES: usize = 1 << 20;
/// How long the kernel waits for a command.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a value that grows while it is retrieved is asked for again.
const ATTEMPTS: usize = 8;

/// A namespace.
pub enum Device {
    /// Over a transport of our own.
    Remote(KeyValueNamespace),
    /// By the kernel's driver: its commands go as they are.
    Local(Local),
}

/// A namespace of the kernel's driver, with its path for messages.
pub struct Local {
    namespace: passthrough::Namespace,
    path: String,
}

impl Device {
    /// Opens a device, or connects to its controller.
    pub async fn open(place: &Place, host: &HostArgs) -> Outcome<Device> {
        if let Place::Path(path) = place
            && socket_at(path).is_none()
        {
            return Local::open(path).map(Device::Local);
        }
        Ok(Device::Remote(host.key_value(place).await?))
    }

    /// The longest value that it takes; of the kernel's what a command can say.
    pub fn value_bytes_max(&self) -> u32 {
        match self {
            Device::Remote(remote) => remote.info().value_bytes_max,
            Device::Local(_) => u32::MAX,
        }
    }

    /// Stores a value.
    pub async fn store(&self, key: &[u8], value: Bytes, options: StoreOptions) -> Outcome {
        match self {
            Device::Remote(remote) => Ok(remote.store(key, value, options).await?),
            Device::Local(local) => {
                let command = KvCommand::Store {
                    key: KeyAt::Inline(short(key)?),
                    value_bytes: u32::try_from(value.len())
                        .map_err(|_| Failure::new(Exit::Limit, "a value of 4 GiB"))?,
                    options,
                };
                local
                    .execute(&command, Data::ToDevice(&value))
                    .await
                    .map(drop)
            }
        }
    }

    /// A whole value.
    pub async fn retrieve(&self, key: &[u8]) -> Outcome<Vec<u8>> {
        let mut room = FIRST_BYTES;
        for _ in 0..ATTEMPTS {
            let (length, value) = self.head(key, room).await?;
            if length <= value.len() as u64 {
                return Ok(value);
            }
            room = usize::try_from(length).unwrap_or(usize::MAX);
        }
        Err(Failure::new(
            Exit::Failed,
            "the value does not stop growing",
        ))
    }

    /// A value's length, and as much of it as there is room for.
    async fn head(&self, key: &[u8], room: usize) -> Outcome<(u64, Vec<u8>)> {
        match self {
            Device::Remote(remote) => {
                let found = remote.retrieve(key, Sink::Bytes(vec![0; room])).await?;
                let mut value = match found.into {
                    Sink::Bytes(value) => value,
                    _ => Vec::new(),
                };
                value.truncate(usize::try_from(found.received).unwrap_or(usize::MAX));
                Ok((found.value_bytes, value))
            }
            Device::Local(local) => {
                let command = KvCommand::Retrieve {
                    key: short(key)?,
                    buffer_bytes: u32::try_from(room)
                        .map_err(|_| Failure::new(Exit::Limit, "a value of 4 GiB"))?,
                };
                let mut value = vec![0; room];
                let length = local
                    .execute(&command, Data::FromDevice(&mut value))
                    .await?
                    & 0xffff_ffff;
                value.truncate(usize::try_from(length).unwrap_or(usize::MAX));
                Ok((length, value))
            }
        }
    }

    /// Deletes a key and its value.
    pub async fn delete(&self, key: &[u8]) -> Outcome {
        match self {
            Device::Remote(remote) => Ok(remote.delete(key).await?),
            Device::Local(local) => {
                let command = KvCommand::Delete { key: short(key)? };
                local.execute(&command, Data::None).await.map(drop)
            }
        }
    }

    /// Whether a key is there.
    pub async fn exist(&self, key: &[u8]) -> Outcome<bool> {
        match self {
            Device::Remote(remote) => Ok(remote.exist(key).await?),
            Device::Local(local) => {
                let command = KvCommand::Exist { key: short(key)? };
                match local.execute(&command, Data::None).await {
                    Ok(_) => Ok(true),
                    Err(failure) if failure.exit == Exit::NotFound => Ok(false),
                    Err(failure) => Err(failure),
                }
            }
        }
    }

    /// What a function makes of a value: its length, and as much of it as is wanted.
    pub async fn execute(
        &self,
        key: &[u8],
        operation: u32,
        arguments: &[u8],
        capacity: u32,
    ) -> Outcome<Executed> {
        match self {
            Device::Remote(remote) => {
                Ok(remote.execute(key, operation, arguments, capacity).await?)
            }
            Device::Local(local) => local.run(key, operation, arguments, capacity).await,
        }
    }

    /// The next keys after `after`, or the first; none when there are no more.
    pub async fn list(&self, after: Option<&[u8]>) -> Outcome<Vec<Vec<u8>>> {
        match self {
            Device::Remote(remote) => Ok(remote.list(after).await?),
            Device::Local(local) => {
                let command = KvCommand::List {
                    start: match after {
                        None => ListStart::First,
                        Some(after) => ListStart::Key(short(after)?),
                    },
                    extended: false,
                    buffer_bytes: PAGE_BYTES as u32,
                };
                let mut page = vec![0; PAGE_BYTES];
                local.execute(&command, Data::FromDevice(&mut page)).await?;
                let keys = ListReader::new(&page).into_iter().flatten();
                let keys: Vec<&[u8]> = keys.collect();
                // The list begins with the key itself, when it is there.
                let begin = after
                    .and_then(|after| keys.iter().position(|key| *key == after))
                    .map_or(0, |at| at + 1);
                Ok(keys[begin..].iter().map(|key| key.to_vec()).collect())
            }
        }
    }
}

fn short(key: &[u8]) -> Outcome<Key> {
    Key::new(key).ok_or_else(|| {
        Failure::new(
            Exit::Usage,
            "by the kernel's driver a key has 1 to 16 bytes",
        )
    })
}

impl Local {
    fn open(path: &Path) -> Outcome<Local> {
        let shown = path.display().to_string();
        let namespace = passthrough::Namespace::open(path);
        Ok(Local {
            namespace: namespace.map_err(|error| of_system(&shown, &error))?,
            path: shown,
        })
    }

    /// Execute-submit, then Execute-fetch until all is there.
    async fn run(
        &self,
        key: &[u8],
        operation: u32,
        arguments: &[u8],
        capacity: u32,
    ) -> Outcome<Executed> {
        let long = || Failure::new(Exit::Usage, "a key has 1 to 255 bytes");
        let mut payload = head::encode(key).ok_or_else(long)?;
        payload.extend_from_slice(arguments);
        let command = KvCommand::ExecuteSubmit {
            payload_bytes: u32::try_from(payload.len())
                .map_err(|_| Failure::new(Exit::Limit, "4 GiB of arguments"))?,
            capacity,
            operation,
        };
        let result = self.execute(&command, Data::ToDevice(&payload)).await?;
        let (len, handle) = (result & 0xffff_ffff, (result >> 32) as u32);
        let kept = if handle == 0 {
            0
        } else {
            len.min(u64::from(capacity))
        };
        let mut bytes = vec![0; usize::try_from(kept).unwrap_or(usize::MAX)];
        let mut offset = 0;
        for piece in bytes.chunks_mut(RESULT_PIECE_BYTES) {
            let command = KvCommand::ExecuteFetch {
                handle,
                offset,
                buffer_bytes: piece.len() as u32,
            };
            offset += piece.len() as u32;
            self.execute(&command, Data::FromDevice(piece)).await?;
        }
        Ok(Executed { len, bytes })
    }

    /// Executes a command; its result.
    async fn execute(&self, command: &KvCommand, data: Data<'_>) -> Outcome<u64> {
        let entry = command.entry(0, self.namespace.nsid());
        // The call blocks: other threads go on with what else there is.
        let done = tokio::task::block_in_place(|| {
            self.namespace.execute(entry.as_bytes(), data, PATIENCE)
        });
        let done = done.map_err(|error| of_system(&self.path, &error))?;
        let status = Status::from_wire(done.status);
        match status.is_success() {
            true => Ok(done.result),
            false => Err(Failure::new(kv::kind(status).into(), status)),
        }
    }
}

fn of_system(path: &str, error: &io::Error) -> Failure {
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        io::ErrorKind::PermissionDenied => Exit::Denied,
        _ => Exit::Failed,
    };
    Failure::new(exit, format_args!("{path}: {error}"))
}
