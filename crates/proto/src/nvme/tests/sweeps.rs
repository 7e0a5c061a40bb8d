//! Every number that a command can name, on each kind of controller: what is there answers, and all else is refused.

use super::support::*;
use crate::nvme::log_page::lid;
use crate::nvme::opcode::{FABRICS, admin, kv, nvm};
use crate::nvme::*;

const ALL: std::ops::RangeInclusive<u8> = 0..=255;

/// Whether there is something of a number.
type Known = fn(u8) -> bool;

#[test]
fn opcodes_of_the_admin_queue() {
    let everywhere = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
    ];
    let own: [(Fixture, &[u8]); 3] = [
        (
            Fixture::new(TCP),
            &[admin::ABORT, admin::KEEP_ALIVE, FABRICS],
        ),
        (
            Fixture::new(PCIE),
            &[
                admin::ABORT,
                admin::CREATE_IO_CQ,
                admin::CREATE_IO_SQ,
                admin::DELETE_IO_CQ,
                admin::DELETE_IO_SQ,
                admin::DOORBELL_BUFFER_CONFIG,
            ],
        ),
        (Fixture::discovery(), &[admin::KEEP_ALIVE, FABRICS]),
    ];
    for (mut fixture, own) in own {
        for opcode in ALL.filter(|opcode| !everywhere.contains(opcode) && !own.contains(opcode)) {
            let entry = fixture.command(opcode, 0);
            let refused = fixture.result(entry);
            assert_eq!(refused, Err(Status::INVALID_OPCODE), "{opcode:02x}h");
        }
    }
}

#[test]
fn opcodes_of_io_queues() {
    let blocks = [
        nvm::FLUSH,
        nvm::WRITE,
        nvm::READ,
        nvm::COMPARE,
        nvm::WRITE_ZEROES,
        nvm::DATASET_MANAGEMENT,
        nvm::VERIFY,
    ];
    let values = [
        kv::FLUSH,
        kv::STORE,
        kv::RETRIEVE,
        kv::LIST,
        kv::DELETE,
        kv::EXIST,
        kv::EXTENDED_KEY,
        kv::STORE_PART,
        kv::RETRIEVE_RANGE,
        kv::EXECUTE_SUBMIT,
        kv::EXECUTE_FETCH,
        kv::EXECUTE_INLINE,
    ];
    // Fabrics move data of a command one way.
    for (mut fixture, both_ways) in [
        (Fixture::new(TCP), None),
        (Fixture::new(PCIE), Some(kv::EXECUTE)),
    ] {
        let values: Vec<u8> = values.into_iter().chain(both_ways).collect();
        // CDW11: a key of one byte, a block near the first.
        for (nsid, known, cdw11) in [(BLOCK, &blocks[..], 0), (KV, &values[..], 1)] {
            for opcode in ALL {
                let entry = fixture.command(opcode, nsid).with_cdw(11, cdw11);
                let refused = fixture.controller.io(0, 1, &entry).err();
                let unknown = Status::INVALID_OPCODE.with_do_not_retry();
                let expected = (!known.contains(&opcode)).then_some(unknown);
                assert_eq!(refused, expected, "{opcode:02x}h of {nsid}");
            }
        }
    }
}

#[test]
fn structures() {
    let of_io = |cns| matches!(cns, 0..=3 | 5..=8 | 0x1c);
    let of_discovery = |cns| cns == 1;
    let known: [(Fixture, Known); 3] = [
        (Fixture::new(TCP), of_io),
        (Fixture::new(PCIE), of_io),
        (Fixture::discovery(), of_discovery),
    ];
    for (mut fixture, known) in known {
        for cns in ALL {
            let page = fixture.identify(cns, BLOCK, 0);
            let refused = page == Err(Status::INVALID_FIELD);
            assert_eq!(refused, !known(cns), "{cns:02x}h");
        }
    }
    let mut fixture = Fixture::new(TCP);
    for csi in 2..=255 {
        for cns in [5, 6, 7] {
            assert_eq!(fixture.identify(cns, KV, csi), Err(Status::INVALID_FIELD));
        }
        assert_eq!(
            fixture.log(lid::COMMANDS_AND_EFFECTS, 4096, csi),
            Err(Status::INVALID_FIELD)
        );
    }
}

