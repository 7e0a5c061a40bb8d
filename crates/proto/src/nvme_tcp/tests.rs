//! PDUs as they stand on the wire, and what is made of them. What is refused is in `tests/corpus.rs`, seed by seed.

use std::{fs, path::Path};

use proptest::prelude::*;

use super::digest::digest;
use super::fault::{Fault, TermReq};
use super::pdu::offset;
use super::*;

/// A PDU made without this code, from the specification's tables.
fn golden(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nvme_tcp/golden");
    let text = fs::read_to_string(folder.join(name).with_extension("hex")).expect(name);
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| (byte as char).to_digit(16).expect("hex") as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

const BOTH: Digests = Digests {
    header: true,
    data: true,
};
const NONE: Digests = Digests {
    header: false,
    data: false,
};

fn agreed(digests: Digests, hpda: u8, cpda: u8) -> Agreed {
    let request = ICReq {
        hpda,
        digests,
        r2ts_max: 1,
    };
    let response = ICResp {
        cpda,
        digests,
        h2c_data_bytes_max: 1 << 20,
    };
    Agreed::new(&request, &response).unwrap()
}

fn controller(agreed: &Agreed) -> Inbound {
    let mut inbound = Inbound::controller(8192);
    inbound.initialized(agreed);
    inbound
}

fn host(agreed: &Agreed) -> Inbound {
    let mut inbound = Inbound::host();
    inbound.initialized(agreed);
    inbound
}

/// The PDU of a whole buffer, of which no less would do for its head.
fn whole(inbound: &Inbound, bytes: &[u8]) -> Pdu {
    let Ok(Progress::Pdu(pdu)) = inbound.pdu(bytes) else {
        panic!("{:?}", inbound.pdu(bytes));
    };
    let all = pdu.head_bytes + pdu.data_bytes + pdu.trailer_bytes;
    assert_eq!(all, bytes.len());
    for length in 0..pdu.head_bytes {
        let Ok(Progress::Need(need)) = inbound.pdu(&bytes[..length]) else {
            panic!("{length} bytes are too few");
        };
        assert!(length < need && need <= pdu.head_bytes);
    }
    let (data, trailer) = bytes[pdu.head_bytes..].split_at(pdu.data_bytes);
    if pdu.trailer_bytes > 0 {
        assert_eq!(trailer, digest(data));
    }
    pdu
}

#[test]
fn connections_are_initialized() {
    let linux = ICReq {
        hpda: 0,
        digests: NONE,
        r2ts_max: 1,
    };
    assert_eq!(linux.encode().to_vec(), golden("icreq_linux"));
    let inbound = Inbound::controller(8192);
    let event = whole(&inbound, &golden("icreq_linux")).event;
    assert_eq!(event, Event::ICReq(linux));
    let digests = ICReq {
        hpda: 31,
        digests: BOTH,
        r2ts_max: 4,
    };
    assert_eq!(digests.encode().to_vec(), golden("icreq_digests"));
    let event = whole(&inbound, &golden("icreq_digests")).event;
    assert_eq!(event, Event::ICReq(digests));
    let response = ICResp {
        cpda: 0,
        digests: BOTH,
        h2c_data_bytes_max: 1 << 20,
    };
    assert_eq!(response.encode().to_vec(), golden("icresp"));
    let event = whole(&Inbound::host(), &golden("icresp")).event;
    assert_eq!(event, Event::ICResp(response));
    let agreed = Agreed::new(&digests, &response).unwrap();
    assert_eq!(
        (agreed.c2h.alignment_bytes, agreed.h2c.alignment_bytes),
        (128, 4)
    );
    let unasked = Agreed::new(&linux, &response);
    assert_eq!(unasked, Err(Fault::field(offset::DGST)));
}

#[test]
fn capsules_are_as_on_the_wire() {
    for (name, digests) in [
        ("connect", NONE),
        ("connect_digests", BOTH),
        (
            "keep_alive_header_digest",
            Digests {
                header: true,
                data: false,
            },
        ),
    ] {
        let agreed = agreed(digests, 0, 0);
        let bytes = golden(name);
        let pdu = whole(&controller(&agreed), &bytes);
        let Event::CapsuleCmd(sqe) = pdu.event else {
            panic!("{name}");
        };
        let mut again = Vec::new();
        capsule_cmd(&agreed.h2c, &sqe, pdu.data_bytes as u32, &mut again);
        assert_eq!(again, bytes[..pdu.head_bytes], "{name}");
    }
    for (name, header) in [
        ("capsule_resp", false),
        ("capsule_resp_header_digest", true),
    ] {
        let agreed = agreed(
            Digests {
                header,
                data: false,
            },
            0,
            0,
        );
        let bytes = golden(name);
        let Event::CapsuleResp(cqe) = whole(&host(&agreed), &bytes).event else {
            panic!("{name}");
        };
        let mut again = Vec::new();
        capsule_resp(&agreed.c2h, &cqe, &mut again);
        assert_eq!(again, bytes, "{name}");
    }
}

#[test]
fn data_and_requests_for_it_are_as_on_the_wire() {
    for (name, agreed) in [
        ("h2c_data", agreed(NONE, 0, 0)),
        ("h2c_data_digests_cpda_15", agreed(BOTH, 0, 15)),
        ("c2h_data_success", agreed(NONE, 0, 0)),
        ("c2h_data_digests_hpda_31", agreed(BOTH, 31, 0)),
    ] {
        let bytes = golden(name);
        let (kind, inbound, framing) = match name.starts_with("h2c") {
            true => (PduType::H2CData, controller(&agreed), agreed.h2c),
            false => (PduType::C2HData, host(&agreed), agreed.c2h),
        };
        let pdu = whole(&inbound, &bytes);
        let Event::Data(data) = pdu.event else {
            panic!("{name}");
        };
        assert_eq!(data.cccid, 3, "{name}");
        assert_eq!(data.success, name == "c2h_data_success");
        let mut again = Vec::new();
        data.encode(kind, &framing, &mut again);
        assert_eq!(again, bytes[..pdu.head_bytes], "{name}");
    }
    for (name, header) in [("r2t", false), ("r2t_header_digest", true)] {
        let agreed = agreed(
            Digests {
                header,
                data: false,
            },
            0,
            0,
        );
        let Event::R2T(r2t) = whole(&host(&agreed), &golden(name)).event else {
            panic!("{name}");
        };
        let mut again = Vec::new();
        r2t.encode(&agreed.c2h, &mut again);
        assert_eq!(again, golden(name));
        assert_eq!((r2t.cccid, r2t.ttag), (3, 0x81));
    }
}

#[test]
fn reasons_for_an_end_are_as_on_the_wire() {
    let plain = agreed(BOTH, 0, 0);
    let event = whole(&controller(&plain), &golden("h2c_term_sequence")).event;
    let said = TermReq {
        status: 2,
        information: 0,
    };
    assert_eq!(event, Event::Terminate(said));
    // Also before the connection is initialized.
    let event = whole(&Inbound::controller(0), &golden("h2c_term_sequence")).event;
    assert_eq!(event, Event::Terminate(said));
    let bytes = golden("c2h_term_plen");
    let said = TermReq {
        status: 1,
        information: 4,
    };
    assert_eq!(whole(&host(&plain), &bytes).event, Event::Terminate(said));
    assert_eq!(said.to_string(), "Invalid PDU Header Field at byte 4");
    let mut again = Vec::new();
    Fault::field(offset::PLEN).encode(PduType::C2HTermReq, &bytes[24..], &mut again);
    assert_eq!(again, bytes);
    again.clear();
    Fault::field(offset::PLEN).encode(PduType::C2HTermReq, &[7; 500], &mut again);
    assert_eq!(again.len(), 152);
}

proptest! {
    /// Whatever is agreed: what one end writes, the other reads, byte for byte.
    #[test]
    fn what_is_written_is_read(
        header: bool, data_digest: bool, pda in 0u8..32, cccid: u16, ttag: u16,
        from in 0u32..1 << 30, payload in proptest::collection::vec(any::<u8>(), 1..5000), last: bool,
    ) {
        let digests = Digests { header, data: data_digest };
        let agreed = agreed(digests, pda, pda);
        for (kind, inbound, framing) in [
            (PduType::H2CData, controller(&agreed), agreed.h2c),
            (PduType::C2HData, host(&agreed), agreed.c2h),
        ] {
            let data = Data {
                cccid,
                ttag: if kind == PduType::H2CData { ttag } else { 0 },
                offset: from,
                bytes: payload.len() as u32,
                last,
                success: last && kind == PduType::C2HData,
            };
            let mut bytes = Vec::new();
            data.encode(kind, &framing, &mut bytes);
            prop_assert!(bytes.len().is_multiple_of(framing.alignment_bytes));
            bytes.extend_from_slice(&payload);
            if data_digest {
                bytes.extend_from_slice(&digest(&payload));
            }
            let pdu = whole(&inbound, &bytes);
            prop_assert_eq!(pdu.event, Event::Data(data));
            prop_assert_eq!(&bytes[pdu.head_bytes..][..pdu.data_bytes], &payload[..]);
        }
    }

    /// Of a transfer cut at any places all is taken, and nothing else at any point.
    #[test]
    fn a_transfer_is_taken_in_order_alone(cuts in proptest::collection::vec(1u32..500, 1..9), wrong: u32) {
        let bytes = cuts.iter().sum();
        let r2t = R2T { cccid: 9, ttag: 0x101, offset: 77, bytes };
        prop_assert_eq!(r2t.check(77, 77 + bytes), Ok(()));
        prop_assert!(r2t.check(77, 76 + bytes).is_err() && r2t.check(78, u32::MAX).is_err());
        let mut transfer = Transfer::asked(&r2t);
        let mut next = 77;
        for cut in cuts {
            let last = next + cut == 77 + bytes;
            let data = Data { cccid: 9, ttag: 0x101, offset: next, bytes: cut, last, success: false };
            let mut other = data;
            other.offset = wrong;
            if wrong != next {
                prop_assert!(transfer.accept(&other).is_err());
            }
            other = Data { last: !last, ..data };
            prop_assert!(transfer.accept(&other).is_err());
            prop_assert_eq!(transfer.accept(&data), Ok(last));
            next += cut;
        }
        prop_assert_eq!(transfer.left(), 0);
    }
}
