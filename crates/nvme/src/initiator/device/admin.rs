//! The admin queue of a device: one command at a time.

use std::sync::Arc;
use std::time::Duration;

use forebay_mem::{PAGE_BYTES, Region};
use tokio::time::timeout;

use super::super::Error;
use super::super::data::Data;
use super::super::slots::{Command, Completed, RUNTIME_ENDED, Reply, Slots, TOO_SLOW};
use super::{Attached, broken, commands};
use crate::vfio_user::client::{Error as DeviceError, Mapping};

/// What carries admin commands until the connection ends.
pub(in super::super) struct Admin {
    slots: Arc<Slots>,
    attached: Arc<Attached>,
    association: u64,
    timeout: Duration,
    /// The command that is under way.
    taken: Vec<(u16, Command)>,
    memory: Option<Mapping>,
}

impl Admin {
    pub(in super::super) fn new(
        slots: Arc<Slots>,
        attached: Arc<Attached>,
        association: u64,
        timeout: Duration,
    ) -> Admin {
        Admin {
            slots,
            attached,
            association,
            timeout,
            taken: Vec::new(),
            memory: None,
        }
    }

    /// Carries commands until the connection ends, and tells why it did.
    pub(in super::super) async fn run(&mut self) -> String {
        loop {
            tokio::select! {
                () = commands(&self.slots, 1, &mut self.taken) => {}
                () = self.attached.device.closed() => return "the device has gone".to_owned(),
            }
            let outcome = match timeout(self.timeout, self.execute()).await {
                Ok(Err(DeviceError::Io(error))) => return error.to_string(),
                Ok(outcome) => outcome.map_err(broken),
                Err(_) => return TOO_SLOW.to_owned(),
            };
            self.reply(&outcome);
        }
    }

    async fn execute(&mut self) -> Result<Completed, DeviceError> {
        let Some((_, command)) = self.taken.first_mut() else {
            return Err(DeviceError::Device("there is no command"));
        };
        let device = &self.attached.device;
        let len = command.data.len() as usize;
        let mut entry = command.entry;
        if len > 0 {
            let memory = match self.memory.take() {
                Some(memory) if memory.region().len() >= len => memory,
                _ => {
                    let region = Region::memfd(len.next_multiple_of(PAGE_BYTES))?;
                    device.map(region).await?
                }
            };
            if let Data::Out(source) = &command.data
                && !source.copy_to(memory.region())
            {
                return Err(DeviceError::Device("memory that was taken away"));
            }
            let pointed = memory.point(entry, 0, len);
            entry = pointed.ok_or(DeviceError::Device("more data than a command has"))?;
            self.memory = Some(memory);
        }
        let result = device.admin(entry).await?;
        let received = match (&mut command.data, &self.memory) {
            (Data::In(sink), Some(memory)) => {
                if !sink.copy_from(memory.region(), len) {
                    return Err(DeviceError::Device("memory that was taken away"));
                }
                len as u64
            }
            _ => 0,
        };
        Ok(Completed {
            result,
            received,
            association: self.association,
        })
    }

    fn reply(&mut self, outcome: &Result<Completed, Error>) {
        let replies = self.taken.drain(..).map(|(at, command)| {
            let mut data = command.data;
            if let (Data::In(sink), Ok(completed)) = (&mut data, outcome) {
                sink.finish(completed.received);
            }
            let outcome = outcome.clone();
            (at, Reply { outcome, data })
        });
        let mut replies = replies.collect();
        self.slots.complete(&mut replies, &mut Vec::new());
    }

    /// Ends what was under way, when the connection is over.
    pub(in super::super) fn wind_up(&mut self, why: &str) {
        self.slots.end(self.taken.drain(..), why);
    }
}

impl Drop for Admin {
    /// A runtime that stops drops its tasks.
    fn drop(&mut self) {
        self.wind_up(RUNTIME_ENDED);
    }
}
