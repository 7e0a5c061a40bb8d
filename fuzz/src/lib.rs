//! What the fuzzers call: one function a parser, from raw bytes, with the properties that must
//! hold whatever they are.
//!
//! The fuzz targets and the ordinary test that replays `corpus/` share these functions, so that a
//! finding kept as a seed is checked for ever, with or without a fuzzer. `cargo xtask fuzz`
//! runs them. Targets of crates whose parsers are not public are in those crates' own `fuzz` modules.
#![forbid(unsafe_code)]

pub mod direct;
pub mod nvme;
pub mod nvme_controller;
pub mod nvme_host;
pub mod tokens;
pub mod vfio_user;

use forebay_proto::s3::{
    checksum::{self, Algorithm, Checksum, ChecksumType},
    chunked::{ChunkChain, Decoder, Event},
    cors, date, lifecycle,
    policy::{Access, Decision, MAX_POLICY, Policy},
    sigv4::{self, AmzDate, CredentialScope, SigningKey},
    tags::{MAX_BUCKET_TAGS, Tags},
    uri, xml,
};
use serde_json::{Value, json};

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// Every target by the name of its corpus.
pub const TARGETS: [(&str, Target); 21] = [
    ("sigv4_authorization", sigv4_authorization),
    ("chunked", chunked),
    ("xml_requests", xml_requests),
    ("policy", policy),
    ("uri", uri),
    ("range", range),
    ("dates", dates),
    ("checksums", checksums),
    ("token", tokens::token),
    ("token_payload", tokens::token_payload),
    ("grant", tokens::grant),
    ("direct_request", direct::direct_request),
    ("direct_reply", direct::direct_reply),
    ("bearer", direct::bearer),
    ("mpa", direct::mpa),
    ("iwarp", direct::iwarp),
    ("nvme_tcp", nvme::nvme_tcp),
    ("nvme_psk", nvme::nvme_psk),
    ("nvme_controller", nvme_controller::nvme_controller),
    ("nvme_host", nvme_host::nvme_host),
    ("vfio_user", vfio_user::vfio_user),
];

/// `Authorization` headers and presigned queries.
pub fn sigv4_authorization(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(claim) = sigv4::parse_authorization(text) {
        let again =
            sigv4::authorization_header(&claim.scope, &claim.signed_headers, &claim.signature);
        assert_eq!(sigv4::parse_authorization(&again), Ok(claim));
    }
    if let Ok(claim) = sigv4::parse_presigned(text) {
        let time = claim.presigned.expect("a presigned claim has a time");
        assert!((1..=sigv4::MAX_EXPIRES_S).contains(&time.expires_s));
    }
    let _ = sigv4::authorization(Some(text), text);
    let _ = sigv4::authorization(None, text);
    let headers: &[(&str, &str)] = &[("host", text), ("x-amz-date", text)];
    let request = sigv4::Request {
        method: "GET",
        path: text,
        query: text,
        headers,
    };
    let _ = sigv4::canonical_request_hash(&request, "host;x-amz-date", text);
}

/// The chain that signed seeds of `chunked` are made for.
fn chain() -> ChunkChain {
    let date = AmzDate::from_unix_s(1_369_353_600);
    let scope = CredentialScope::new("AKID", &date, "us-east-1");
    let key = SigningKey::for_scope("secret", &scope);
    ChunkChain::new(key, &date, &scope, [0; 32])
}

/// `aws-chunked` bodies. The first three bytes (as digits) choose the form (0 unsigned, 1 signed,
/// 2 signed with trailers), the declared length, and how many bytes come at once.
pub fn chunked(data: &[u8]) {
    let _ = chunked_completes(data);
}

