//! A plain host: one queue, one PDU after the other.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forebay_proto::nvme::fabrics::Connect;
use forebay_proto::nvme::kv::{Key, KeyAt, KvCommand, StoreOptions};
use forebay_proto::nvme::{CompletionQueueEntry, SglDescriptor, Status, SubmissionQueueEntry};
use forebay_proto::nvme_tcp::digest::digest;
use forebay_proto::nvme_tcp::{
    Agreed, Data, Digests, Event, Framing, ICReq, Inbound, PduType, Progress, R2T, TermReq,
    capsule_cmd,
};

use crate::world::{IN_CAPSULE_BYTES, KV, NQN};

/// How a host connects.
#[derive(Clone, Copy)]
pub struct Options {
    pub digests: Digests,
    pub hpda: u8,
    pub flow_control: bool,
    pub kato_ms: u32,
    pub entries: u32,
    pub nqn: &'static str,
    pub subnqn: &'static str,
}

pub const PLAIN: Options = Options {
    digests: Digests {
        header: false,
        data: false,
    },
    hpda: 0,
    flow_control: true,
    kato_ms: 0,
    entries: 32,
    nqn: "nqn.2026-01.org.example:host",
    subnqn: NQN,
};

/// Another host.
pub const OTHER: Options = Options {
    nqn: "nqn.2026-01.org.example:other",
    ..PLAIN
};

pub const DIGESTS: Options = Options {
    digests: Digests {
        header: true,
        data: true,
    },
    hpda: 7,
    flow_control: false,
    ..PLAIN
};

/// One queue of a host.
pub struct Host {
    pub stream: TcpStream,
    pub agreed: Agreed,
    pub cntlid: u16,
    pub options: Options,
    /// How much a capsule may carry.
    capsule_bytes: usize,
    inbound: Inbound,
    received: Vec<u8>,
    scratch: Vec<u8>,
    cid: u16,
    /// Commands completed by data alone.
    pub implied: usize,
}

/// What a controller sends.
#[derive(Debug)]
pub enum Got {
    Completion(CompletionQueueEntry),
    Data(Data, Vec<u8>),
    R2T(R2T),
    Terminated(TermReq),
    Closed,
}

impl Host {
    pub fn initialize(mut stream: TcpStream, options: Options) -> Host {
        let request = ICReq {
            hpda: options.hpda,
            digests: options.digests,
            r2ts_max: 1,
        };
        stream.write_all(&request.encode()).unwrap();
        let mut response = [0; 128];
        stream.read_exact(&mut response).unwrap();
        let mut inbound = Inbound::host();
        let Ok(Progress::Pdu(pdu)) = inbound.pdu(&response) else {
            panic!("{response:?}");
        };
        let Event::ICResp(response) = pdu.event else {
            panic!("{pdu:?}");
        };
        assert_eq!((response.cpda, response.h2c_data_bytes_max), (0, 1 << 20));
        let agreed = Agreed::new(&request, &response).unwrap();
        inbound.initialized(&agreed);
        Host {
            stream,
            agreed,
            cntlid: 0,
            options,
            capsule_bytes: 8 << 10,
            inbound,
            received: Vec::new(),
            scratch: vec![0; 256 << 10],
            cid: 0,
            implied: 0,
        }
    }

    pub fn connect_command(&self, qid: u16, cntlid: u16) -> (SubmissionQueueEntry, [u8; 1024]) {
        let connect = Connect {
            qid,
            entries: self.options.entries,
            no_sq_flow_control: !self.options.flow_control,
            kato_ms: self.options.kato_ms,
            host_id: [7; 16],
            cntlid,
            subnqn: self.options.subnqn.to_owned(),
            hostnqn: self.options.nqn.to_owned(),
        };
        let entry = connect.entry(0);
        let entry = entry.with_sgl(SglDescriptor::in_capsule(1024));
        (entry, connect.data())
    }

