//! Replays the seed corpora of the fuzzers through the functions that the fuzzers call.

#[path = "../../../fuzz/src/lib.rs"]
mod targets;

use std::{fs, path::Path};

#[test]
fn every_seed_of_every_target_is_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in targets::TARGETS {
        let folder = corpus.join(name);
        let mut seeds = 0;
        for entry in fs::read_dir(&folder).expect("a corpus for each target") {
            let path = entry.expect("readable folder").path();
            let seed = fs::read(&path).expect("readable seed");
            // Every beginning of a seed is a truncated one.
            for length in 0..=seed.len().min(2048) {
                target(&seed[..length]);
            }
            target(&seed);
            seeds += 1;
        }
        assert!(seeds >= 5, "{name} has {seeds} seeds");
    }
}

/// The seeds say by their names what they are: see that they are that.
#[test]
fn seeds_are_what_their_names_say() {
    use forebay_proto::s3::{policy::Policy, sigv4, uri, xml};
    let seed = |path: &str| {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        fs::read(corpus.join(path)).expect("seed")
    };
    let text = |path: &str| String::from_utf8(seed(path)).expect("UTF-8 seed");
    assert!(sigv4::parse_authorization(&text("sigv4_authorization/header")).is_ok());
    assert!(sigv4::parse_presigned(&text("sigv4_authorization/presigned")).is_ok());
    assert!(xml::parse_delete(&seed("xml_requests/delete")).is_ok());
    assert!(xml::parse_delete(&seed("xml_requests/delete_entity_bomb")).is_err());
    assert!(xml::parse_complete_multipart_upload(&seed("xml_requests/complete")).is_ok());
    assert!(Policy::parse(&seed("policy/public_read"), "bucket").is_ok());
    assert!(Policy::parse(&seed("policy/many_stars"), "bucket").is_ok());
    assert!(uri::parse_target(&text("uri/absolute_form")).is_ok());
    use forebay_proto::token::{self, ort1::OpenToken};
    for (name, good) in [
        ("dc81", true),
        ("dc81_semicolon", true),
        ("dc81_upper_case", true),
        ("dc81_size_zero", false),
        ("dc115", true),
        ("dc115_outside", false),
        ("hip88", true),
        ("hip88_suffix", true),
        ("hip88_transport_2", false),
        ("rcshim", true),
        ("ort1", true),
        ("ort1_not_canonical", false),
    ] {
        let read = token::read(&seed(&format!("token/{name}")));
        assert_eq!(read.is_ok(), good, "{name}: {read:?}");
    }
    assert!(token::ort1::Endpoint::parse(&text("token/endpoint")).is_ok());
    assert!(token::ort1::Limits::parse(&text("token/limits")).is_ok());
    for (name, good) in [
        ("plain", true),
        ("shared_memory_slot", true),
        ("dc_endpoint", true),
        ("two_segments", true),
        ("promise_and_kind", true),
        ("unknown_skipped", true),
        ("unknown_critical", false),
        ("twice", false),
        ("direction_3", false),
    ] {
        let read = OpenToken::decode(&seed(&format!("token_payload/{name}")));
        assert_eq!(read.is_ok(), good, "{name}: {read:?}");
    }
    for (name, good) in [
        ("read", true),
        ("write", true),
        ("both", true),
        ("access_0", false),
        ("access_4", false),
        ("version_2", false),
        ("one_byte_more", false),
    ] {
        let read = token::grant::Grant::decode(&seed(&format!("grant/{name}")));
        assert_eq!(read.is_some(), good, "{name}: {read:?}");
    }
    for (seed_name, good) in [
        ("signed", true),
        ("signed_byte_by_byte", true),
        ("signed_trailer", true),
        ("unsigned_trailer", true),
        ("unsigned_empty", true),
        ("unsigned_spare_end", true),
        ("unsigned_half_end", false),
        ("signed_forged_data", false),
        ("signed_trailer_forged", false),
        ("signed_truncated", false),
        ("unsigned_bytes_after_end", false),
    ] {
        let body = seed(&format!("chunked/{seed_name}"));
        assert_eq!(targets::chunked_completes(&body), Some(good), "{seed_name}");
    }
}

