//! A host that does anything to an NVMe controller.

use std::sync::Arc;

use forebay_proto::nvme::auth::{Authentication, Secret};
use forebay_proto::nvme::discovery::DiscoveryLog;
use forebay_proto::nvme::fabrics::Connect;
use forebay_proto::nvme::property::offset;
use forebay_proto::nvme::{
    AdminReply, Controller, ControllerConfig, ControllerKind, Effect, HostIdentity, Namespace,
    NamespaceKind, QueueName, QueueRequest, SubmissionQueueEntry, Subsystem, Transport,
};

const HOST: &str = "nqn.2026-01.example:host";
const SUBSYSTEM: &str = "nqn.2026-01.example:pool";
const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
/// The longest answer to an admin command.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Takes the input apart; ends where it ends.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u64(&mut self) -> Option<u64> {
        let bytes = self.take(8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn entry(&mut self) -> Option<SubmissionQueueEntry> {
        let bytes = self.take(64)?.try_into().ok()?;
        Some(SubmissionQueueEntry::from_bytes(bytes))
    }

    /// A length and so many bytes.
    fn data(&mut self) -> Option<&'a [u8]> {
        let len = self.u8()?;
        self.take(usize::from(len))
    }
}

/// Every second namespace keeps values; `set` has a bit for each of eight.
fn subsystem(set: u8) -> Arc<Subsystem> {
    let namespace = |nsid: u32| Namespace {
        nsid,
        uuid: [nsid as u8; 16],
        nguid: [nsid as u8; 16],
        kind: match nsid % 2 {
            0 => NamespaceKind::Kv {
                value_bytes_max: 64 << 20,
                keys_max: 0,
                capacity_bytes: 1 << 40,
                used_bytes: 0,
            },
            _ => NamespaceKind::Block {
                lba_shift: 12,
                blocks: 1 << 20,
                read_only: nsid == 7,
            },
        },
    };
    Arc::new(Subsystem {
        nqn: SUBSYSTEM.to_owned(),
        serial: "1".to_owned(),
        model: "Forebay".to_owned(),
        firmware: "1".to_owned(),
        generation: 1,
        namespaces: (1..=8)
            .filter(|nsid| set & 1 << (nsid - 1) != 0)
            .map(namespace)
            .collect(),
    })
}

/// The first byte says what the controller is (bit 0 a device, bit 1 for discovery, bit 2 demanding proof), each further step what
/// its host does.
pub fn nvme_controller(data: &[u8]) {
    let _ = run(Input(data));
}

