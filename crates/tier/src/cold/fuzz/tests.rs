//! Seeds of the fuzzers, kept under `fuzz/corpus`: a change of an encoding shows there as a changed file. `FOREBAY_BLESS=1` writes them anew.

use forebay_store::suite::{check_seed, corpus};

use super::*;
use crate::cold::format::Summing;
use crate::cold::policy::{Policy, Recall};

/// Compares each seed with its file, then replays all files.
fn replay(target: &str, seeds: Vec<(&str, Vec<u8>)>, run: fn(&[u8])) {
    for (name, seed) in seeds {
        check_seed(target, name, &seed);
    }
    for file in std::fs::read_dir(corpus(target)).unwrap() {
        let seed = std::fs::read(file.unwrap().path()).unwrap();
        run(&seed);
        for len in (0..seed.len().min(600)).step_by(13) {
            run(&seed[..len]);
        }
    }
}

/// The checksum and the trailer of a value of zeros.
fn summed(size: usize) -> (u64, Vec<u8>) {
    let mut summing = Summing::new();
    summing.update(&vec![0; size]);
    let (_, crc64nvme, trailer) = summing.finish();
    (crc64nvme, trailer)
}

/// A seed of `copy`: so many whole blocks of zeros and one zero more, with the trailer that `change` leaves.
fn zeros(blocks: u8, first: u8, len: u8, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let (crc64nvme, mut trailer) = summed(usize::from(blocks) * BLOCK_BYTES as usize + 1);
    change(&mut trailer);
    let head = [128 | blocks, first, len, 0];
    [&head[..], &crc64nvme.to_le_bytes(), &trailer].concat()
}

#[test]
fn copies() {
    let (crc64nvme, trailer) = summed(1);
    let head = [&[0, 0, 0, 0][..], &crc64nvme.to_le_bytes()].concat();
    let seeds = vec![
        ("one_byte", [&head[..], &[0], &trailer].concat()),
        ("cut", [&head[..], &[0], &trailer[..27]].concat()),
        ("longer", [&head[..], &[0], &trailer, b"more"].concat()),
        ("another_byte", [&head[..], &[1], &trailer].concat()),
        ("nothing", head),
        ("blocks", zeros(3, 9, 7, |_| {})),
        ("many_blocks", zeros(20, 0, 255, |_| {})),
        ("range_of_many", zeros(20, 12, 1, |_| {})),
        ("wrong_sum", zeros(2, 8, 1, |trailer| trailer[24 + 4] ^= 1)),
        (
            "wrong_last_sum",
            zeros(20, 0, 8, |trailer| trailer[24 + 80] ^= 1),
        ),
        ("damaged", {
            let mut seed = zeros(20, 8, 8, |_| {});
            seed[3] = 1;
            seed.insert(12, 7);
            seed
        }),
    ];
    replay("cold_copy", seeds, copy);
}

/// The seeds say by their names what they are: see that they are that.
#[test]
fn seeds_are_what_their_names_say() {
    let seed = |target: &str, name: &str| std::fs::read(corpus(target).join(name)).unwrap();
    for (name, read) in [
        ("one_byte", [true, true]),
        ("longer", [true, true]),
        ("cut", [false, false]),
        ("another_byte", [false, false]),
        ("blocks", [true, true]),
        ("many_blocks", [true, true]),
        ("range_of_many", [true, true]),
        ("wrong_sum", [false, false]),
        ("wrong_last_sum", [true, false]),
        ("damaged", [true, false]),
    ] {
        assert_eq!(copied(&seed("cold_copy", name)), Some(read), "{name}");
    }
    for (name, part, all, listed) in [
        ("part", true, false, 0),
        ("copy", false, true, 0),
        ("copy_longer", false, false, 0),
        ("part_shorter", false, false, 0),
        ("part_longer", false, false, 0),
        ("page", false, false, 1),
        ("pages_for_ever", false, false, 0),
        ("page_of_lies", false, false, 0),
        ("missing", false, false, 0),
    ] {
        let (read, whole, names) = answered(&seed("cold_answer", name)).unwrap();
        assert_eq!((read, whole, names.len()), (part, all, listed), "{name}");
        assert!(names.iter().all(|name| *name == AWAY));
    }
}