#[test]
fn logs() {
    let of_io = |lid| matches!(lid, 0..=5 | 0x0c | 0x12);
    let of_discovery = |lid| matches!(lid, 0 | 1 | 0x12 | 0x70);
    let known: [(Fixture, Known); 3] = [
        (Fixture::new(TCP), of_io),
        (Fixture::new(PCIE), of_io),
        (Fixture::discovery(), of_discovery),
    ];
    for (mut fixture, known) in known {
        let told = fixture.log(lid::SUPPORTED_LOG_PAGES, 1024, 0).unwrap();
        for lid in ALL {
            assert_eq!(u32_at(&told, usize::from(lid) * 4), u32::from(known(lid)));
            let refused = fixture.log(lid, 512, 0).err();
            let expected = (!known(lid)).then_some(Status::INVALID_LOG_PAGE);
            assert_eq!(refused, expected, "{lid:02x}h");
        }
    }
}

/// A feature, and how setting it to zeroes and to ones ends.
type Set = (u8, Result<u64, Status>, Result<u64, Status>);

#[test]
fn features() {
    let unknown = Err(Status::INVALID_FIELD);
    let of_io: [Set; 9] = [
        (0x01, Ok(0), Ok(0)),
        // There is one power state.
        (0x02, Ok(0), unknown),
        (0x04, Ok(0), Ok(0)),
        (0x05, Ok(0), Ok(0)),
        // The write cache is on.
        (0x06, Err(Status::FEATURE_NOT_CHANGEABLE), Ok(0)),
        // One queue; more than there can be.
        (0x07, Ok(0), unknown),
        (0x0a, Ok(0), Ok(0)),
        (0x0b, Ok(0), Ok(0)),
        (
            0x19,
            Ok(0),
            Err(Status::IO_COMMAND_SET_COMBINATION_REJECTED),
        ),
    ];
    // Of no namespace.
    let of_kv = Err(Status::INVALID_NAMESPACE_OR_FORMAT);
    let known: [(Fixture, &[Set], &[Set]); 3] = [
        (
            Fixture::new(TCP),
            &of_io,
            &[
                (0x0f, Err(Status::KEEP_ALIVE_TIMEOUT_INVALID), Ok(0)),
                (0x20, of_kv, of_kv),
                (
                    0x81,
                    Err(Status::COMMAND_SEQUENCE_ERROR),
                    Err(Status::COMMAND_SEQUENCE_ERROR),
                ),
            ],
        ),
        (
            Fixture::new(PCIE),
            &of_io,
            &[
                (0x08, Ok(0), Ok(0)),
                (0x09, Ok(0), unknown),
                (0x20, of_kv, of_kv),
                // Its data is missing.
                (
                    0x81,
                    Err(Status::DATA_TRANSFER_ERROR),
                    Err(Status::DATA_TRANSFER_ERROR),
                ),
            ],
        ),
        (
            Fixture::discovery(),
            &[],
            &[(0x0b, Ok(0), Ok(0)), (0x0f, Ok(0), Ok(0))],
        ),
    ];
    for (mut fixture, shared, own) in known {
        let told = fixture.log(lid::FEATURES_AND_EFFECTS, 1024, 0).unwrap();
        for feature in ALL {
            let known = shared.iter().chain(own).find(|set| set.0 == feature);
            let scope = if feature == 0x20 { 1 << 20 } else { 1 << 21 };
            let effects = known.map_or(0, |_| 1 | scope);
            assert_eq!(u32_at(&told, usize::from(feature) * 4), effects);
            let (zeroes, ones) = known.map_or((unknown, unknown), |set| (set.1, set.2));
            let read = fixture.command(admin::GET_FEATURES, 0);
            let read = fixture.data(read.with_cdw(10, feature.into()).with_cdw(11, 1));
            let refused = read == Err(Status::INVALID_FIELD);
            assert_eq!(refused, known.is_none(), "{feature:02x}h");
            for (value, expected) in [(0, zeroes), (u32::MAX, ones)] {
                let set = fixture.set_feature(feature, value);
                assert_eq!(set, expected, "{feature:02x}h {value:x}");
            }
        }
    }
}