/// As [`chunked`]; says whether the body was complete and right. `None`: too short to choose.
pub fn chunked_completes(data: &[u8]) -> Option<bool> {
    let [form, declared, step, body @ ..] = data else {
        return None;
    };
    let declared = u64::from(declared.wrapping_sub(b'0'));
    let mut decoder = match form.wrapping_sub(b'0') % 3 {
        0 => Decoder::unsigned(declared),
        1 => Decoder::signed(chain(), false, declared),
        _ => Decoder::signed(chain(), true, declared),
    };
    let mut yielded = 0u64;
    let mut complete = false;
    'pieces: for piece in body.chunks(usize::from(step.wrapping_sub(b'0')).max(1)) {
        let mut input = piece;
        loop {
            match decoder.next(&mut input) {
                Ok(Some(Event::Data(slice))) => yielded += slice.len() as u64,
                Ok(Some(Event::End)) => {
                    complete = true;
                    break;
                }
                Ok(None) => {
                    // What came after an end may be half of a line end.
                    complete = false;
                    break;
                }
                Err(_) => {
                    complete = false;
                    break 'pieces;
                }
            }
        }
    }
    assert!(yielded <= declared && yielded == decoder.decoded());
    let finished = decoder.finish();
    assert_eq!(finished.is_ok(), complete);
    if finished.is_ok() {
        assert_eq!(yielded, declared);
    }
    Some(complete)
}

/// Every XML body that a client may send, and the replies that our client reads.
pub fn xml_requests(data: &[u8]) {
    if let Ok(request) = xml::parse_delete(data) {
        let objects = request
            .objects
            .iter()
            .map(|o| (o.key.as_str(), o.version_id.as_deref()));
        let again = xml::parse_delete(xml::delete_body(objects, request.quiet).as_bytes());
        assert_eq!(
            again.map(|again| again.objects.len()),
            Ok(request.objects.len())
        );
    }
    if let Ok(parts) = xml::parse_complete_multipart_upload(data) {
        let body = xml::complete_multipart_upload_body(&parts);
        let again = xml::parse_complete_multipart_upload(body.as_bytes());
        assert_eq!(again.map(|again| again.len()), Ok(parts.len()));
    }
    if let Ok(request) = xml::parse_execute(data) {
        let again = xml::parse_execute(xml::execute_body(&request).as_bytes());
        // What XML cannot carry is replaced, so not every name comes back as it was.
        assert_eq!(
            again.map(|again| (again.arguments, again.inputs.len())),
            Ok((request.arguments, request.inputs.len()))
        );
    }
    if let Ok(tags) = Tags::from_xml(data, MAX_BUCKET_TAGS) {
        assert_eq!(
            Tags::from_xml(tags.to_xml().as_bytes(), MAX_BUCKET_TAGS),
            Ok(tags)
        );
    }
    if let Ok(rules) = cors::Configuration::from_xml(data) {
        let _ = rules.matching("https://example.org", "GET", "x-a, x-b");
        let again = cors::Configuration::from_xml(rules.to_xml().as_bytes());
        assert_eq!(again.map(|again| again.rules.len()), Ok(rules.rules.len()));
    }
    if let Ok(rules) = lifecycle::Configuration::from_xml(data) {
        let tags = Tags::default();
        let candidate = lifecycle::Candidate {
            key: b"k",
            tags: &tags,
            size: 1,
            stored_s: 0,
            standing: lifecycle::Standing::Current,
        };
        let _ = (
            rules.evaluate(&candidate, i64::MAX),
            rules.expiry(&candidate),
        );
        let again = lifecycle::Configuration::from_xml(rules.to_xml().as_bytes());
        assert_eq!(again.map(|again| again.rules.len()), Ok(rules.rules.len()));
    }
    let _ = (xml::parse_versioning(data), xml::parse_create_bucket(data));
    let _ = (
        xml::parse_error(data),
        xml::parse_list_objects(data),
        xml::parse_list_parts(data),
    );
    let _ = (
        xml::parse_delete_result(data),
        xml::parse_list_uploads(data),
    );
    let _ = (xml::parse_list_buckets(data), xml::parse_copy_result(data));
    let _ = (
        xml::parse_initiate_result(data),
        xml::parse_complete_result(data),
    );
}

/// Bucket policies.
pub fn policy(data: &[u8]) {
    if let Ok(policy) = Policy::parse(data, "bucket") {
        let access = Access {
            principal: None,
            action: "s3:GetObject",
            resource: "bucket/key",
            context: &[("aws:SourceIp", "10.0.0.1"), ("s3:prefix", "a/")],
        };
        let allowed = policy.evaluate(&access) == Decision::Allow;
        assert!(!allowed || policy.may_allow(access.principal, access.action));
        let _ = policy.is_public();
        if let Some(denying) = denying_all(data) {
            assert_eq!(denying.evaluate(&access), Decision::Deny);
        }
    }
}

