//! The grammar's own cases of s3-rdma.md section 8, by their ids: valid (V), malformed (M), truncated (T), oversized (O).

use proptest::prelude::*;

use super::dc::Descriptor;
use super::hip::{HipToken, HipTransport};
use super::hipobj::{Prepare, Ready};
use super::ort1::{
    Covered, DcEndpoint, Direction, Endpoint, Flags, Limits, MemoryKind, OpenToken, Promise,
    Sealed, Segment, Segments, Slot, Transport, session_key,
};
use super::rcshim::RcShim;
use super::{Class, Token, TokenError, carrier, detect, parse_hex16, read};
use crate::hex;
use crate::s3::sigv4::SigningKey;

const DC81: &str =
    "00007f1234567890:00100000:aabbccdd:0000:000042:1:00000000000000000000ffff0a0a30d0";
const HIP88: &str =
    "012a00000000000000000000000000ffff0a0a30d0efbeadde00100000007f00000010000000000000010000";
const VECTOR: &str = "ort1.AQECAAABAgMEBQYHCAkKCwwNDg8AAAAAAAAAAWqxO4AAABOIAAB_EjRWeJAAAAAAABAAAKq7zN0.6eBBlZ-76dn0Z23oiUbItg";
const REQUEST: Covered<'static> = Covered {
    method: "GET",
    path: "/bucket/key",
    query: "",
    range: "bytes=0-1048575",
};

fn vector() -> OpenToken {
    OpenToken {
        transport: Transport::Rc,
        direction: Direction::Write,
        flags: Flags::default(),
        session: std::array::from_fn(|at| at as u8),
        sequence: 1,
        expiry_s: 1_790_000_000,
        lease_ms: 5000,
        address: 0x7f12_3456_7890,
        length: 0x10_0000,
        remote_key: 0xaabb_ccdd,
        dc: None,
        segments: Segments::default(),
        promise: None,
        memory: None,
        rail: None,
        slot: None,
    }
}

fn vector_key() -> [u8; 32] {
    let signing =
        hex::decode32(b"d1a8da4502de7c36a6584f61b8021cacc5154904329403c62f2f64b519ee4606").unwrap();
    session_key(
        &SigningKey::from_bytes(&signing),
        &std::array::from_fn(|at| at as u8),
        &std::array::from_fn(|at| 0xc0 + at as u8),
        &std::array::from_fn(|at| 0xd0 + at as u8),
    )
}

#[track_caller]
fn malformed(value: impl AsRef<[u8]>) {
    let value = value.as_ref();
    assert!(
        matches!(read(value), Err(TokenError::Malformed(_))),
        "{}: {:?}",
        String::from_utf8_lossy(value),
        read(value)
    );
}

/// Refused one way or the other: malformed, or declined as unknown.
#[track_caller]
fn refused(value: impl AsRef<[u8]>) {
    let value = value.as_ref();
    assert!(
        matches!(read(value), Err(_) | Ok(Token::Unknown)),
        "{}: {:?}",
        String::from_utf8_lossy(value),
        read(value)
    );
}

fn sealed(payload: &[u8]) -> String {
    let encode = |bytes: &[u8]| base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes);
    format!("ort1.{}.{}", encode(payload), encode(&[7; 16]))
}

#[test]
fn v11_the_published_vector_verifies() {
    let key = vector_key();
    assert_eq!(
        hex::encode(&key),
        "3cf3bbcf4804abbe466a9d07bd12461a60ea1fffa37afe3fe587d351a75fa24d"
    );
    assert_eq!(vector().seal(&key, &REQUEST).unwrap(), VECTOR);
    let Ok(Token::Ort1(token)) = read(VECTOR.as_bytes()) else {
        panic!("{:?}", read(VECTOR.as_bytes()));
    };
    assert_eq!(token.verify(&key, &REQUEST), Some(&vector()));
    assert_eq!(token.session(), &vector().session);
}

