//! Entries, commands and their bytes.

use proptest::prelude::*;

use super::support::*;
use crate::nvme::kv::*;
use crate::nvme::nvm::{Blocks, DsmRange, NvmCommand};
use crate::nvme::*;

/// What `nvme io-passthru --opcode=1 --cdw2=0x0079656b --cdw10=11 --cdw11=3` becomes over TCP.
#[test]
fn a_store_as_linux_sends_it() {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&[0x01, 0x40, 0x12, 0x30, 2, 0, 0, 0]);
    bytes[8..12].copy_from_slice(b"key\0");
    bytes[24..40].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0x01]);
    bytes[40..48].copy_from_slice(&[11, 0, 0, 0, 3, 0, 0, 0]);
    let entry = SubmissionQueueEntry::from_bytes(&bytes);
    assert_eq!((entry.opcode(), entry.cid(), entry.nsid()), (1, 0x3012, 2));
    assert_eq!((entry.psdt(), entry.fuse()), (1, 0));
    assert_eq!(entry.sgl(), SglDescriptor::in_capsule(11));
    let command = IoCommand::parse(&entry, &kv_namespace(KV)).unwrap();
    let store = KvCommand::Store {
        key: KeyAt::Inline(Key::new(b"key").unwrap()),
        value_bytes: 11,
        options: StoreOptions::default(),
    };
    assert_eq!(command.verb, IoVerb::Kv(store));
    assert_eq!(
        (command.bytes_to_controller, command.bytes_to_host),
        (11, 0)
    );
    let made = store
        .entry(0x3012, KV)
        .with_sgl(SglDescriptor::in_capsule(11));
    assert_eq!(made.as_bytes(), &bytes);
    // The same opcode on blocks is Write: the namespace decides.
    let command = IoCommand::parse(&entry, &block_namespace(BLOCK, false));
    assert_eq!(command, Err(Status::LBA_OUT_OF_RANGE));
}

#[test]
fn a_completion_as_nvme_cli_prints_it() {
    let status = Status::KV_KEY_DOES_NOT_EXIST.answered();
    assert_eq!(status.wire(), 0x4087);
    assert_eq!(status.to_string(), "KV Key Does Not Exist (0h/87h)");
    let entry = CompletionQueueEntry {
        result: 0x0000_0002_0000_0001,
        sq_head: 3,
        sq_id: 4,
        cid: 0x3012,
        status,
    };
    let bytes = entry.encode(true);
    assert_eq!(
        bytes,
        [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 4, 0, 0x12, 0x30, 0x0f, 0x81]
    );
    assert_eq!(CompletionQueueEntry::decode(&bytes), (entry, true));
}

#[test]
fn a_list_is_padded_to_dwords() {
    let mut buffer = [0xee; 31];
    let mut writer = ListWriter::new(&mut buffer).unwrap();
    assert!(writer.push(b"key"));
    assert_eq!(writer.len(), 12);
    assert!(writer.push(b"to"));
    assert!(!writer.push(b"a key too long"));
    let len = writer.len();
    assert_eq!(buffer[..len], *b"\x02\0\0\0\x03\0key\0\0\0\x02\0to");
    let keys: Vec<&[u8]> = ListReader::new(&buffer).unwrap().collect();
    assert_eq!(keys, [&b"key"[..], b"to"]);
    // A list that says more than it holds ends.
    buffer[0] = 0xff;
    assert!(ListReader::new(&buffer).unwrap().count() < 16);
    assert!(ListWriter::new(&mut [0; 3]).is_none());
}

