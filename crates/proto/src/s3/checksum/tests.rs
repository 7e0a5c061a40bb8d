//! Known answers, refusals, and the arithmetic of parts.

use super::*;
use crate::md5::Md5;
use proptest::prelude::*;

#[test]
fn known_answers() {
    for (algorithm, nothing, digits) in [
        (Algorithm::Crc32, "AAAAAA==", "y/Q5Jg=="),
        (Algorithm::Crc32C, "AAAAAA==", "4waSgw=="),
        (Algorithm::Crc64Nvme, "AAAAAAAAAAA=", "rosUhgp5mIg="),
        (
            Algorithm::Sha1,
            "2jmj7l5rSw0yVb/vlWAYkK/YBwk=",
            "98O8HYCOBHMq32eZZczDTKeuNEE=",
        ),
        (
            Algorithm::Sha256,
            "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
            "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
        ),
    ] {
        assert_eq!(checksum(algorithm, b"").to_base64(), nothing);
        assert_eq!(checksum(algorithm, b"123456789").to_base64(), digits);
        let parsed = Checksum::parse(algorithm, digits).expect("own text");
        assert_eq!(parsed, checksum(algorithm, b"123456789"));
        assert_eq!(Algorithm::from_header(algorithm.header()), Some(algorithm));
        assert_eq!(
            Algorithm::from_element(algorithm.element()),
            Some(algorithm)
        );
        assert_eq!(Algorithm::parse(algorithm.as_str()), Some(algorithm));
    }
    assert_eq!(
        parse_content_md5("1B2M2Y8AsgTpgAmY7PhCfg=="),
        Some(Md5::digest(b""))
    );
}

#[test]
fn wrong_values_are_refused() {
    for text in [
        "",
        "AAAAAA=",
        "AAAAAA",
        "AAAAAAA=",
        "AAAA",
        "!AAAAA==",
        "AAAAAAAAAAA=",
    ] {
        assert_eq!(Checksum::parse(Algorithm::Crc32, text), None, "{text}");
    }
    assert_eq!(Checksum::parse(Algorithm::Sha256, &"A".repeat(4000)), None);
    assert_eq!(parse_content_md5("AAAAAA=="), None);
    for text in [
        "y/Q5Jg==-",
        "y/Q5Jg==-x",
        "y/Q5Jg==-+1",
        "-1",
        "y/Q5Jg==-99999999999",
    ] {
        assert_eq!(parse_composite(Algorithm::Crc32, text), None, "{text}");
    }
}

#[test]
fn composite_is_the_checksum_of_checksums() {
    let parts = [
        checksum(Algorithm::Crc32, b"1234"),
        checksum(Algorithm::Crc32, b"56789"),
    ];
    let (value, count) = composite(&parts).expect("parts");
    let joined: Vec<u8> = parts
        .iter()
        .flat_map(|part| part.as_bytes().to_vec())
        .collect();
    assert_eq!(value, checksum(Algorithm::Crc32, &joined));
    let text = composite_text(&value, count);
    assert_eq!(
        parse_composite(Algorithm::Crc32, &text),
        Some((value, Some(2)))
    );
    assert_eq!(composite([]), None);
    let mixed = [parts[0], checksum(Algorithm::Crc32C, b"")];
    assert_eq!(composite(&mixed), None);
    assert_eq!(
        multipart_etag([&Md5::digest(b"")]),
        "59adb24ef3cdbe0297f05b395827453f-1"
    );
}

proptest! {
    #[test]
    fn combined_crcs_are_the_crc_of_the_whole(
        first in proptest::collection::vec(any::<u8>(), 0..300),
        second in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32C, Algorithm::Crc64Nvme] {
            let mut hasher = Hasher::new(algorithm);
            hasher.update(&first);
            hasher.update(&second);
            let combined = combine(
                &checksum(algorithm, &first),
                &checksum(algorithm, &second),
                second.len() as u64,
            );
            prop_assert_eq!(combined, Some(hasher.finalize()));
        }
        let sha = checksum(Algorithm::Sha256, &first);
        prop_assert_eq!(combine(&sha, &sha, 1), None);
    }

    #[test]
    fn lengths_and_alignments_agree_with_a_bytewise_crc(
        data in proptest::collection::vec(any::<u8>(), 0..700),
        skip in 0usize..64,
    ) {
        let data = &data[skip.min(data.len())..];
        let mut crc = !0u64;
        for byte in data {
            crc ^= u64::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x9a6c_9329_ac4b_c9b5 } else { crc >> 1 };
            }
        }
        prop_assert_eq!(checksum(Algorithm::Crc64Nvme, data).crc_value(), Some(!crc));
    }
}