#[test]
fn r3_a_tag_covers_method_key_query_range_and_payload() {
    let key = vector_key();
    let token = Sealed::parse(VECTOR).unwrap();
    for moved in [
        Covered {
            method: "PUT",
            ..REQUEST
        },
        Covered {
            path: "/bucket/kez",
            ..REQUEST
        },
        Covered {
            query: "partNumber=1",
            ..REQUEST
        },
        Covered {
            range: "",
            ..REQUEST
        },
        Covered {
            range: "bytes=0-1048576",
            ..REQUEST
        },
    ] {
        assert_eq!(token.verify(&key, &moved), None, "{moved:?}");
    }
    let same = Covered {
        path: "/bucket/%6bey",
        range: " bytes=0-1048575 ",
        ..REQUEST
    };
    assert!(token.verify(&key, &same).is_some(), "spelling is no change");
    assert_eq!(token.verify(&[0; 32], &REQUEST), None);
    let other = OpenToken {
        sequence: 2,
        ..vector()
    }
    .seal(&key, &REQUEST)
    .unwrap();
    let (head, _) = other.rsplit_once('.').unwrap();
    let (_, tag) = VECTOR.rsplit_once('.').unwrap();
    let forged = Sealed::parse(&format!("{head}.{tag}")).unwrap();
    assert_eq!(forged.verify(&key, &REQUEST), None);
}

#[test]
fn v1_v4_v5_v6_descriptors_with_and_without_suffix() {
    let plain = Descriptor {
        address: 0x7f12_3456_7890,
        size: 0x10_0000,
        rkey: 0xaabb_ccdd,
        lid: 0,
        dctn: 0x42,
        gid: parse_hex16("00000000000000000000ffff0a0a30d0"),
    };
    let dc = |value: &str| match read(value.as_bytes()) {
        Ok(Token::Dc(descriptor)) => descriptor,
        other => panic!("{value}: {other:?}"),
    };
    assert_eq!(dc(DC81), plain);
    assert_eq!(plain.to_string(), DC81);
    assert_eq!(dc(&format!(" {DC81};\t")), plain);
    assert_eq!(
        dc(&format!("{DC81}:00007f1234567890:0000000000100000;")),
        plain
    );
    let narrowed = dc(&format!("{DC81}:00007f1234567990:0000000000000010"));
    assert_eq!((narrowed.address, narrowed.size), (0x7f12_3456_7990, 16));
    assert_eq!(dc(&DC81.to_ascii_uppercase()), plain);
    refused(format!("{DC81};;"));
}

#[test]
fn v8_v9_binary_tokens() {
    let token = HipToken {
        transport: HipTransport::Rc,
        qpn: 42,
        gid: parse_hex16("00000000000000000000ffff0a0a30d0").unwrap(),
        rkey: 0xdead_beef,
        address: 0x7f00_0000_1000,
        length: 4096,
        port: 1,
        lid: 0,
    };
    assert_eq!(read(HIP88.as_bytes()), Ok(Token::Hip(token)));
    assert_eq!(
        read(HIP88.to_ascii_uppercase().as_bytes()),
        Ok(Token::Hip(token))
    );
    assert_eq!(token.to_string(), HIP88);
    let suffixed = format!("{HIP88}:7f0000001800:10");
    let narrowed = HipToken {
        address: 0x7f00_0000_1800,
        length: 16,
        ..token
    };
    assert_eq!(read(suffixed.as_bytes()), Ok(Token::Hip(narrowed)));
    let zero = HipToken::identity(&"0".repeat(88)).unwrap();
    assert_eq!((zero.transport, zero.gid), (HipTransport::Dc, [0; 16]));
    malformed("0".repeat(88));
}

#[test]
fn v10_tokens_of_the_shim() {
    let token = RcShim {
        connection: [0xab; 16],
        address: 0x7f00,
        size: 16,
        rkey: 9,
    };
    assert_eq!(read(token.to_string().as_bytes()), Ok(Token::RcShim(token)));
    let connection = "ab".repeat(16);
    for wrong in [
        format!("rc:{}:1:1:1", &connection[1..]),
        format!("rc:{connection}:1:0:1"),
        format!("rc:{connection}:ffffffffffffffff:1:1"),
        format!("rc:{connection}:1:1:100000000"),
        format!("rc:{connection}::1:1"),
        format!("rc:{connection}:0x1:1:1"),
    ] {
        malformed(wrong);
    }
    assert_eq!(
        read(format!("rc:{connection}:1:1").as_bytes()),
        Ok(Token::Unknown)
    );
}

#[test]
fn m1_a_digit_that_is_none_in_each_field() {
    for at in [3, 18, 30, 37, 42, 47, 60] {
        let mut value = DC81.to_owned();
        value.replace_range(at..=at, "g");
        malformed(&value);
    }
}

