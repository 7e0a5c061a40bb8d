//! Any commands in any order: nothing panics, what is kept is bounded, and a simple model agrees on what the controller is.

use proptest::prelude::*;

use super::support::*;
use crate::nvme::opcode::{FABRICS, admin};
use crate::nvme::property::offset;
use crate::nvme::*;

/// One thing a host or the node does.
#[derive(Debug, Clone)]
enum Step {
    Configure(u32),
    Admin([u8; 64]),
    Io(u16, [u8; 64]),
    Publish(Vec<u32>),
    Events,
}

/// Bytes that are often nearly a command.
fn entry(opcodes: &'static [u8]) -> impl Strategy<Value = [u8; 64]> {
    let opcode = prop_oneof![3 => prop::sample::select(opcodes), 1 => any::<u8>()];
    let small = || prop_oneof![0..12u32, any::<u32>()];
    (
        opcode,
        any::<u8>(),
        any::<u16>(),
        small(),
        prop::collection::vec(small(), 6),
        0..1u64 << 20,
    )
        .prop_map(|(opcode, flags, cid, nsid, dwords, prp)| {
            let mut entry =
                SubmissionQueueEntry::new(opcode, cid, nsid).with_prps(prp << 12, prp << 13);
            for (at, dword) in dwords.iter().enumerate() {
                entry = entry.with_cdw(10 + at, *dword);
            }
            let mut bytes = *entry.as_bytes();
            bytes[1] = flags & 0x43;
            bytes
        })
}

const ADMIN: &[u8] = &[
    admin::CREATE_IO_CQ,
    admin::CREATE_IO_SQ,
    admin::DELETE_IO_CQ,
    admin::DELETE_IO_SQ,
    admin::IDENTIFY,
    admin::GET_LOG_PAGE,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::ABORT,
    FABRICS,
];
const IO: &[u8] = &[
    0x00, 0x01, 0x02, 0x05, 0x06, 0x08, 0x09, 0x0c, 0x10, 0x14, 0xc5, 0xc9, 0xca,
];

fn step() -> impl Strategy<Value = Step> {
    let cc = prop_oneof![
        Just(0x0046_0061),
        Just(0x0046_0060),
        Just(0x0046_4061),
        Just(0x0046_0001),
        any::<u32>()
    ];
    prop_oneof![
        2 => cc.prop_map(Step::Configure),
        8 => entry(ADMIN).prop_map(Step::Admin),
        8 => (0..6u16, entry(IO)).prop_map(|(qid, bytes)| Step::Io(qid, bytes)),
        1 => prop::collection::btree_set(1..2000u32, 0..6).prop_map(|set| Step::Publish(set.into_iter().collect())),
        1 => Just(Step::Events),
    ]
}

proptest! {
    #[test]
    fn a_controller_survives_any_host(pcie: bool, steps in prop::collection::vec(step(), 0..60)) {
        let transport = if pcie { PCIE } else { TCP };
        let mut controller = Controller::new(0, config(transport), usual());
        let mut held = 0;
        let (mut cc, mut shut, mut fatal) = (0u32, false, false);
        let mut published = usual();
        for step in steps {
            match step {
                Step::Configure(value) => {
                    match controller.write_property(offset::CC, 4, u64::from(value)) {
                        Ok(Effect::Enable) => {
                            controller.enabled();
                            shut = false;
                        }
                        Ok(Effect::Reset) => {
                            controller.reset_done();
                            (held, shut, fatal) = (0, false, false);
                        }
                        Ok(Effect::Shutdown) => shut = true,
                        Ok(Effect::None) => {}
                        Err(status) => {
                            prop_assert!(!pcie);
                            prop_assert_eq!(status, Status::INVALID_FIELD);
                            continue;
                        }
                    }
                    cc = value;
                    let csts = controller.read_property(offset::CSTS, 4).unwrap();
                    fatal |= csts & 2 != 0;
                    if cc & 1 == 0 && csts & 1 == 0 {
                        shut = csts & 12 != 0;
                    }
                }
                Step::Admin(bytes) => {
                    let entry = SubmissionQueueEntry::from_bytes(&bytes);
                    let before = controller.is_ready();
                    match controller.admin(0, &entry, &[0x5a; 64]) {
                        AdminReply::Complete { status, data, effect, .. } => {
                            prop_assert!(status.is_success() || data.is_empty());
                            prop_assert!(data.len() <= 64 << 10);
                            if effect == Effect::Reset {
                                (held, shut, fatal) = (0, false, false);
                            }
                            match effect {
                                Effect::Enable => shut = false,
                                Effect::Shutdown => shut = true,
                                Effect::Reset | Effect::None => {}
                            }
                            cc = controller.read_property(offset::CC, 4).unwrap() as u32;
                        }
                        AdminReply::Held => {
                            held += 1;
                            prop_assert!(before && held <= 4);
                        }
                        AdminReply::Disconnect => prop_assert!(false, "the admin queue is not disconnected so"),
                        AdminReply::Authenticate { .. } => prop_assert!(false, "nothing is demanded"),
                        AdminReply::Abort { sqid, .. } => prop_assert!((1..=4).contains(&sqid)),
                        AdminReply::CreateQueue(_) | AdminReply::ShadowDoorbells { .. } => {
                            prop_assert!(pcie && before);
                        }
                        AdminReply::DeleteQueue(name) => {
                            prop_assert!(pcie && before);
                            controller.deleted(name);
                        }
                    }
                }
                Step::Io(qid, bytes) => {
                    let entry = SubmissionQueueEntry::from_bytes(&bytes);
                    if let Ok(command) = controller.io(0, qid, &entry) {
                        prop_assert!(controller.is_ready() && qid > 0);
                        let namespace = published.namespace(command.nsid).unwrap();
                        prop_assert_eq!(
                            matches!(command.verb, IoVerb::Kv(_)),
                            namespace.csi() == Csi::Kv
                        );
                        prop_assert!(cc >> 4 & 7 == 6 || namespace.csi() == Csi::Nvm);
                    }
                }
                Step::Publish(nsids) => {
                    let namespace = |nsid: &u32| match nsid % 2 {
                        0 => kv_namespace(*nsid),
                        _ => block_namespace(*nsid, false),
                    };
                    published = subsystem(nsids.iter().map(namespace).collect());
                    controller.set_subsystem(published.clone());
                }
                Step::Events => {
                    while controller.next_event().is_some() {
                        held -= 1;
                    }
                }
            }
            let ready = controller.is_ready();
            prop_assert!(!ready || cc & 1 == 1 && !shut && !fatal);
        }
    }
}
