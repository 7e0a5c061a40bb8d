//! The first block, as tests write and read it.

use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use forebay_proto::nvme::{SglDescriptor, Status, SubmissionQueueEntry};

use crate::host::{Host, key};
use crate::world::{BLOCK, BLOCK_BYTES, KV};

pub const FIRST: Blocks = Blocks { first: 0, count: 1 };

/// Begins to write it.
pub fn write(io: &mut Host, data: &[u8]) -> SubmissionQueueEntry {
    let write = NvmCommand::Write {
        blocks: FIRST,
        fua: false,
    };
    let entry = io.numbered(write.entry(0, BLOCK));
    let sgl = SglDescriptor::in_capsule(data.len() as u32);
    io.capsule(&entry.with_sgl(sgl), data);
    // What follows it on its queue is begun after it.
    assert_eq!(exist(io), Status::KV_KEY_DOES_NOT_EXIST);
    entry
}

pub fn exist(io: &mut Host) -> Status {
    let exist = KvCommand::Exist { key: key("none") };
    io.run(exist.entry(0, KV), &[], 0).0.status.code()
}

pub fn read(io: &mut Host) -> Vec<u8> {
    let read = NvmCommand::Read { blocks: FIRST }.entry(0, BLOCK);
    io.run(read, &[], BLOCK_BYTES).1
}
