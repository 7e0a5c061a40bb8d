//! The open token's cases of docs/token.md section 8, by their ids.

use proptest::prelude::*;

use super::{
    Covered, DcEndpoint, Direction, Endpoint, Flags, Limits, MemoryKind, OpenToken, Promise,
    Sealed, Segment, Segments, Slot, Transport, session_key,
};
use crate::hex;
use crate::s3::sigv4::SigningKey;
use crate::token::tests::{malformed, refused};
use crate::token::{Class, Token, TokenError, detect, read};

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
        hex::decode::<32>(b"d1a8da4502de7c36a6584f61b8021cacc5154904329403c62f2f64b519ee4606")
            .unwrap();
    session_key(
        &SigningKey::from_bytes(&signing),
        &std::array::from_fn(|at| at as u8),
        &std::array::from_fn(|at| 0xc0 + at as u8),
        &std::array::from_fn(|at| 0xd0 + at as u8),
    )
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
}
