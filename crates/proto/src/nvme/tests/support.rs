//! A controller and its host.

use std::sync::Arc;

use crate::nvme::auth::{Authentication, Secret};
use crate::nvme::fabrics::Connect;
use crate::nvme::feature::EVENT_NAMESPACES;
use crate::nvme::opcode::admin;
use crate::nvme::property::{Configuration, offset};
use crate::nvme::*;

pub(super) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
pub(super) const SUBSYSTEM: &str = "nqn.2026-01.example:pool";
pub(super) const KV: u32 = 2;
pub(super) const BLOCK: u32 = 1;
pub(super) const READ_ONLY: u32 = 7;
pub(super) const VALUE_BYTES_MAX: u32 = 64 << 20;

pub(super) fn kv_namespace(nsid: u32) -> Namespace {
    Namespace {
        nsid,
        uuid: [nsid as u8; 16],
        nguid: [nsid as u8; 16],
        kind: NamespaceKind::Kv {
            value_bytes_max: VALUE_BYTES_MAX,
            keys_max: 0,
            capacity_bytes: 1 << 40,
            used_bytes: 12345,
        },
    }
}

pub(super) fn block_namespace(nsid: u32, read_only: bool) -> Namespace {
    Namespace {
        nsid,
        uuid: [nsid as u8; 16],
        nguid: [nsid as u8; 16],
        kind: NamespaceKind::Block {
            lba_shift: 12,
            blocks: 1000,
            read_only,
        },
    }
}

pub(super) fn subsystem(namespaces: Vec<Namespace>) -> Arc<Subsystem> {
    Arc::new(Subsystem {
        nqn: SUBSYSTEM.to_owned(),
        serial: "0123456789".to_owned(),
        model: "Forebay".to_owned(),
        firmware: "1.0".to_owned(),
        generation: 1,
        namespaces,
    })
}

pub(super) fn usual() -> Arc<Subsystem> {
    subsystem(vec![
        block_namespace(BLOCK, false),
        kv_namespace(KV),
        block_namespace(READ_ONLY, true),
    ])
}

pub(super) fn config(transport: Transport) -> ControllerConfig {
    ControllerConfig {
        cntlid: 5,
        kind: ControllerKind::Io,
        transport,
        host: HostIdentity {
            nqn: HOST.to_owned(),
            id: [9; 16],
        },
        queue_entries_max: 128,
        io_queues_max: 4,
        transfer_bytes_max: u64::from(VALUE_BYTES_MAX),
        result_bytes_max: 1 << 20,
        kato_ms: 5000,
        authentication: None,
        random: |bytes| bytes.fill(0x5a),
    }
}

pub(super) const TCP: Transport = Transport::Tcp {
    in_capsule_bytes: 8192,
};
pub(super) const PCIE: Transport = Transport::Pcie { vectors: 8 };

pub(super) fn authentication() -> Authentication {
    let text = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    Authentication {
        host: Secret::parse(text).unwrap(),
        subsystem: None,
    }
}

/// A Connect of the usual host.
pub(super) fn connect(qid: u16) -> Connect {
    Connect {
        qid,
        entries: if qid == 0 { 32 } else { 128 },
        no_sq_flow_control: true,
        kato_ms: 5000,
        host_id: [9; 16],
        cntlid: if qid == 0 { 0xffff } else { 5 },
        subnqn: SUBSYSTEM.to_owned(),
        hostnqn: HOST.to_owned(),
    }
}

/// A controller with what its host does again and again.
pub(super) struct Fixture {
    pub(super) controller: Controller,
    cid: u16,
}

impl Fixture {
    pub(super) fn disabled(config: ControllerConfig) -> Fixture {
        Fixture {
            controller: Controller::new(0, config, usual()),
            cid: 0,
        }
    }

    /// Enabled as Linux does it.
    pub(super) fn new(transport: Transport) -> Fixture {
        let mut fixture = Fixture::disabled(config(transport));
        fixture.enable(Configuration::ENABLE.0);
        fixture
    }