#[test]
fn a_range_of_dataset_management() {
    let range = DsmRange {
        first: 0x1122,
        count: 3,
    };
    let bytes = range.encode();
    assert_eq!(
        bytes,
        [0, 0, 0, 0, 3, 0, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(DsmRange::decode(&bytes), range);
}

fn key() -> impl Strategy<Value = Key> {
    prop::collection::vec(any::<u8>(), 1..=16).prop_map(|bytes| Key::new(&bytes).unwrap())
}

fn key_at() -> impl Strategy<Value = KeyAt> {
    prop_oneof![key().prop_map(KeyAt::Inline), Just(KeyAt::Head)]
}

fn options(ttl: bool) -> impl Strategy<Value = StoreOptions> {
    (0..3, any::<bool>(), prop::option::of(any::<u32>())).prop_map(move |(when, hint, ttl_s)| {
        StoreOptions {
            if_exists: when == 1,
            if_absent: when == 2,
            no_compression: hint,
            ttl_s: ttl_s.filter(|_| ttl),
        }
    })
}

#[test]
fn functions_stand_where_rados_nkv_has_them() {
    let command = KvCommand::Execute {
        payload_bytes: 7,
        capacity: 8,
        operation: 9,
    };
    let entry = command.entry(5, KV);
    assert_eq!(entry.opcode(), 0x83);
    assert_eq!((entry.cdw(10), entry.cdw(12), entry.cdw(13)), (7, 8, 9));
    let command = KvCommand::ExecuteInline {
        key: Key::new(b"0123456789abcdef").unwrap(),
        argument: 7,
        operation: 9,
        buffer_bytes: 8,
    };
    let entry = command.entry(5, KV);
    assert_eq!(entry.opcode(), 0xc6);
    assert_eq!(
        [10, 11, 12, 13].map(|dword| entry.cdw(dword)),
        [8, 16, 7, 9]
    );
    assert_eq!(&entry.as_bytes()[56..], b"89abcdef");
    let long = KvCommand::ExecuteSubmit {
        payload_bytes: (1 << 20) + 258,
        capacity: 0,
        operation: 0,
    };
    let refused = KvCommand::parse(&long.entry(5, KV), &kv_namespace(KV));
    assert_eq!(refused, Err(Status::INVALID_VALUE_SIZE));
}

fn kv_command() -> impl Strategy<Value = KvCommand> {
    let size = 0..=VALUE_BYTES_MAX;
    prop_oneof![
        Just(KvCommand::Flush),
        (key_at(), size.clone(), options(true)).prop_map(|(key, value_bytes, options)| {
            KvCommand::Store {
                key,
                value_bytes,
                options,
            }
        }),
        (key(), any::<u32>())
            .prop_map(|(key, buffer_bytes)| KvCommand::Retrieve { key, buffer_bytes }),
        any::<u32>().prop_map(|buffer_bytes| KvCommand::RetrieveByHead { buffer_bytes }),
        key().prop_map(|key| KvCommand::Delete { key }),
        key().prop_map(|key| KvCommand::Exist { key }),
        (
            prop_oneof![
                Just((ListStart::First, false)),
                key().prop_map(|key| (ListStart::Key(key), false)),
                key().prop_map(|key| (ListStart::Key(key), true)),
                (1..u32::MAX).prop_map(|handle| (ListStart::Bound(handle), true)),
            ],
            any::<u32>()
        )
            .prop_map(|((start, extended), buffer_bytes)| KvCommand::List {
                start,
                extended,
                buffer_bytes
            }),
        prop_oneof![
            Just(Verb::Exist),
            Just(Verb::Delete),
            Just(Verb::Bind),
            Just(Verb::Position)
        ]
        .prop_map(|verb| KvCommand::ExtendedKey { verb }),
        (
            prop_oneof![
                key().prop_map(RangeKey::Inline),
                any::<u32>().prop_map(RangeKey::Bound)
            ],
            any::<u64>(),
            any::<u32>()
        )
            .prop_map(|(key, offset, buffer_bytes)| KvCommand::RetrieveRange {
                key,
                offset,
                buffer_bytes
            }),
        (
            key_at(),
            0..u64::MAX / 2,
            size,
            options(false),
            any::<bool>()
        )
            .prop_map(
                |(key, offset, value_bytes, options, last)| KvCommand::StorePart {
                    key,
                    offset,
                    value_bytes,
                    options,
                    last
                }
            ),
    ]
}

fn program() -> impl Strategy<Value = KvCommand> {
    let payload = 0..=(1u32 << 20) + 257;
    prop_oneof![
        (payload.clone(), any::<u32>(), any::<u32>()).prop_map(
            |(payload_bytes, capacity, operation)| KvCommand::Execute {
                payload_bytes,
                capacity,
                operation
            }
        ),
        (payload, any::<u32>(), any::<u32>()).prop_map(|(payload_bytes, capacity, operation)| {
            KvCommand::ExecuteSubmit {
                payload_bytes,
                capacity,
                operation,
            }
        }),
        any::<[u32; 3]>().prop_map(|[handle, offset, buffer_bytes]| KvCommand::ExecuteFetch {
            handle,
            offset,
            buffer_bytes
        }),
        (key(), any::<[u32; 3]>()).prop_map(|(key, [argument, operation, buffer_bytes])| {
            KvCommand::ExecuteInline {
                key,
                argument,
                operation,
                buffer_bytes,
            }
        }),
    ]
}

fn blocks() -> impl Strategy<Value = Blocks> {
    (0..1000u64, 1..=1000u32).prop_map(|(first, count)| Blocks {
        first,
        count: count.min(1000 - first as u32),
    })
}

fn nvm_command() -> impl Strategy<Value = NvmCommand> {
    prop_oneof![
        Just(NvmCommand::Flush),
        blocks().prop_map(|blocks| NvmCommand::Read { blocks }),
        (blocks(), any::<bool>()).prop_map(|(blocks, fua)| NvmCommand::Write { blocks, fua }),
        blocks().prop_map(|blocks| NvmCommand::Compare { blocks }),
        (blocks(), any::<bool>(), any::<bool>()).prop_map(|(blocks, deallocate, fua)| {
            NvmCommand::WriteZeroes {
                blocks,
                deallocate,
                fua,
            }
        }),
        (1..=256u16, any::<bool>())
            .prop_map(|(ranges, deallocate)| NvmCommand::DatasetManagement { ranges, deallocate }),
        blocks().prop_map(|blocks| NvmCommand::Verify { blocks }),
    ]
}

proptest! {
    #[test]
    fn what_is_made_is_what_is_parsed(command in prop_oneof![kv_command(), program()], cid: u16) {
        let entry = command.entry(cid, KV);
        prop_assert_eq!(entry.cid(), cid);
        prop_assert_eq!(KvCommand::parse(&entry, &kv_namespace(KV)), Ok(command));
        prop_assert_eq!(
            KvCommand::parse(&entry, &block_namespace(KV, false)),
            Err(Status::INVALID_NAMESPACE_OR_FORMAT)
        );
    }

    #[test]
    fn likewise_for_blocks(command in nvm_command(), cid: u16) {
        let entry = command.entry(cid, BLOCK);
        prop_assert_eq!(NvmCommand::parse(&entry, &block_namespace(BLOCK, false)), Ok(command));
        let changes = match command {
            NvmCommand::Write { .. } | NvmCommand::WriteZeroes { .. } => true,
            NvmCommand::DatasetManagement { deallocate, .. } => deallocate,
            _ => false,
        };
        let read_only = NvmCommand::parse(&entry, &block_namespace(BLOCK, true));
        prop_assert_eq!(read_only == Err(Status::NAMESPACE_WRITE_PROTECTED), changes);
    }

    #[test]
    fn any_bytes_are_an_entry_and_stay_one(bytes in prop::array::uniform32(any::<u8>())) {
        let mut whole = [0; 64];
        whole[..32].copy_from_slice(&bytes);
        whole[32..].copy_from_slice(&bytes);
        let entry = SubmissionQueueEntry::from_bytes(&whole);
        prop_assert_eq!(entry.as_bytes(), &whole);
        let mut sgl = [0; 16];
        sgl.copy_from_slice(&bytes[..16]);
        let descriptor = SglDescriptor::decode(&sgl);
        prop_assert_eq!(SglDescriptor::decode(&descriptor.encode()), descriptor);
    }

    #[test]
    fn lists_are_read_as_they_were_written(
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=255), 0..20),
        room in 4..2000usize,
    ) {
        let mut buffer = vec![0xee; room];
        let mut writer = ListWriter::new(&mut buffer).unwrap();
        let written = keys.iter().take_while(|key| writer.push(key)).count();
        prop_assert_eq!(writer.count() as usize, written);
        let len = writer.len();
        let read: Vec<&[u8]> = ListReader::new(&buffer[..len]).unwrap().collect();
        prop_assert_eq!(read, keys.iter().take(written).map(Vec::as_slice).collect::<Vec<_>>());
    }
}
