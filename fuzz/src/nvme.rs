//! Parsers of the NVMe doors.

use forebay_proto::nvme::psk::{Identity, TlsKey, offered};
use forebay_proto::nvme_tcp::{
    Agreed, Digests, Event, Fault, HEAD_BYTES_MAX, ICReq, ICResp, Inbound, PduType, Progress, R2T,
    Transfer,
};

const CAPSULE_DATA_BYTES: usize = 16 << 10;
const H2C_DATA_BYTES: u32 = 1 << 20;
/// What the controller of the fuzzed stream asked for.
const ASKED: R2T = R2T {
    cccid: 1,
    ttag: 0x81,
    offset: 0,
    bytes: 5000,
};

/// A stream of PDUs over TCP, as a controller sees it, or, when the first byte is odd, as a host does.
pub fn nvme_tcp(data: &[u8]) {
    let _ = nvme_tcp_ends(data);
}

/// As [`nvme_tcp`]; says for which fault the connection is ended, if any.
pub fn nvme_tcp_ends(data: &[u8]) -> Option<Fault> {
    let (first, mut stream) = data.split_first()?;
    let host = first % 2 == 1;
    let (mut inbound, mut transfer) = match host {
        true => (Inbound::host(), Transfer::answer(1, ASKED.bytes)),
        false => (
            Inbound::controller(CAPSULE_DATA_BYTES),
            Transfer::asked(&ASKED),
        ),
    };
    loop {
        let pdu = match inbound.pdu(stream) {
            Ok(Progress::Pdu(pdu)) => pdu,
            Ok(Progress::Need(bytes)) => {
                assert!(bytes > stream.len() && bytes <= HEAD_BYTES_MAX);
                return None;
            }
            Err(fault) => {
                let mut told = Vec::new();
                let offending = inbound.offending(stream);
                fault.encode(PduType::C2HTermReq, offending, &mut told);
                assert!((24..=152).contains(&told.len()));
                return Some(fault);
            }
        };
        assert!(pdu.head_bytes <= HEAD_BYTES_MAX && pdu.head_bytes <= stream.len());
        match pdu.event {
            Event::ICReq(request) => {
                let response = ICResp {
                    cpda: 0,
                    digests: request.digests,
                    h2c_data_bytes_max: H2C_DATA_BYTES,
                };
                let agreed = Agreed::new(&request, &response).expect("what was asked for");
                inbound.initialized(&agreed);
            }
            Event::ICResp(response) => {
                let request = ICReq {
                    hpda: 0,
                    digests: Digests {
                        header: true,
                        data: true,
                    },
                    r2ts_max: 1,
                };
                match Agreed::new(&request, &response) {
                    Ok(agreed) => inbound.initialized(&agreed),
                    Err(fault) => return Some(fault),
                }
            }
            Event::Data(data) => {
                assert_eq!(data.bytes as usize, pdu.data_bytes);
                let before = transfer.next();
                match transfer.accept(&data) {
                    Ok(_) => assert_eq!(transfer.next(), before + data.bytes),
                    Err(fault) => return Some(fault),
                }
                assert!(transfer.next() <= ASKED.bytes);
            }
            Event::R2T(r2t) => {
                if let Err(fault) = r2t.check(0, ASKED.bytes) {
                    return Some(fault);
                }
            }
            Event::Terminate(said) => {
                let _ = said.to_string();
                return None;
            }
            Event::CapsuleCmd(_) => assert!(pdu.data_bytes <= CAPSULE_DATA_BYTES),
            Event::CapsuleResp(_) => assert_eq!(pdu.data_bytes, 0),
        }
        stream = stream.get(pdu.head_bytes + pdu.data_bytes + pdu.trailer_bytes..)?;
    }
}

/// What a host says before it has proved anything: a ClientHello without its header, an identity in it; and configured keys.
pub fn nvme_psk(data: &[u8]) {
    let mut bytes = 0;
    for identity in offered(data) {
        bytes += identity.len();
        named(identity);
    }
    assert!(bytes <= data.len());
    named(data);
    if let Some(key) = std::str::from_utf8(data).ok().and_then(TlsKey::parse) {
        assert!(TlsKey::parse(&key.interchange()) == Some(key));
    }
}

fn named(identity: &[u8]) {
    if let Some(identity) = Identity::parse(identity) {
        assert!(!identity.host.is_empty() && !identity.subsystem.is_empty());
        assert!(!identity.host.contains(' ') && !identity.subsystem.contains(' '));
    }
}