/// The same of the direct path's.
#[test]
fn seeds_of_the_direct_path_are_what_their_names_say() {
    use forebay_proto::bearer::Bearer;
    use forebay_proto::iwarp::mpa::{Frame, Kind};
    use forebay_proto::{direct, iwarp};
    let seed = |path: &str| {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        fs::read(corpus.join(path)).expect("seed")
    };
    let good = String::from_utf8(seed("bearer/good")).expect("UTF-8 seed");
    let bearer = Bearer::parse(&good).expect("a token");
    assert_eq!(bearer.check(Some("secret"), 1_789_999_000), Ok(()));
    for name in [
        "no_signature",
        "padding",
        "no_expiry",
        "expiry_overflows",
        "other_version",
    ] {
        let text = String::from_utf8(seed(&format!("bearer/{name}"))).expect("UTF-8 seed");
        assert!(Bearer::parse(&text).is_err(), "{name}");
    }
    assert!(Frame::parse(Kind::Request, &seed("mpa/request_siw")).is_ok());
    for name in ["revision_3", "private_data_too_long"] {
        assert!(
            Frame::parse(Kind::Request, &seed(&format!("mpa/{name}"))).is_err(),
            "{name}"
        );
    }
    assert!(direct::parse_request(&seed("direct_request/gather")).is_ok());
    assert!(direct::parse_reply(&seed("direct_reply/retrieved")).is_ok());
    for (name, ends_with) in [
        ("write_then_send", None),
        ("responses", None),
        ("write_out_of_bounds", Some(iwarp::Fault::TaggedBounds)),
        ("write_wraps", Some(iwarp::Fault::TaggedWrap)),
        ("too_many_reads", Some(iwarp::Fault::Stream)),
    ] {
        let stream = seed(&format!("iwarp/{name}"));
        assert_eq!(targets::direct::stream_ends(&stream), ends_with, "{name}");
    }
}

#[test]
fn seeds_of_nvme_tcp_end_as_their_names_say() {
    use forebay_proto::nvme_tcp::FatalErrorStatus::{
        DataTransferLimitExceeded as Limit, DataTransferOutOfRange as Range, HeaderDigestError,
        InvalidPduHeaderField as Field, PduSequenceError as Sequence, UnsupportedParameter,
    };
    let ends = |name: &str| {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/nvme_tcp");
        let seed = fs::read(corpus.join(name)).expect("seed");
        let fault = targets::nvme::nvme_tcp_ends(&seed);
        fault.map(|fault| (fault.status, fault.information))
    };
    for (name, end) in [
        ("connect_then_store", None),
        ("digests", None),
        ("header_digest_wrong", Some((HeaderDigestError, 0))),
        ("digest_flag_clear", Some((Field, 1))),
        ("digest_flag_not_agreed", Some((Field, 1))),
        ("reserved_flags", Some((Field, 1))),
        ("not_icreq_first", Some((Sequence, 0))),
        ("icreq_twice", Some((Sequence, 0))),
        ("icreq_pfv_1", Some((UnsupportedParameter, 8))),
        ("icreq_hpda_32", Some((Field, 10))),
        ("icreq_dgst_reserved", Some((Field, 11))),
        ("icreq_maxr2t_max", None),
        ("plen_huge", Some((Field, 3))),
        ("plen_short", Some((Field, 4))),
        ("plen_zero", Some((Field, 4))),
        ("hlen_wrong", Some((Field, 2))),
        ("type_08", Some((Field, 0))),
        ("type_ff", Some((Field, 0))),
        ("pdo_short", Some((Field, 3))),
        ("pdo_beyond", Some((Field, 3))),
        ("pdo_misaligned", Some((Field, 3))),
        ("controller_kind", Some((Sequence, 0))),
        ("ttag_zero", Some((Field, 10))),
        ("ttag_unknown", Some((Field, 10))),
        ("cccid_other", Some((Field, 8))),
        ("datao_gap", Some((Range, 0))),
        ("datao_replay", Some((Range, 0))),
        ("datao_wraps", Some((Range, 0))),
        ("datal_zero", Some((Field, 16))),
        ("datal_lies", Some((Field, 16))),
        ("beyond_r2t", Some((Range, 0))),
        ("beyond_maxh2cdata", Some((Limit, 0))),
        ("last_early", Some((Field, 1))),
        ("last_missing", Some((Field, 1))),
        ("capsule_too_long", Some((Limit, 0))),
        ("term", None),
        ("term_too_long", Some((Field, 4))),
        ("term_plen_8", Some((Field, 4))),
        ("host_reads", None),
        ("host_digests", None),
        ("host_success_not_last", Some((Field, 1))),
        ("host_maxh2cdata_small", Some((Field, 12))),
        ("host_r2t_beyond", Some((Range, 0))),
        ("host_term", None),
    ] {
        assert_eq!(ends(name), end, "{name}");
    }
}

