//! The published examples of "Authenticating Requests (AWS Signature Version 4)", and forgeries.

use super::*;
use crate::{hex, s3::sigv4};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const NOW_S: i64 = 1_369_353_600;
const HOST: &str = "examplebucket.s3.amazonaws.com";

fn key() -> SigningKey {
    SigningKey::derive(SECRET, "20130524", "us-east-1", "s3")
}

struct Example {
    method: &'static str,
    path: &'static str,
    query: &'static str,
    headers: &'static [(&'static str, &'static str)],
    signed: &'static str,
    signature: &'static str,
}

const EXAMPLES: [Example; 4] = [
    Example {
        method: "GET",
        path: "/test.txt",
        query: "",
        headers: &[
            ("host", HOST),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY_SHA256),
            ("x-amz-date", "20130524T000000Z"),
        ],
        signed: "host;range;x-amz-content-sha256;x-amz-date",
        signature: "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    },
    Example {
        method: "PUT",
        path: "/test$file.text",
        query: "",
        headers: &[
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("host", HOST),
            (
                "x-amz-content-sha256",
                "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            ),
            ("x-amz-date", "20130524T000000Z"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ],
        signed: "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        signature: "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    },
    Example {
        method: "GET",
        path: "/",
        query: "lifecycle",
        headers: &[
            ("host", HOST),
            ("x-amz-content-sha256", EMPTY_SHA256),
            ("x-amz-date", "20130524T000000Z"),
        ],
        signed: "host;x-amz-content-sha256;x-amz-date",
        signature: "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    },
    Example {
        method: "GET",
        path: "/",
        query: "max-keys=2&prefix=J",
        headers: &[
            ("host", HOST),
            ("x-amz-content-sha256", EMPTY_SHA256),
            ("x-amz-date", "20130524T000000Z"),
        ],
        signed: "host;x-amz-content-sha256;x-amz-date",
        signature: "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    },
];

impl Example {
    fn request(&self) -> Request<'_, [(&'static str, &'static str)]> {
        Request {
            method: self.method,
            path: self.path,
            query: self.query,
            headers: self.headers,
        }
    }

    fn header(&self) -> String {
        format!(
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders={},Signature={}",
            self.signed, self.signature
        )
    }
}

#[test]
fn published_header_examples_verify_and_are_what_we_sign() {
    for example in &EXAMPLES {
        let header = example.header();
        let claim = parse_authorization(&header).expect("published header");
        let verified =
            verify(&example.request(), &claim, &key(), NOW_S).expect("published signature");
        assert_eq!(verified.date.as_str(), "20130524T000000Z");
        let payload = example
            .request()
            .headers
            .first_value("x-amz-content-sha256")
            .expect("hash");
        let date = AmzDate::from_unix_s(NOW_S);
        let scope = CredentialScope::new("AKIAIOSFODNN7EXAMPLE", &date, "us-east-1");
        let signature = sign(
            &example.request(),
            example.signed,
            &payload,
            &date,
            &scope,
            &key(),
        );
        assert_eq!(hex::encode(&signature), example.signature);
        assert_eq!(
            authorization_header(&scope, example.signed, &signature),
            header
        );
    }
}

#[test]
fn every_change_to_a_signed_request_is_noticed() {
    let example = &EXAMPLES[3];
    let header = example.header();
    let claim = parse_authorization(&header).expect("published header");
    let refused = |request: Request<'_, [(&str, &str)]>| verify(&request, &claim, &key(), NOW_S);
    let good = example.request();
    assert!(refused(good).is_ok());
    let mismatch = Err(AuthError::SignatureDoesNotMatch);
    assert_eq!(
        refused(Request {
            method: "HEAD",
            ..good
        }),
        mismatch
    );
    assert_eq!(refused(Request { path: "//", ..good }), mismatch);
    assert_eq!(
        refused(Request {
            path: "/a/..",
            ..good
        }),
        mismatch
    );
    assert_eq!(
        refused(Request {
            query: "max-keys=3&prefix=J",
            ..good
        }),
        mismatch
    );
    assert_eq!(
        refused(Request {
            query: "max-keys=2&prefix=J&x",
            ..good
        }),
        mismatch
    );
    assert!(
        refused(Request {
            query: "prefix=%4A&max-keys=2",
            ..good
        })
        .is_ok()
    );
    let mut added = example.headers.to_vec();
    added.push(("x-amz-acl", "public-read"));
    assert_eq!(
        refused(Request {
            headers: &added,
            ..good
        }),
        Err(AuthError::HeadersNotSigned)
    );
    let mut claim = claim.clone();
    claim.signature[31] ^= 1;
    assert_eq!(verify(&good, &claim, &key(), NOW_S), mismatch);
    let other = SigningKey::derive("other", "20130524", "us-east-1", "s3");
    let claim = parse_authorization(&header).expect("published header");
    assert_eq!(verify(&good, &claim, &other, NOW_S), mismatch);
}

#[test]
fn clocks_may_differ_by_fifteen_minutes() {
    let example = &EXAMPLES[0];
    let header = example.header();
    let claim = parse_authorization(&header).expect("published header");
    for (now_s, expected) in [
        (NOW_S - MAX_SKEW_S, true),
        (NOW_S + MAX_SKEW_S, true),
        (NOW_S - MAX_SKEW_S - 1, false),
        (NOW_S + MAX_SKEW_S + 1, false),
        (i64::MIN, false),
    ] {
        let outcome = verify(&example.request(), &claim, &key(), now_s);
        assert_eq!(outcome.is_ok(), expected, "{now_s}: {outcome:?}");
    }
}

const PRESIGNED: &str = "X-Amz-Algorithm=AWS4-HMAC-SHA256\
    &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
    &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
    &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";

#[test]
fn published_presigned_example() {
    let headers: &[(&str, &str)] = &[("host", HOST)];
    let request = Request {
        method: "GET",
        path: "/test.txt",
        query: PRESIGNED,
        headers,
    };
    let claim = authorization(None, PRESIGNED)
        .expect("well formed")
        .expect("not anonymous");
    let verified = verify(&request, &claim, &key(), NOW_S + 86_400).expect("valid to the end");
    assert_eq!(verified.payload, Payload::Unsigned);
    let named: &[(&str, &str)] = &[("host", HOST), ("x-amz-user-agent", "a")];
    assert!(
        verify(
            &Request {
                headers: named,
                ..request
            },
            &claim,
            &key(),
            NOW_S
        )
        .is_ok()
    );
    assert_eq!(
        verify(&request, &claim, &key(), NOW_S + 86_401),
        Err(AuthError::Expired)
    );
    assert_eq!(
        verify(&request, &claim, &key(), NOW_S - 901),
        Err(AuthError::NotYetValid)
    );

    let date = AmzDate::from_unix_s(NOW_S);
    let scope = CredentialScope::new("AKIAIOSFODNN7EXAMPLE", &date, "us-east-1");
    let unsigned = Request {
        query: "",
        ..request
    };
    assert_eq!(
        presign(&unsigned, "host", &date, 86_400, &scope, &key()),
        PRESIGNED
    );
}

#[test]
fn presigned_queries_are_checked_field_by_field() {
    for (from, to) in [
        ("X-Amz-Expires=86400", "X-Amz-Expires=0"),
        ("X-Amz-Expires=86400", "X-Amz-Expires=604801"),
        ("X-Amz-Expires=86400", "X-Amz-Expires=-1"),
        ("X-Amz-Expires=86400", "X-Amz-Expires=+1"),
        ("&X-Amz-Expires=86400", ""),
        ("X-Amz-Date=20130524T000000Z", "X-Amz-Date=20130532T000000Z"),
        ("us-east-1%2Fs3%2Faws4_request", "us-east-1%2Fs3"),
        ("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=Host"),
        ("X-Amz-Signature=aeee", "X-Amz-Signature=aee"),
        (
            "X-Amz-SignedHeaders=host",
            "X-Amz-SignedHeaders=host&X-Amz-Expires=7",
        ),
    ] {
        let query = PRESIGNED.replace(from, to);
        assert!(
            matches!(parse_presigned(&query), Err(AuthError::MalformedQuery(_))),
            "{from} -> {to}"
        );
    }
    let header = EXAMPLES[0].header();
    assert_eq!(
        authorization(Some(&header), PRESIGNED),
        Err(AuthError::TwoMechanisms)
    );
    assert_eq!(
        authorization(None, "AWSAccessKeyId=a&Signature=b"),
        Err(AuthError::UnsupportedAlgorithm)
    );
    assert_eq!(authorization(None, "prefix=a"), Ok(None));
}

#[test]
fn malformed_headers_are_named() {
    let good = EXAMPLES[0].header();
    for header in [
        "",
        "AWS4-HMAC-SHA256",
        "AWS AKID:signature",
        "AWS4-ECDSA-P256-SHA256 Credential=a",
        &good.replace("Credential=", "Cred="),
        &good.replace("/aws4_request", ""),
        &good.replace("20130524/", "2013052/"),
        &good.replace("host;range", "range;host"),
        &good.replace("host;range", "host;host;range"),
        &good.replace("f0e8", "g0e8"),
        &good.replace(",Signature", ",Signature=0,Signature"),
        &good.repeat(60),
    ] {
        assert!(parse_authorization(header).is_err(), "{header}");
    }
    let spaced = good.replace(",S", ", S");
    assert!(parse_authorization(&spaced).is_ok());
    let slashed = good.replace("AKIAIOSFODNN7EXAMPLE", "A/B");
    assert_eq!(
        parse_authorization(&slashed)
            .expect("slash")
            .scope
            .access_key,
        "A/B"
    );
}

#[test]
fn a_path_signed_as_sent_is_accepted_only_as_sent() {
    let headers: &[(&str, &str)] = &[
        ("host", HOST),
        ("x-amz-content-sha256", UNSIGNED_PAYLOAD),
        ("x-amz-date", "20130524T000000Z"),
    ];
    let request = Request {
        method: "GET",
        path: "/a(b)//../c",
        query: "",
        headers,
    };
    let date = AmzDate::from_unix_s(NOW_S);
    let scope = CredentialScope::new("A", &date, "us-east-1");
    let signed = "host;x-amz-content-sha256;x-amz-date";
    let hash = canonical::hash(
        &request,
        signed,
        UNSIGNED_PAYLOAD,
        canonical::PathForm::AsSent,
    );
    let claim = Authorization {
        signature: key().sign_request(&date, &scope, &hash),
        scope: scope.clone(),
        signed_headers: signed.into(),
        presigned: None,
    };
    assert!(verify(&request, &claim, &key(), NOW_S).is_ok());
    let encoded = Request {
        path: "/a%28b%29//../c",
        ..request
    };
    assert!(verify(&encoded, &claim, &key(), NOW_S).is_err());
    let canonical = Authorization {
        signature: sign(&request, signed, UNSIGNED_PAYLOAD, &date, &scope, &key()),
        ..claim
    };
    assert!(sigv4::verify(&encoded, &canonical, &key(), NOW_S).is_ok());
    assert!(sigv4::verify(&request, &canonical, &key(), NOW_S).is_ok());
}
