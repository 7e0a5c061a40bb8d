//! Functions run over values: the vendor's Execute commands (`docs/execute.md`).

use bytes::Bytes;
use forebay_io::File;
use forebay_mem::{BLOCK_MAX_BYTES, slices};
use forebay_proto::nvme::Status;
use forebay_proto::nvme::kv::{KvCommand, head};
use forebay_store::{Execute, Executed, Input, Module, Store};

use super::entered::Entered;
use super::kv::{KeyBuf, dword};
use super::session::Session;
use super::status::of_store;
use super::{Payload, Target};

/// A function that is to be run.
struct Asked<'a, S> {
    entered: &'a Entered<'a, S>,
    key: &'a [u8],
    arguments: Bytes,
    operation: u32,
    /// Room for the result.
    capacity: u32,
}

impl<S: Store, F: File> Target<S, F> {
    /// DW0 and DW1.
    pub(super) async fn program(
        &self,
        session: &Session<S>,
        nsid: u32,
        entered: &Entered<'_, S>,
        command: &KvCommand,
        payload: &mut impl Payload,
    ) -> Result<u64, Status> {
        match *command {
            KvCommand::Execute {
                payload_bytes,
                capacity,
                operation,
            } => {
                let (key, arguments) = self.asked(payload_bytes, payload).await?;
                let executed = self.run(Asked {
                    entered,
                    key: key.as_bytes(),
                    arguments,
                    operation,
                    capacity,
                });
                let executed = executed.await?;
                payload.turn();
                give(executed, payload).await
            }
            KvCommand::ExecuteSubmit {
                payload_bytes,
                capacity,
                operation,
            } => {
                let (key, arguments) = self.asked(payload_bytes, payload).await?;
                // A result that could not be kept is not made.
                let now_ms = self.clock.unix_millis();
                let (info, room) = (entered.info()?, capacity as usize);
                let place = session.results.reserve(&info.config.tenant, room, now_ms);
                let place = place.ok_or(Status::CAPACITY_EXCEEDED)?;
                let executed = self.run(Asked {
                    entered,
                    key: key.as_bytes(),
                    arguments,
                    operation,
                    capacity,
                });
                let Executed { len, bytes, .. } = executed.await?;
                if bytes.iter().all(|buf| buf.is_empty()) {
                    return Ok(dword(len));
                }
                let mut random = [0; 4];
                super::admission::random(&mut random);
                let random = u32::from_le_bytes(random);
                // It is as old as this, however long its function ran.
                let now_ms = self.clock.unix_millis();
                let handle = session.results.keep(random, nsid, bytes, place, now_ms);
                let handle = handle.ok_or(Status::CAPACITY_EXCEEDED)?;
                Ok(dword(len) | u64::from(handle) << 32)
            }
            KvCommand::ExecuteFetch {
                handle,
                offset,
                buffer_bytes,
            } => {
                let now_ms = self.clock.unix_millis();
                let kept = session.results.get(handle, nsid, now_ms);
                let kept = kept.ok_or(Status::INVALID_FIELD)?;
                let (begin, room) = (offset as usize, buffer_bytes as usize);
                let rest = kept.len.checked_sub(begin).ok_or(Status::INVALID_FIELD)?;
                for buf in slices(&kept.bytes, begin..begin + room.min(rest)) {
                    payload.send(buf).await?;
                }
                if room >= rest {
                    session.results.forget(handle);
                }
                Ok(dword(rest as u64))
            }
            KvCommand::ExecuteInline {
                key,
                argument,
                operation,
                buffer_bytes,
            } => {
                let arguments = Bytes::copy_from_slice(&argument.to_le_bytes());
                let executed = self.run(Asked {
                    entered,
                    key: key.as_bytes(),
                    arguments,
                    operation,
                    capacity: buffer_bytes,
                });
                give(executed.await?, payload).await
            }
            // Executed elsewhere.
            _ => Err(Status::INTERNAL_ERROR),
        }
    }

    /// The key and the arguments of a payload, which stay in a buffer for as long as the function runs.
    async fn asked(
        &self,
        payload_bytes: u32,
        payload: &mut impl Payload,
    ) -> Result<(KeyBuf, Bytes), Status> {
        let payload_bytes = u64::from(payload_bytes);
        if payload.len() < payload_bytes {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        if payload_bytes <= head::LENGTH_BYTES as u64 {
            return Err(Status::INVALID_KEY_SIZE);
        }
        let key = self.head(payload).await?;
        let head_bytes = (head::LENGTH_BYTES + key.as_bytes().len()) as u64;
        let left = payload_bytes.checked_sub(head_bytes);
        let arguments = match left.ok_or(Status::INVALID_KEY_SIZE)? as usize {
            0 => Bytes::new(),
            len if len > BLOCK_MAX_BYTES => return Err(Status::INVALID_VALUE_SIZE),
            len => {
                let mut arguments = self.pool.take(len).await;
                payload.receive(&mut arguments, len).await?;
                arguments.freeze().into_bytes()
            }
        };
        payload.whole().await?;
        Ok((key, arguments))
    }

    async fn run(&self, asked: Asked<'_, S>) -> Result<Executed, Status> {
        let info = asked.entered.info()?;
        let inputs = [Input::whole(&info.name, asked.key)];
        let module = Module::Number(asked.operation);
        let capacity = asked.capacity as usize;
        let tenant = &info.config.tenant;
        let call = Execute {
            arguments: asked.arguments,
            ..Execute::inline(tenant, module, &inputs, &[], capacity)
        };
        let executed = self.store.execute(call).await;
        executed.map_err(|error| of_store(&error))
    }
}

/// The result to the host, as much of it as there is room for; its true length.
async fn give(executed: Executed, payload: &mut impl Payload) -> Result<u64, Status> {
    for buf in executed.bytes {
        payload.send(buf).await?;
    }
    Ok(dword(executed.len))
}