/// The same of what a host reads of a controller.
#[test]
fn seeds_of_an_nvme_host_are_what_their_names_say() {
    use forebay_proto::nvme::discovery::DiscoveryLog;
    use forebay_proto::nvme::identify::{
        Descriptors, IdentifyBlocks, IdentifyController, IdentifyKv, list_entries,
    };
    use forebay_proto::nvme::kv::ListReader;
    let seed = |name: &str| {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/nvme_host");
        // The first byte says what it is.
        fs::read(corpus.join(name)).expect("seed").split_off(1)
    };
    let controller = IdentifyController::decode(&seed("controller")).expect("a controller");
    assert_eq!(controller.subnqn, "nqn.2026-01.example:pool");
    assert!(IdentifyController::decode(&seed("controller_texts_not_ascii")).is_some());
    assert!(IdentifyController::decode(&seed("controller_short")).is_none());
    for (name, lba_shift) in [
        ("blocks", Some(12)),
        ("blocks_format_17", Some(9)),
        ("blocks_with_metadata", None),
        ("blocks_of_a_byte", None),
    ] {
        let blocks = IdentifyBlocks::decode(&seed(name));
        assert_eq!(blocks.map(|blocks| blocks.lba_shift), lba_shift, "{name}");
    }
    for (name, result_bytes_max) in [
        ("kv", 0),
        ("kv_vendor", 1 << 20),
        ("kv_vendor_later_version", 0),
    ] {
        let vendor = IdentifyKv::decode(&seed(name)).expect("a namespace").vendor;
        assert_eq!(vendor.result_bytes_max, result_bytes_max, "{name}");
    }
    for (name, csi) in [
        ("descriptors", Some(1)),
        ("descriptors_length_lies", Some(1)),
        ("descriptors_unknown_and_short", Some(1)),
    ] {
        let descriptors = Descriptors::decode(&seed(name));
        assert_eq!(descriptors.csi, csi, "{name}");
        let whole = name != "descriptors_unknown_and_short";
        assert_eq!(descriptors.nguid.is_some(), whole, "{name}");
    }
    assert_eq!(
        list_entries(&seed("namespaces")).collect::<Vec<_>>(),
        [1, 2, 9]
    );
    assert_eq!(list_entries(&seed("namespaces_full")).count(), 1024);
    for (name, entries) in [
        ("discovery", Some(2)),
        ("discovery_shorter_than_it_says", None),
        ("discovery_count_wraps", None),
        ("discovery_texts_not_ascii", Some(1)),
    ] {
        let log = DiscoveryLog::decode(&seed(name));
        assert_eq!(log.map(|log| log.entries.len()), entries, "{name}");
    }
    for (name, keys, left) in [
        ("keys", 3, 0),
        ("keys_count_lies", 3, u32::MAX - 3),
        ("keys_length_lies", 1, 1),
        ("keys_last_without_padding", 2, 0),
        ("keys_empty_ones", 3, 0),
    ] {
        let seed = seed(name);
        let mut reader = ListReader::new(&seed).expect("a list");
        assert_eq!(
            (reader.by_ref().count(), reader.left()),
            (keys, left),
            "{name}"
        );
    }
    for (name, proves) in [
        ("proves", true),
        ("proves_both", true),
        ("proves_both_wrong", false),
        ("proves_both_unproved", false),
        ("proves_answered_by_a_challenge", false),
        ("proves_other_transaction", false),
        ("proves_hash_length_wrong", false),
        ("proves_failure", false),
        ("proves_in_a_group", false),
        ("proves_group_short", false),
    ] {
        let done = targets::nvme_host::proves(&seed(name));
        assert_eq!(done, Some(proves), "{name}");
    }
}

/// The same of checksums.
#[test]
fn seeds_of_checksums_are_what_their_names_say() {
    use forebay_proto::s3::checksum::{
        Algorithm, Checksum, ChecksumType, parse_composite, parse_content_md5,
    };
    let seed = |name: &str| {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/checksums");
        fs::read_to_string(corpus.join(name)).expect("UTF-8 seed")
    };
    for (name, algorithm, good) in [
        ("crc32", Algorithm::Crc32, true),
        ("crc32", Algorithm::Crc64Nvme, false),
        ("crc64nvme", Algorithm::Crc64Nvme, true),
        ("sha1", Algorithm::Sha1, true),
        ("sha256", Algorithm::Sha256, true),
        ("crc32_no_padding", Algorithm::Crc32, false),
        ("33_bytes", Algorithm::Sha256, false),
        ("45_characters", Algorithm::Sha256, false),
        ("url_alphabet", Algorithm::Crc32, false),
    ] {
        let value = Checksum::parse(algorithm, &seed(name));
        assert_eq!(value.is_some(), good, "{name}: {value:?}");
    }
    for (name, algorithm, parts) in [
        ("sha256_composite", Algorithm::Sha256, Some(10_000)),
        ("crc32_composite_leading_zeroes", Algorithm::Crc32, Some(7)),
        ("crc32_composite_too_many", Algorithm::Crc32, None),
        ("crc32_composite_signed", Algorithm::Crc32, None),
    ] {
        let found = parse_composite(algorithm, &seed(name));
        assert_eq!(found.and_then(|(_, parts)| parts), parts, "{name}");
    }
    assert!(parse_content_md5(&seed("md5")).is_some());
    let header = Algorithm::from_header(&seed("header"));
    assert_eq!(header, Some(Algorithm::Crc64Nvme));
    let element = Algorithm::from_element(&seed("element"));
    assert_eq!(element, Some(Algorithm::Crc32C));
    let kind = ChecksumType::parse(&seed("type"));
    assert_eq!(kind, Some(ChecksumType::FullObject));
}