    /// One that tells where subsystems are.
    pub(super) fn discovery() -> Fixture {
        let mut config = config(TCP);
        config.kind = ControllerKind::Discovery;
        let mut fixture = Fixture::disabled(config);
        fixture.enable(Configuration::ENABLE.0);
        fixture
    }

    pub(super) fn enable(&mut self, cc: u32) {
        let written = self.controller.write_property(offset::CC, 4, u64::from(cc));
        assert_eq!(written, Ok(Effect::Enable));
        if matches!(self.controller.config().transport, Transport::Pcie { .. }) {
            self.controller.enabled();
        }
        assert!(self.controller.is_ready());
    }

    pub(super) fn command(&mut self, opcode: u8, nsid: u32) -> SubmissionQueueEntry {
        self.cid += 1;
        let entry = SubmissionQueueEntry::new(opcode, self.cid, nsid);
        match self.controller.config().transport {
            Transport::Tcp { .. } => entry.with_sgl(SglDescriptor::transport(1 << 20)),
            Transport::Pcie { .. } => entry.with_prps(0x10000, 0x20000),
        }
    }

    pub(super) fn admin(&mut self, entry: SubmissionQueueEntry) -> AdminReply {
        self.controller.admin(0, &entry, &[])
    }

    /// What a command that is answered at once gives.
    pub(super) fn data(&mut self, entry: SubmissionQueueEntry) -> Result<Vec<u8>, Status> {
        done(self.admin(entry)).map(|(_, data)| data)
    }

    pub(super) fn result(&mut self, entry: SubmissionQueueEntry) -> Result<u64, Status> {
        done(self.admin(entry)).map(|(result, _)| result)
    }

    pub(super) fn identify(&mut self, cns: u8, nsid: u32, csi: u8) -> Result<Vec<u8>, Status> {
        let entry = self.command(admin::IDENTIFY, nsid);
        let entry = entry
            .with_cdw(10, u32::from(cns) | 0xffff << 16)
            .with_cdw(11, u32::from(csi) << 24);
        let data = self.data(entry)?;
        assert_eq!(data.len(), identify::BYTES);
        Ok(data)
    }

    pub(super) fn log(&mut self, lid: u8, bytes: u64, csi: u8) -> Result<Vec<u8>, Status> {
        let asked = log_page::GetLogPage {
            lid,
            retain_event: false,
            bytes,
            offset: 0,
            csi,
        };
        self.cid += 1;
        let entry = asked.entry(self.cid, NSID_ALL);
        let entry = match self.controller.config().transport {
            Transport::Tcp { .. } => entry.with_sgl(SglDescriptor::transport(1 << 20)),
            Transport::Pcie { .. } => entry.with_prps(0x10000, 0x20000),
        };
        self.data(entry)
    }

    pub(super) fn set_feature(&mut self, fid: u8, value: u32) -> Result<u64, Status> {
        let entry = self.command(admin::SET_FEATURES, 0);
        let entry = entry.with_cdw(10, u32::from(fid)).with_cdw(11, value);
        self.result(entry)
    }

    pub(super) fn get_feature(&mut self, fid: u8) -> Result<u64, Status> {
        let entry = self.command(admin::GET_FEATURES, 0);
        self.result(entry.with_cdw(10, u32::from(fid)))
    }

    /// Asks to be told of changed namespaces; the identifier of the request.
    pub(super) fn listen(&mut self) -> u16 {
        let fid = feature::fid::ASYNC_EVENT_CONFIGURATION;
        self.set_feature(fid, EVENT_NAMESPACES).unwrap();
        let entry = self.command(admin::ASYNC_EVENT_REQUEST, 0);
        assert_eq!(self.admin(entry), AdminReply::Held);
        entry.cid()
    }
}

pub(super) fn done(reply: AdminReply) -> Result<(u64, Vec<u8>), Status> {
    match reply {
        AdminReply::Complete {
            result,
            status,
            data,
            ..
        } if status.is_success() => Ok((result, data)),
        AdminReply::Complete { status, data, .. } => {
            assert!(data.is_empty());
            Err(status.code())
        }
        other => panic!("{other:?}"),
    }
}

pub fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}