/// A policy of this bucket, and behind what it says a denial of everything; `None`: it would be too long.
fn denying_all(policy: &[u8]) -> Option<Policy> {
    let mut policy: Value = serde_json::from_slice(policy).expect("a policy is JSON");
    let denial = json!({
        "Effect": "Deny",
        "Principal": "*",
        "Action": "*",
        "Resource": "arn:aws:s3:::bucket*",
    });
    match &mut policy["Statement"] {
        Value::Array(statements) => statements.push(denial),
        only => *only = Value::from(vec![only.take(), denial]),
    }
    let policy = policy.to_string();
    let fits = policy.len() <= MAX_POLICY;
    fits.then(|| Policy::parse(policy.as_bytes(), "bucket").expect("a policy still"))
}

/// Targets, hosts, queries, copy sources, entity tags, tag headers.
pub fn uri(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(target) = uri::parse_target(text) {
        let _ = uri::Query::parse(target.query);
        let host = target.host.or(Some("bucket.localhost"));
        for host in [host, None] {
            if let Ok(resource) = uri::parse_resource(target.path, host, &["localhost"])
                && let (Some(bucket), Some(key)) = (resource.bucket(), resource.key())
            {
                assert!(!key.is_empty() && key.len() <= uri::MAX_KEY && !key.contains('\0'));
                let path = uri::encode_path("b", Some(key));
                let again = uri::parse_resource(&path, None, &[]);
                assert_eq!(again.as_ref().ok().and_then(uri::Resource::key), Some(key));
                let _ = uri::check_bucket_name(bucket);
            }
        }
    }
    let _ = uri::parse_copy_source(text);
    let _ = uri::parse_entity_tags(text).matches_strongly(text);
    if let Ok(tags) = Tags::parse_header(text) {
        assert_eq!(Tags::parse_header(&tags.to_header()), Ok(tags));
    }
}

/// `Range` and `x-amz-copy-source-range`.
pub fn range(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for size in [0, 1, 1000, u64::MAX] {
        if let Some(Ok(range)) = uri::parse_range(text).map(|range| range.resolve(size)) {
            assert!(range.start < range.end && range.end <= size);
        }
    }
    if let Ok(range) = uri::parse_copy_range(text) {
        assert!(range.start < range.end);
    }
}

/// Dates of HTTP, ISO 8601, and signatures.
pub fn dates(data: &[u8]) {
    if let Some(unix_s) = date::parse_basic(data) {
        assert_eq!(date::parse_basic(&date::basic(unix_s)), Some(unix_s));
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(unix_s) = date::parse_http_date(text) {
        assert_eq!(
            date::parse_http_date(&date::http_date(unix_s)),
            Some(unix_s)
        );
    }
    if let Some(Ok(unix_s)) = date::parse_iso8601(text).map(u64::try_from) {
        let again = date::parse_iso8601(&date::iso8601(unix_s * 1000));
        assert_eq!(again, i64::try_from(unix_s).ok());
    }
}

/// Values of checksum headers, and their names.
pub fn checksums(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for algorithm in Algorithm::ALL {
        let value = Checksum::parse(algorithm, text);
        if let Some(value) = value {
            assert_eq!(value.as_bytes().len(), algorithm.length());
            assert_eq!(Checksum::parse(algorithm, &value.to_base64()), Some(value));
        }
        match checksum::parse_composite(algorithm, text) {
            Some((of_parts, Some(parts))) => {
                let again = checksum::composite_text(&of_parts, parts);
                let again = checksum::parse_composite(algorithm, &again);
                assert_eq!(again, Some((of_parts, Some(parts))));
            }
            Some((whole, None)) => assert_eq!(value, Some(whole)),
            None => assert_eq!(value, None),
        }
    }
    if let Some(md5) = checksum::parse_content_md5(text) {
        let again = checksum::encode_base64(&md5);
        assert_eq!(checksum::parse_content_md5(&again), Some(md5));
    }
    let named = Algorithm::from_header(text);
    assert!(named.is_none_or(|named| named.header() == text));
    let named = Algorithm::parse(text);
    assert!(named.is_none_or(|named| named.as_str().eq_ignore_ascii_case(text)));
    let _ = (ChecksumType::parse(text), Algorithm::from_element(text));
}
