//! The grammar's own cases of docs/token.md section 8, by their ids: valid (V), malformed (M), truncated (T), oversized (O).
//! Those of the open token are beside it.

use proptest::prelude::*;

use super::dc::Descriptor;
use super::hip::{HipToken, HipTransport};
use super::hipobj::{Prepare, Ready};
use super::rcshim::RcShim;
use super::{Class, Token, TokenError, carrier, detect, parse_hex16, read};

const DC81: &str =
    "00007f1234567890:00100000:aabbccdd:0000:000042:1:00000000000000000000ffff0a0a30d0";
const HIP88: &str =
    "012a00000000000000000000000000ffff0a0a30d0efbeadde00100000007f00000010000000000000010000";
#[track_caller]
pub(super) fn malformed(value: impl AsRef<[u8]>) {
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
pub(super) fn refused(value: impl AsRef<[u8]>) {
    let value = value.as_ref();
    assert!(
        matches!(read(value), Err(_) | Ok(Token::Unknown)),
        "{}: {:?}",
        String::from_utf8_lossy(value),
        read(value)
    );
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

/// Tokens and what looks like them: one character put in, changed or left out.
fn near_tokens() -> impl Strategy<Value = String> {
    let whole = prop_oneof![
        Just(DC81.to_owned()),
        Just(format!("{DC81}:00007f1234567890:0000000000100000")),
        Just(HIP88.to_owned()),
        Just(format!("{HIP88}:7f0000001000:10")),
        Just(format!("rc:{}:1:1:1", "ab".repeat(16))),
        "ort[0-9]{1,3}\\.[A-Za-z0-9_.:-]{0,80}",
        "[0-9a-f]{1,9}(:[0-9a-f]{1,9}){6}",
        "[0-9a-f:.ort]{1,130}",
    ];
    let change = (0..3_u8, any::<prop::sample::Index>(), "[0-9a-gr:.]");
    (whole, prop::option::of(change)).prop_map(|(mut text, change)| {
        if let Some((how, at, with)) = change {
            let at = at.index(text.len());
            let end = if how == 0 { at } else { at + 1 };
            let with = if how == 2 && text.len() > 1 {
                ""
            } else {
                &with
            };
            text.replace_range(at..end, with);
        }
        text
    })
}

proptest! {
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
    fn tokens_of_the_shim_are_read_as_written(
        connection: [u8; 16], window in (0u64..1 << 62, 1u64..1 << 62), rkey: u32,
    ) {
        let token = RcShim { connection, address: window.0, size: window.1, rkey };
        let text = token.to_string();
        prop_assert_eq!(detect(text.as_bytes()), Ok(Class::RcShim));
        prop_assert_eq!(read(text.as_bytes()), Ok(Token::RcShim(token)));
    }

    #[test]
    fn seven_numbers_are_read_as_written(
        window in (0u64..1 << 59, 1u64..1 << 62), rest: [u64; 5],
    ) {
        let fields = [window.0, window.1, rest[0], rest[1], rest[2], rest[3], rest[4]];
        // No number is so long that the widths could be those of dc81.
        let text = fields.map(|field| format!("{field:x}")).join(":");
        prop_assert_eq!(detect(text.as_bytes()), Ok(Class::Lab));
        prop_assert_eq!(read(text.as_bytes()), Ok(Token::Lab(super::dc::Lab { fields })));
    }

    /// Against each shape of section 6.1 alone, in no order: at most one fits, and that one is told.
    #[test]
    fn no_shape_satisfies_two_classes(text in near_tokens()) {
        let fields: Vec<&str> = text.split(':').collect();
        let widths: Vec<usize> = fields.iter().map(|field| field.len()).collect();
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let version = text.strip_prefix("ort").and_then(|rest| rest.split_once('.')).map(|(version, _)| version);
        let version = version.filter(|version| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()));
        let dc81 = widths == [16, 8, 8, 4, 6, 1, 32];
        let shapes = [
            (version == Some("1"), Class::Ort1),
            (version.is_some_and(|version| version != "1"), Class::OrtOther),
            (fields[0] == "rc" && fields.len() == 5, Class::RcShim),
            (widths[0] == 88 && digits(fields[0]) && [1, 3].contains(&fields.len()), Class::Hip88),
            (dc81, Class::Dc81),
            (widths == [16, 8, 8, 4, 6, 1, 32, 16, 16], Class::Dc115),
            (!dc81 && fields.len() == 7 && fields.iter().all(|field| digits(field)), Class::Lab),
        ];
        let fitting: Vec<Class> = shapes.into_iter().filter(|(fits, _)| *fits).map(|(_, class)| class).collect();
        prop_assert!(fitting.len() <= 1, "{:?}", fitting);
        let told = fitting.first().copied().unwrap_or(Class::Unknown);
        prop_assert_eq!(detect(text.as_bytes()), Ok(told));
    }

    #[test]
    fn no_bytes_are_a_panic(value: Vec<u8>, text in "[0-9a-f:;.ort]{0,130}") {
        let _ = read(&value);
        let _ = read(text.as_bytes());
    }
}