#[test]
fn answers() {
    let (_, trailer) = summed(20);
    let part = b"206\ncontent-range: bytes 5-24/100\ncontent-length: 20\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT\netag: \"a\"\n\n";
    let whole = b"206\ncontent-range: bytes 0-47/48\ncontent-length: 48\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT\netag: \"a\"\n\n";
    let page = |rest: &str| {
        format!(
            "200\ncontent-type: application/xml\n\n<?xml version=\"1.0\"?><ListBucketResult><Contents><Key>far/home/01020304/\
             000000000000000000000007</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>\"a\"</ETag><Size>48</Size></Contents>\
             <Contents><Key>far/home/other</Key><LastModified>1969-01-01T00:00:00Z</LastModified><Size>1</Size></Contents>{rest}\
             </ListBucketResult>"
        )
        .into_bytes()
    };
    let error = |status: u16, code: &str| {
        format!("{status}\n\n<Error><Code>{code}</Code><Message>no</Message></Error>").into_bytes()
    };
    let seeds = vec![
        ("part", [&part[..], &[3; 20]].concat()),
        ("copy", [&whole[..], &[0; 20], &trailer].concat()),
        (
            "copy_longer",
            [&whole[..], &[0; 20], &trailer, b"more"].concat(),
        ),
        ("part_shorter", [&part[..], &[3; 19]].concat()),
        ("part_longer", [&part[..], &[3; 2100]].concat()),
        (
            "part_elsewhere",
            b"206\ncontent-range: bytes 18446744073709551615-3/2\nlast-modified: 0\n\n1".to_vec(),
        ),
        (
            "whole_instead",
            b"200\ncontent-length: 20\n\n01234567890123456789".to_vec(),
        ),
        ("page", page("")),
        (
            "pages_for_ever",
            page("<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"),
        ),
        (
            "page_of_lies",
            page(
                "<Contents><Key>far/home/../../01020304/000000000000000000000007</Key><LastModified>+262142-12-31T23:59:60Z\
                 </LastModified><Size>99999999999999999999</Size></Contents>",
            ),
        ),
        ("deleted", b"204\n\n".to_vec()),
        ("missing", error(404, "NoSuchKey")),
        ("denied", error(403, "AccessDenied")),
        ("slow_down", error(503, "SlowDown")),
        ("moved", b"301\nlocation: http://127.0.0.1:1/\n\n".to_vec()),
        ("no_status", b"1000\n\n".to_vec()),
    ];
    replay("cold_answer", seeds, answer);
}

#[test]
fn records() {
    let times = Times::new(1_700_000_000);
    let mut kept = meta(48, 9);
    kept.expires = Some(5);
    kept.attributes = Attributes::builder().set("a", "b").build().expect("small");
    let policy = Policy {
        after_ms: Some(5),
        not_read_for_ms: Some(6),
        larger_than: 0,
        prefix: "logs/".to_owned(),
        recall: Recall::Never,
    };
    let mut rules = Rules::only(Policy::default());
    assert!(rules.add("logs", policy.clone()));
    let seed = |kind: u8, bytes: &[u8]| [&[kind][..], bytes].concat();
    let url = b"s3://freezer/a/b?endpoint=http://127.0.0.1:9000&region=eu-1&profile=cold&credentials=FILE&ca=FILE";
    let seeds = vec![
        ("reads", seed(0, &times.encode())),
        ("kept_meta", seed(1, &kept_meta::encode(&kept, 10))),
        (
            "policy",
            seed(2, &serde_json::to_vec(&policy).expect("JSON")),
        ),
        ("policy_deep", seed(2, &[b'['; 500])),
        (
            "policy_twice",
            seed(2, br#"{"after_ms":1,"after_ms":18446744073709551616}"#),
        ),
        ("rules", seed(2, &serde_json::to_vec(&rules).expect("JSON"))),
        ("rules_none", seed(2, br#"{"rules":{}}"#)),
        (
            "rules_twice",
            seed(2, br#"{"rules":{"a":{},"a":{"after_ms":1}},"after_ms":1}"#),
        ),
        (
            "name",
            seed(3, b"far/home/01020304/000000000000000000000007"),
        ),
        (
            "name_signed",
            seed(3, b"far/home/01020304/+00000000000000000000007"),
        ),
        ("url", seed(4, url)),
        ("url_no_bucket", seed(4, b"s3:///a?b")),
    ];
    replay("tier_record", seeds, record);
}