    /// Connects the queue; gives the controller's number.
    pub fn join(&mut self, qid: u16, cntlid: u16) -> Result<u16, Status> {
        let (entry, data) = self.connect_command(qid, cntlid);
        self.capsule(&entry, &data);
        let completion = self.completion();
        if !completion.status.is_success() {
            return Err(completion.status.code());
        }
        let granted = if self.options.flow_control { 1 } else { 0xffff };
        assert_eq!(completion.sq_head, granted);
        if qid > 0 {
            self.capsule_bytes = IN_CAPSULE_BYTES;
        }
        Ok(completion.result as u16)
    }

    pub fn framing(&self) -> &Framing {
        &self.agreed.h2c
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// A capsule with this data in it.
    pub fn capsule_bytes(&self, entry: &SubmissionQueueEntry, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        capsule_cmd(
            self.framing(),
            entry.as_bytes(),
            data.len() as u32,
            &mut out,
        );
        self.put_data(&mut out, data);
        out
    }

    pub fn capsule(&mut self, entry: &SubmissionQueueEntry, data: &[u8]) {
        let bytes = self.capsule_bytes(entry, data);
        self.send(&bytes);
    }

    fn put_data(&self, out: &mut Vec<u8>, data: &[u8]) {
        out.extend_from_slice(data);
        if self.framing().data_digest && !data.is_empty() {
            out.extend_from_slice(&digest(data));
        }
    }

    /// One H2CData PDU for `r2t`.
    pub fn h2c_bytes(&self, r2t: &R2T, from: u32, data: &[u8], last: bool) -> Vec<u8> {
        let header = Data {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            offset: from,
            bytes: data.len() as u32,
            last,
            success: false,
        };
        let mut out = Vec::new();
        header.encode(PduType::H2CData, self.framing(), &mut out);
        self.put_data(&mut out, data);
        out
    }

    /// All that `r2t` asks for of `data`, cut at `piece` bytes.
    pub fn answer(&mut self, r2t: &R2T, data: &[u8], piece: usize) {
        let (from, bytes) = (r2t.offset as usize, r2t.bytes as usize);
        let mut at = from;
        for part in data[from..from + bytes].chunks(piece) {
            let last = at + part.len() == from + bytes;
            let pdu = self.h2c_bytes(r2t, at as u32, part, last);
            self.send(&pdu);
            at += part.len();
        }
    }

    /// Whether the controller sends something within this time.
    pub fn has_more(&mut self, patience: Duration) -> bool {
        if !self.received.is_empty() {
            return true;
        }
        let usual = self.stream.read_timeout().unwrap();
        self.stream.set_read_timeout(Some(patience)).unwrap();
        let more = self.stream.peek(&mut [0]).is_ok();
        self.stream.set_read_timeout(usual).unwrap();
        more
    }

    /// The next PDU.
    pub fn get(&mut self) -> Got {
        loop {
            match self.inbound.pdu(&self.received).expect("a sound PDU") {
                Progress::Pdu(pdu) => {
                    let data_end = pdu.head_bytes + pdu.data_bytes;
                    let end = data_end + pdu.trailer_bytes;
                    if self.received.len() >= end {
                        let rest = self.received.split_off(end);
                        let pdu_bytes = std::mem::replace(&mut self.received, rest);
                        let data = pdu_bytes[pdu.head_bytes..data_end].to_vec();
                        if pdu.trailer_bytes > 0 {
                            assert_eq!(pdu_bytes[data_end..], digest(&data));
                        }
                        return match pdu.event {
                            Event::CapsuleResp(entry) => {
                                let (entry, phase) = CompletionQueueEntry::decode(&entry);
                                assert!(!phase);
                                Got::Completion(entry)
                            }
                            Event::Data(header) => Got::Data(header, data),
                            Event::R2T(r2t) => Got::R2T(r2t),
                            Event::Terminate(request) => Got::Terminated(request),
                            other => panic!("{other:?}"),
                        };
                    }
                }
                Progress::Need(_) => {}
            }
            let more = &mut self.scratch;
            match self.stream.read(more) {
                Ok(0) => return Got::Closed,
                Ok(bytes) => self.received.extend_from_slice(&more[..bytes]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Got::Closed,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn completion(&mut self) -> CompletionQueueEntry {
        match self.get() {
            Got::Completion(entry) => entry,
            other => panic!("{other:?} for a completion"),
        }
    }

    pub fn r2t(&mut self) -> R2T {
        match self.get() {
            Got::R2T(r2t) => r2t,
            other => panic!("{other:?} for an R2T"),
        }
    }

    /// Waits for the end; gives the reason, if one was said.
    pub fn end(&mut self) -> Option<TermReq> {
        let mut said = None;
        loop {
            match self.get() {
                Got::Terminated(request) => said = Some(request),
                Got::Closed => return said,
                _ => {}
            }
        }
    }

    /// The entry with an identifier of its own.
    pub fn numbered(&mut self, entry: SubmissionQueueEntry) -> SubmissionQueueEntry {
        self.cid = self.cid.wrapping_add(1);
        let mut bytes = *entry.as_bytes();
        bytes[2..4].copy_from_slice(&self.cid.to_le_bytes());
        SubmissionQueueEntry::from_bytes(&bytes)
    }

    /// Runs a command to its end: data goes out in its capsule or when asked for, and up to `room` bytes come back.
    pub fn run(
        &mut self,
        entry: SubmissionQueueEntry,
        data: &[u8],
        room: usize,
    ) -> (CompletionQueueEntry, Vec<u8>) {
        let entry = self.numbered(entry);
        if !data.is_empty() && data.len() <= self.capsule_bytes {
            let sgl = SglDescriptor::in_capsule(data.len() as u32);
            self.capsule(&entry.with_sgl(sgl), data);
        } else {
            let sgl = SglDescriptor::transport(data.len().max(room) as u32);
            self.capsule(&entry.with_sgl(sgl), &[]);
        }
        let mut back = Vec::new();
        let mut last = false;
        loop {
            match self.get() {
                Got::Completion(completion) => {
                    assert_eq!(completion.cid, entry.cid());
                    if completion.status.is_success() {
                        assert_eq!(last, !back.is_empty(), "the last data is marked");
                    }
                    return (completion, back);
                }
                Got::Data(header, bytes) => {
                    assert!(!last);
                    assert_eq!(
                        (header.cccid, header.offset),
                        (entry.cid(), back.len() as u32)
                    );
                    back.extend_from_slice(&bytes);
                    assert!(back.len() <= room);
                    last = header.last;
                    if header.success {
                        assert!(!self.options.flow_control);
                        self.implied += 1;
                        let completion = CompletionQueueEntry {
                            cid: entry.cid(),
                            ..CompletionQueueEntry::default()
                        };
                        return (completion, back);
                    }
                }
                Got::R2T(r2t) => {
                    assert_eq!(r2t.cccid, entry.cid());
                    self.answer(&r2t, data, 1 << 20);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A command without data, which must succeed.
    pub fn ok(&mut self, entry: SubmissionQueueEntry) -> u64 {
        let (completion, _) = self.run(entry, &[], 0);
        assert!(completion.status.is_success(), "{}", completion.status);
        completion.result
    }

    pub fn store(&mut self, name: &str, value: &[u8]) -> Status {
        self.run(store(name, value.len()), value, 0).0.status.code()
    }

    /// The true length, and what fits into `room`.
    pub fn retrieve(&mut self, name: &str, room: usize) -> Result<(u64, Vec<u8>), Status> {
        let command = KvCommand::Retrieve {
            key: key(name),
            buffer_bytes: room as u32,
        };
        let (completion, value) = self.run(command.entry(0, KV), &[], room);
        match completion.status.is_success() {
            true => Ok((completion.result, value)),
            false => Err(completion.status.code()),
        }
    }
}

pub fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).unwrap()
}

pub fn store(name: &str, value_bytes: usize) -> SubmissionQueueEntry {
    let command = KvCommand::Store {
        key: KeyAt::Inline(key(name)),
        value_bytes: value_bytes as u32,
        options: StoreOptions::default(),
    };
    command.entry(0, KV)
}

/// Bytes that differ from place to place.
pub fn bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}