fn run(mut input: Input<'_>) -> Option<()> {
    let flags = input.u8()?;
    let secret = Secret::parse(SECRET).expect("a secret");
    let device = flags & 1 != 0;
    let config = ControllerConfig {
        cntlid: 1,
        kind: match flags & 2 {
            0 => ControllerKind::Io,
            _ => ControllerKind::Discovery,
        },
        transport: match device {
            true => Transport::Pcie { vectors: 4 },
            false => Transport::Tcp {
                in_capsule_bytes: 8192,
            },
        },
        host: HostIdentity {
            nqn: HOST.to_owned(),
            id: [9; 16],
        },
        queue_entries_max: 64,
        io_queues_max: 4,
        transfer_bytes_max: 64 << 20,
        result_bytes_max: 1 << 20,
        kato_ms: 5000,
        authentication: (flags & 4 != 0).then(|| Authentication {
            host: secret.clone(),
            subsystem: Some(secret),
        }),
        random: |bytes| bytes.fill(0x5a),
    };
    let mut controller = Controller::new(0, config, subsystem(0xff));
    let mut now_ms = 0u64;
    let mut generation = 0;
    loop {
        match input.u8()? {
            0 => {
                let at = u32::from(input.u8()?) * 2;
                let size = 4 << (input.u8()? & 1);
                let value = input.u64()?;
                let _ = controller.read_property(at, size);
                if let Ok(effect) = controller.write_property(at, size, value) {
                    follow(&mut controller, device, effect);
                }
            }
            1 => {
                let entry = input.entry()?;
                let wanted = Controller::data_in_bytes(&entry);
                let data = input.data()?;
                let reply = controller.admin(now_ms, &entry, &data[..data.len().min(wanted)]);
                check(&mut controller, device, reply);
            }
            2 => {
                let qid = u16::from(input.u8()?);
                let entry = input.entry()?;
                let reply = controller.fabrics(now_ms, qid, &entry, input.data()?);
                check(&mut controller, device, reply);
            }
            3 => {
                let qid = u16::from(input.u8()?);
                let entry = input.entry()?;
                if let Ok(command) = controller.io(now_ms, qid, &entry) {
                    assert!(controller.is_ready() && qid > 0);
                    let namespace = controller.subsystem().namespace(command.nsid);
                    assert!(namespace.is_some(), "a namespace that is shown");
                }
            }
            4 => controller.set_subsystem(subsystem(input.u8()?)),
            5 => {
                let qid = u16::from(input.u8()?);
                let connect = Connect {
                    qid,
                    entries: u32::from(input.u8()?) + 1,
                    no_sq_flow_control: true,
                    kato_ms: 0,
                    host_id: [9; 16],
                    cntlid: 1,
                    subnqn: SUBSYSTEM.to_owned(),
                    hostnqn: HOST.to_owned(),
                };
                if controller.connect_io(&connect).is_ok() {
                    assert!(qid > 0 && qid <= 4 && controller.is_ready());
                }
            }
            6 => {
                generation += 1;
                controller.set_discovery(Arc::new(DiscoveryLog {
                    generation,
                    entries: Vec::new(),
                }));
                while controller.next_event().is_some() {}
            }
            7 => {
                now_ms = now_ms.saturating_add(input.u64()?);
                let _ = controller.keep_alive_deadline_ms();
            }
            8 => {
                let entry = input.entry()?;
                if let Ok(connect) = Connect::parse(&entry, &input.0[..input.0.len().min(1024)]) {
                    let _ = Controller::check_admin_connect(&connect, 64);
                    let _ = controller.connect_io(&connect);
                }
            }
            _ => controller.disconnect_io(u16::from(input.u8()?)),
        }
    }
}

fn follow(controller: &mut Controller, device: bool, effect: Effect) {
    match effect {
        Effect::Enable if device => controller.enabled(),
        Effect::Reset if device => controller.reset_done(),
        _ => {}
    }
    if effect == Effect::Reset {
        assert!(!controller.is_ready());
        assert_eq!(controller.next_event(), None, "nothing is held any more");
    }
    let status = controller.read_property(offset::CSTS, 4).expect("CSTS");
    assert_eq!(status & !0xf, 0);
}

fn check(controller: &mut Controller, device: bool, reply: AdminReply) {
    match reply {
        AdminReply::Complete {
            status,
            data,
            effect,
            ..
        } => {
            assert!(data.len() <= ANSWER_BYTES_MAX);
            assert!(status.is_success() || data.is_empty());
            follow(controller, device, effect);
        }
        AdminReply::CreateQueue(queue) => {
            assert!(device);
            // The memory of every third queue cannot be had.
            match queue {
                QueueRequest::Submission { qid: 3, .. } => {
                    controller.undo_create(QueueName::Submission(3));
                }
                QueueRequest::Completion { qid: 3, .. } => {
                    controller.undo_create(QueueName::Completion(3));
                }
                _ => {}
            }
        }
        AdminReply::DeleteQueue(queue) => {
            assert!(device);
            // The commands of one of them do not end.
            if !matches!(queue, QueueName::Submission(2)) {
                controller.deleted(queue);
            }
        }
        AdminReply::Authenticate { qid } => {
            let mut asked = controller.authenticating(qid).expect("a message");
            asked.compute();
            controller.authenticated(0, qid, asked);
        }
        AdminReply::Held
        | AdminReply::Abort { .. }
        | AdminReply::ShadowDoorbells { .. }
        | AdminReply::Disconnect => {}
    }
}