#[test]
fn m2_m3_other_lengths_and_numbers_of_fields() {
    for value in [&DC81[1..], &DC81[..80]] {
        assert_eq!(detect(value.as_bytes()), Ok(Class::Lab), "{value}");
    }
    assert_eq!(detect(format!("0{DC81}").as_bytes()), Ok(Class::Lab));
    for value in [
        DC81.rsplit_once(':').unwrap().0.to_owned(),
        format!("{DC81}:00007f1234567890"),
    ] {
        assert_eq!(read(value.as_bytes()), Ok(Token::Unknown), "{value}");
    }
}

#[test]
fn m4_to_m8_values_that_cannot_be() {
    for (from, to) in [
        (":00100000:", ":00000000:"),
        ("00007f1234567890", "fffffffffffffff0"),
        (":1:", ":2:"),
        (":1:", ":0:"),
        (
            "00000000000000000000ffff0a0a30d0",
            "00000000000000000000000000000000",
        ),
        (":000042:", ":000000:"),
    ] {
        malformed(DC81.replacen(from, to, 1));
    }
    let by_lid = DC81
        .replacen(":0000:", ":0007:", 1)
        .replacen(":1:", ":0:", 1);
    assert!(matches!(
        read(by_lid.as_bytes()),
        Ok(Token::Dc(Descriptor { gid: None, .. }))
    ));
}

#[test]
fn m9_m10_binary_tokens_that_are_none() {
    malformed(HIP88.replacen("01", "02", 1));
    assert_eq!(
        read(format!("{HIP88}:7f0000001000").as_bytes()),
        Ok(Token::Unknown)
    );
    malformed(format!("{HIP88}:7f0000000fff:10"));
    malformed(format!("{HIP88}:7f0000001ff1:10"));
    malformed(format!("{HIP88}:7f0000001000:"));
}

#[test]
fn m11_a_suffix_outside_its_window() {
    for suffix in [
        "00007f123456788f:0000000000000001",
        "00007f1234667890:0000000000000001",
        "00007f1234567890:0000000000100001",
        "00007f1234567890:0000000000000000",
        "ffffffffffffffff:0000000000000001",
    ] {
        malformed(format!("{DC81}:{suffix}"));
    }
}

#[test]
fn m12_bytes_that_no_token_has() {
    for (from, to) in [
        ("00007f", "0x007f"),
        ("00007f", "+1007f"),
        ("00007f", "0 007f"),
    ] {
        malformed(DC81.replacen(from, to, 1));
    }
    for byte in [0u8, b'\r', b'\n', b' ', 0x7f, 0xc3] {
        let mut value = DC81.as_bytes().to_vec();
        value[40] = byte;
        malformed(&value);
    }
    malformed("");
    malformed(" ; ");
}

#[test]
fn m15_base64_has_one_spelling() {
    for (from, to) in [
        (".6eBB", ".6eB*"),
        ("UbItg", "UbIth"),
        ("q7zN0.", "q7zN1."),
        ("q7zN0.", "q7zN0=."),
        ("B_Ej", "B/Ej"),
        ("UbItg", "UbItg=="),
    ] {
        let value = VECTOR.replacen(from, to, 1);
        assert_ne!(value, VECTOR);
        malformed(value);
    }
    malformed("ort1.");
    malformed("ort1..");
    malformed(format!("{VECTOR}.AA"));
}

#[test]
fn m16_m17_m18_fields_of_the_open_token() {
    let payload = vector().encode().unwrap();
    for (at, byte) in [
        (0, 2),
        (0, 0),
        (1, 0),
        (1, 6),
        (2, 0),
        (2, 3),
        (3, 8),
        (3, 0x80),
        (27, 0),
    ] {
        let mut payload = payload.as_bytes().to_vec();
        payload[at] = byte;
        malformed(sealed(&payload));
    }
    let mut reserved = payload.as_bytes().to_vec();
    reserved[1] = 5;
    assert!(matches!(
        read(sealed(&reserved).as_bytes()),
        Err(TokenError::Unsupported(_))
    ));
}

#[test]
fn m19_extensions() {
    let payload = vector().encode().unwrap();
    let with =
        |extensions: &[u8]| read(sealed(&[payload.as_bytes(), extensions].concat()).as_bytes());
    let malformed = |extensions: &[u8]| {
        assert!(
            matches!(with(extensions), Err(TokenError::Malformed(_))),
            "{extensions:?}"
        );
    };
    assert!(
        matches!(with(&[0x7f, 2, 1, 1]), Ok(Token::Ort1(_))),
        "skipped"
    );
    assert!(matches!(with(&[0xff, 0]), Err(TokenError::Unsupported(_))));
    malformed(&[0x04, 1, 0, 0x04, 1, 0]);
    malformed(&[0x7f, 0, 0x7f, 0]);
    malformed(&[0xff, 0, 0xff, 0]);
    malformed(&[0xff, 0, 0x04]);
    malformed(&[0x04, 2, 0, 0]);
    malformed(&[0x04, 1, 4]);
    malformed(&[0x03, 9, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    malformed(&[0x85, 0]);
    malformed(&[0x86, 7, 0, 0, 0, 0, 0, 0, 0]);
    malformed(&[0x82, 0]);
    malformed(&[0x82, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

fn prepare<'a>(headers: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<&'a str> {
    move |name| {
        let mut found = headers.iter().filter(|(known, _)| *known == name);
        found.next_back().map(|(_, value)| *value)
    }
}

const PREPARE: [(&str, &str); 6] = [
    ("x-amz-rdma-token", HIP88),
    ("x-amz-rdma-psn", "00aB01"),
    ("x-amz-rdma-cookie", "0000000f"),
    ("x-amz-rdma-op", "GET"),
    ("x-amz-rdma-target", "/bucket/key"),
    ("x-amz-rdma-size", "2147483647"),
];

#[test]
fn m22_control_requests_of_hipobj() {
    let read = Prepare::read(prepare(&PREPARE)).unwrap();
    assert_eq!(
        (read.psn, read.cookie, read.size, read.offset),
        (0xab01, 15, 0x7fff_ffff, 0)
    );
    for wrong in [
        ("x-amz-rdma-psn", "000000"),
        ("x-amz-rdma-psn", "0000001"),
        ("x-amz-rdma-psn", "00001"),
        ("x-amz-rdma-cookie", "000000f"),
        ("x-amz-rdma-size", "2147483648"),
        ("x-amz-rdma-size", "0"),
        ("x-amz-rdma-size", "+1"),
        ("x-amz-rdma-offset", "18446744073709551615"),
        ("x-amz-rdma-op", "get"),
        ("x-amz-rdma-target", "bucket"),
        ("x-amz-rdma-token", "00"),
    ] {
        let headers: Vec<_> = PREPARE.into_iter().chain([wrong]).collect();
        assert!(Prepare::read(prepare(&headers)).is_err(), "{wrong:?}");
    }
    let session = "ab".repeat(16);
    let ready = [
        ("x-amz-rdma-session", session.as_str()),
        ("x-amz-rdma-cookie", "0000000F"),
        ("x-amz-rdma-qpn", "2A"),
        ("x-amz-rdma-mr-addr", "7f00"),
        ("x-amz-rdma-mr-rkey", "9"),
    ];
    assert_eq!(
        Ready::read(prepare(&ready)).unwrap().memory,
        Some((0x7f00, 9))
    );
    assert_eq!(Ready::read(prepare(&ready[..3])).unwrap().memory, None);
    assert!(Ready::read(prepare(&ready[..4])).is_err());
    let short = [("x-amz-rdma-session", &session[1..]), ready[1], ready[2]];
    assert!(Ready::read(prepare(&short)).is_err());
}

#[test]
fn t1_every_beginning_is_refused() {
    for token in [DC81, HIP88] {
        for length in 0..token.len() {
            let value = &token[..length];
            assert!(
                matches!(
                    read(value.as_bytes()),
                    Err(_) | Ok(Token::Unknown | Token::Lab(_))
                ),
                "{value}"
            );
        }
    }
}

#[test]
fn t2_t3_open_tokens_cut_short() {
    let token = OpenToken {
        memory: Some(MemoryKind::Host),
        rail: Some(1),
        ..vector()
    };
    let payload = token.encode().unwrap();
    let whole = [56, 59, 62];
    for length in 0..=payload.as_bytes().len() {
        let value = sealed(&payload.as_bytes()[..length]);
        match whole.contains(&length) {
            true => assert!(read(value.as_bytes()).is_ok(), "{length}"),
            false => malformed(value),
        }
    }
    malformed(&VECTOR[..VECTOR.len() - 1]);
    malformed(format!("{VECTOR}A"));
    for length in 0..VECTOR.len() {
        refused(&VECTOR[..length]);
    }
}

#[test]
fn o1_o6_o7_too_much() {
    malformed("a".repeat(513));
    assert_eq!(read(&[b'a'; 512]), Ok(Token::Unknown));
    let long = OpenToken {
        address: 0,
        length: 1 << 63,
        ..vector()
    };
    assert!(long.encode().is_ok(), "how much is too much the door says");
    let over = OpenToken {
        address: 1 << 63,
        length: 1 << 63,
        ..vector()
    };
    assert!(over.encode().is_err());
    let segment = Segment {
        address: 1,
        length: 1,
        remote_key: 1,
    };
    assert!(Segments::new(&[segment; 16]).is_none());
    let mut payload = vector().encode().unwrap().as_bytes().to_vec();
    payload.extend([0x82, 0]);
    payload.extend([1; 256]);
    malformed(sealed(&payload));
    let most = OpenToken {
        segments: Segments::new(&[segment; 15]).unwrap(),
        ..vector()
    };
    let text = most.seal(&vector_key(), &REQUEST).unwrap();
    assert!(text.len() <= 512);
    assert_eq!(Sealed::parse(&text).unwrap().unverified(), &most);
    assert_eq!(most.total(), 0x10_0000 + 15);
}

#[test]
fn versions_that_are_not_known_are_told_apart() {
    assert_eq!(read(b"ort2.x"), Ok(Token::OrtOther(2)));
    assert_eq!(detect(b"ort99999999999.x"), Ok(Class::OrtOther));
    assert_eq!(detect(b"ort01.x"), Ok(Class::OrtOther));
    assert_eq!(detect(b"ort.x"), Ok(Class::Unknown));
    assert_eq!(detect(b"ort1"), Ok(Class::Unknown));
}

#[test]
fn carriers_of_other_vendors() {
    let none = |_: &str| None;
    let plain = carrier::read(carrier::INFO, DC81.as_bytes(), none).unwrap();
    assert_eq!(plain.to_string(), DC81);
    let query = b"desc=1&addr=2&size=3&offset=4";
    assert!(matches!(
        carrier::read(carrier::INFO, query, none),
        Err(TokenError::Unsupported(_))
    ));
    let with = |start: &'static [u8], length: &'static [u8]| {
        carrier::read(carrier::CUOBJ, DC81.as_bytes(), move |name| match name {
            carrier::CUOBJ_START => Some(start),
            carrier::CUOBJ_LENGTH => Some(length),
            _ => None,
        })
    };
    let narrowed = with(b"139716164221072", b"16").unwrap();
    assert_eq!((narrowed.address, narrowed.size), (139_716_164_221_072, 16));
    for (start, length) in [
        (&b"0"[..], &b"16"[..]),
        (b"139716164221072", b"0"),
        (b"-1", b"16"),
        (b"", b"16"),
        (b"139716164221072", b"99999999999999999999"),
    ] {
        assert!(with(start, length).is_err());
    }
}

#[test]
fn endpoints_and_limits_are_read_as_written() {
    let endpoint = Endpoint {
        transport: Transport::Rc,
        port: 1,
        path_mtu: 5,
        qpn: 42,
        psn: 0xff_ffff,
        lid: 3,
        pkey: 0xffff,
        responder_depth: 16,
        initiator_depth: 1,
        gid: [9; 16],
    };
    let text = endpoint.to_string();
    assert_eq!(Endpoint::parse(&text), Ok(endpoint));
    for wrong in [
        Endpoint {
            path_mtu: 0,
            ..endpoint
        },
        Endpoint {
            path_mtu: 6,
            ..endpoint
        },
        Endpoint { psn: 0, ..endpoint },
        Endpoint {
            psn: 1 << 24,
            ..endpoint
        },
    ] {
        assert!(Endpoint::parse(&wrong.to_string()).is_err(), "{wrong:?}");
    }
    assert!(Endpoint::parse(&text[1..]).is_err());
    let limits = Limits {
        bytes_max: 1 << 40,
        in_flight: 64,
        idle_s: 300,
        lease_ms: 8000,
    };
    assert_eq!(Limits::parse(&limits.to_string()), Ok(limits));
    assert_eq!(
        Limits::parse("max=1; new=x;inflight=2;idle=3;lease=4")
            .unwrap()
            .bytes_max,
        1
    );
    for wrong in [
        "",
        "max=1",
        "max=1;inflight=2;idle=3;lease=-4",
        "max=1;max=1;inflight=2;idle=3;lease=4",
    ] {
        assert!(Limits::parse(wrong).is_err(), "{wrong}");
    }
}

fn open_token() -> impl Strategy<Value = OpenToken> {
    let window = (
        prop::sample::select(Transport::ALL.to_vec()),
        prop::bool::ANY,
        0u8..8,
        1u64..,
        0u64..1 << 62,
        1u64..1 << 62,
    );
    let segment =
        (0u64..1 << 62, 1u32.., any::<u32>()).prop_map(|(address, length, remote_key)| Segment {
            address,
            length,
            remote_key,
        });
    let segments = prop::collection::vec(segment, 0..=12);
    let promise = prop_oneof![
        any::<[u8; 8]>().prop_map(Promise::Crc64Nvme),
        any::<[u8; 4]>().prop_map(Promise::Crc32C),
        any::<[u8; 32]>().prop_map(Promise::Sha256),
    ];
    let extensions = (
        segments,
        prop::option::of(promise),
        prop::option::of(any::<u8>()),
        prop::option::of(any::<(u32, u32)>()),
        prop::option::of((1u32.., any::<u16>(), any::<u8>())),
    );
    (
        window,
        extensions,
        any::<[u8; 16]>(),
        any::<(u32, u32, u32)>(),
    )
        .prop_map(
            |(window, extensions, session, (expiry_s, lease_ms, remote_key))| {
                let (transport, reads, flags, sequence, address, length) = window;
                let (segments, promise, rail, slot, dc) = extensions;
                let marks = [Flags::OFFSET, Flags::DEVICE_MEMORY, Flags::ONE_SHOT];
                OpenToken {
                    transport,
                    direction: if reads {
                        Direction::Read
                    } else {
                        Direction::Write
                    },
                    flags: marks.into_iter().enumerate().fold(
                        Flags::default(),
                        |all, (at, mark)| {
                            if flags & 1 << at != 0 {
                                all.with(mark)
                            } else {
                                all
                            }
                        },
                    ),
                    session,
                    sequence,
                    expiry_s,
                    lease_ms,
                    address,
                    length,
                    remote_key,
                    dc: dc.map(|(dctn, lid, port)| DcEndpoint {
                        dctn,
                        gid: [1; 16],
                        lid,
                        port,
                        flags: 0,
                        key_id: 7,
                    }),
                    segments: Segments::new(&segments).unwrap(),
                    promise,
                    memory: rail.map(|_| MemoryKind::Cuda),
                    rail,
                    slot: slot.map(|(slot, generation)| Slot { slot, generation }),
                }
            },
        )
}

proptest! {
    #[test]
    fn what_is_written_is_read_and_of_its_class(token in open_token(), key: [u8; 32]) {
        let text = token.seal(&key, &REQUEST).unwrap();
        prop_assert!(text.len() <= 512);
        prop_assert_eq!(detect(text.as_bytes()), Ok(Class::Ort1));
        let sealed = Sealed::parse(&text).unwrap();
        prop_assert_eq!(sealed.verify(&key, &REQUEST), Some(&token));
    }

    #[test]
    fn descriptors_are_read_as_written(
        window in (0u64..1 << 40, 1u64..=0xffff_ffff),
        rkey: u32, lid: u16, dctn in 1u32..1 << 24, gid in 1u128..,
    ) {
        let token = Descriptor {
            address: window.0, size: window.1, rkey, lid, dctn, gid: Some(gid.to_be_bytes()),
        };
        let text = token.to_string();
        prop_assert_eq!(detect(text.as_bytes()), Ok(Class::Dc81));
        prop_assert_eq!(read(text.as_bytes()), Ok(Token::Dc(token)));
        let long = format!("{text}:{:016x}:{:016x}", window.0, window.1);
        prop_assert_eq!(detect(long.as_bytes()), Ok(Class::Dc115));
        prop_assert_eq!(read(long.as_bytes()), Ok(Token::Dc(token)));
    }

    #[test]
    fn binary_tokens_are_read_as_written(
        rc: bool, qpn: u32, gid: [u8; 16], rkey: u32, window in (0u64..1 << 62, 1u64..1 << 62), port: u8, lid: u16,
    ) {
        let transport = if rc { HipTransport::Rc } else { HipTransport::Dc };
        let token = HipToken { transport, qpn, gid, rkey, address: window.0, length: window.1, port, lid };
        let text = token.to_string();
        prop_assert_eq!(detect(text.as_bytes()), Ok(Class::Hip88));
        prop_assert_eq!(read(text.as_bytes()), Ok(Token::Hip(token)));
    }

    #[test]
    fn no_bytes_are_a_panic(value: Vec<u8>, text in "[0-9a-f:;.ort]{0,130}") {
        let _ = read(&value);
        let _ = read(text.as_bytes());
    }
}
