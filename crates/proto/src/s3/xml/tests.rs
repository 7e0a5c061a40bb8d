//! Round trips between emitters and readers, legality of what is written, hostile documents.

use proptest::prelude::*;

use super::*;
use crate::s3::{
    checksum::{Algorithm, ChecksumType, checksum},
    error::{ErrorCode, S3Error},
};

const OWNER: Owner<'_> = Owner {
    id: "o-1",
    display_name: "a & b",
};

fn entry(key: &[u8]) -> ObjectEntry<'_> {
    ObjectEntry {
        key,
        last_modified_ms: 1_255_369_830_000,
        etag: "abc",
        size: 5,
        checksum: Some((Algorithm::Crc32, ChecksumType::FullObject)),
        owner: Some(OWNER),
    }
}

/// Whether every character of a document may stand in XML 1.0, references included.
fn legal(document: &str) -> bool {
    document.chars().all(|c| {
        matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
    })
}

#[test]
fn a_v2_listing_is_what_s3_writes() {
    let listing = Listing {
        bucket: "bucket",
        prefix: b"a/",
        delimiter: Some(b"/"),
        max_keys: 1000,
        contents: vec![ObjectEntry {
            owner: None,
            checksum: None,
            ..entry(b"a/b<c")
        }],
        common_prefixes: vec![b"a/d/"],
        ..Listing::default()
    };
    assert_eq!(
        list_objects_v2(&listing),
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bucket</Name>\
         <Prefix>a/</Prefix><KeyCount>2</KeyCount><MaxKeys>1000</MaxKeys><Delimiter>/</Delimiter>\
         <IsTruncated>false</IsTruncated><Contents><Key>a/b&lt;c</Key>\
         <LastModified>2009-10-12T17:50:30.000Z</LastModified><ETag>&quot;abc&quot;</ETag>\
         <Size>5</Size><StorageClass>STANDARD</StorageClass></Contents>\
         <CommonPrefixes><Prefix>a/d/</Prefix></CommonPrefixes></ListBucketResult>"
    );
}

#[test]
fn errors_are_documents() {
    let error = S3Error::new(ErrorCode::NoSuchKey).field("Key", "a<b");
    let document = error.to_xml("/b/a<b", "REQ");
    assert!(document.contains("<Code>NoSuchKey</Code>"));
    assert!(document.contains("<Key>a&lt;b</Key><Resource>/b/a&lt;b</Resource>"));
    let (code, message) = parse_error(document.as_bytes()).expect("own document");
    assert_eq!(ErrorCode::from_wire(&code), Some(ErrorCode::NoSuchKey));
    assert_eq!(message, error.message());
    for code in ErrorCode::ALL {
        assert!(
            (300..600).contains(&code.status()) && !code.message().is_empty(),
            "{code}"
        );
    }
}

#[test]
fn versions_parts_uploads_and_attributes_are_well_formed() {
    let versions = list_versions(&VersionListing {
        bucket: "b",
        next: Some((b"k", "v2")),
        versions: vec![
            VersionEntry {
                object: entry(b"k\x01"),
                version_id: "v1",
                is_latest: true,
                is_delete_marker: true,
            },
            VersionEntry {
                object: entry(b"k"),
                version_id: "v0",
                is_latest: false,
                is_delete_marker: false,
            },
        ],
        ..VersionListing::default()
    });
    assert!(versions.contains("<DeleteMarker><Key>k\u{fffd}</Key><VersionId>v1</VersionId>"));
    let part = PartEntry {
        number: 1,
        last_modified_ms: 0,
        etag: "e",
        size: 5,
        checksum: Some(checksum(Algorithm::Crc32, b"12345")),
    };
    let parts = list_parts(&PartListing {
        bucket: "b",
        key: b"k",
        upload_id: "u",
        owner: OWNER,
        part_number_marker: 0,
        next_part_number_marker: Some(1),
        max_parts: 1,
        encode_url: false,
        checksum: Some((Algorithm::Crc32, ChecksumType::Composite)),
        parts: vec![part.clone()],
    });
    let reply = parse_list_parts(parts.as_bytes()).expect("own document");
    assert_eq!(reply.parts, [(1, 5, "e".to_owned())]);
    assert_eq!(reply.next_part_number_marker, Some(1));
    let uploads = list_multipart_uploads(&UploadListing {
        bucket: "b",
        encode_url: true,
        uploads: vec![UploadEntry {
            key: b"a b",
            upload_id: "u",
            owner: OWNER,
            initiated_ms: 1000,
            checksum: None,
        }],
        ..UploadListing::default()
    });
    let reply = parse_list_uploads(uploads.as_bytes()).expect("own document");
    assert_eq!(
        reply,
        [ListedUpload {
            key: "a b".into(),
            upload_id: "u".into(),
            initiated_s: 1
        }]
    );
    let attributes = object_attributes(&ObjectAttributes {
        etag: Some("e"),
        size: Some(5),
        storage_class: true,
        checksum: Some((Algorithm::Crc32, "AAAAAA==", ChecksumType::FullObject)),
        parts: Some(AttributeParts {
            total: 1,
            max_parts: 1000,
            parts: vec![part],
            ..Default::default()
        }),
    });
    let documents = [
        (versions.as_str(), "ListVersionsResult"),
        (&attributes, "GetObjectAttributesResponse"),
        (&access_control_policy(&OWNER), "AccessControlPolicy"),
        (&bucket_location("eu<west"), "LocationConstraint"),
        (&versioning(None), "VersioningConfiguration"),
    ]
    .map(|(document, root)| (document.to_owned(), root));
    for (document, root) in documents {
        assert!(legal(&document), "{document}");
        if root != "LocationConstraint" {
            let mut scanner = Scanner::root(document.as_bytes(), root).expect("root");
            while scanner.child().expect("children").is_some() {
                scanner.skip().expect("well formed");
            }
            scanner.finish().expect("one root");
        }
    }
}

#[test]
fn small_replies_round_trip() {
    let document = initiate_multipart_upload_result("b", b"k", "u-1");
    assert_eq!(
        parse_initiate_result(document.as_bytes()).as_deref(),
        Ok("u-1")
    );
    let document = complete_multipart_upload_result(&CompletedUpload {
        location: "http://h/b/k",
        bucket: "b",
        key: b"k",
        etag: "e-2",
        checksum: Some((Algorithm::Crc32, "AAAAAA==-2", ChecksumType::Composite)),
    });
    assert_eq!(
        parse_complete_result(document.as_bytes()).as_deref(),
        Ok("e-2")
    );
    for kind in [CopyKind::Object, CopyKind::Part] {
        let document = copy_result(kind, "e", 0, None);
        assert_eq!(parse_copy_result(document.as_bytes()).as_deref(), Ok("e"));
    }
    let buckets = [Bucket {
        name: "a",
        created_ms: 5000,
        region: None,
    }];
    let document = list_all_my_buckets(&OWNER, buckets, None, None);
    assert_eq!(
        parse_list_buckets(document.as_bytes()),
        Ok(vec![("a".to_owned(), 5)])
    );
    let outcomes = [
        DeleteOutcome {
            key: "a&b",
            version_id: None,
            result: Ok(Some("m")),
        },
        DeleteOutcome {
            key: "c",
            version_id: Some("v"),
            result: Err(ErrorCode::AccessDenied.into()),
        },
    ];
    let reply = parse_delete_result(delete_result(&outcomes, false).as_bytes()).expect("own");
    assert_eq!(reply.deleted, ["a&b"]);
    assert_eq!(reply.errors[0].1, "AccessDenied");
    let quiet = parse_delete_result(delete_result(&outcomes, true).as_bytes()).expect("own");
    assert!(quiet.deleted.is_empty() && quiet.errors.len() == 1);
    for status in [VersioningStatus::Enabled, VersioningStatus::Suspended] {
        assert_eq!(
            parse_versioning(versioning(Some(status)).as_bytes()),
            Ok(status)
        );
    }
}

#[test]
fn what_a_new_bucket_is_to_be() {
    let parse = |inner: &str| {
        let body =
            format!("<CreateBucketConfiguration xmlns='x'>{inner}</CreateBucketConfiguration>");
        parse_create_bucket(body.as_bytes())
    };
    assert_eq!(parse_create_bucket(b" "), Ok(NewBucket::default()));
    let location = "<LocationConstraint>eu</LocationConstraint>";
    let there = parse(location).expect("a region");
    assert_eq!(there.location.as_deref(), Some("eu"));
    assert!(there.tags.is_empty());
    let tag = |key: usize| format!("<Tag><Key>k{key}</Key><Value>v</Value></Tag>");
    let tags = |count: usize| format!("<Tags>{}</Tags>", (0..count).map(tag).collect::<String>());
    let tagged = parse(&format!("{location}{}", tags(50))).expect("50 tags");
    assert_eq!((tagged.tags.len(), tagged.tags.get("k7")), (50, Some("v")));
    let twice = tag(1).repeat(2);
    for (inner, code) in [
        (tags(51), ErrorCode::BadRequest),
        (tags(52), ErrorCode::MalformedXML),
        (format!("<Tags>{twice}</Tags>"), ErrorCode::InvalidTag),
        (tags(1).repeat(2), ErrorCode::MalformedXML),
        (location.repeat(2), ErrorCode::MalformedXML),
        (
            "<Location><Name>use1-az4</Name><Type>AvailabilityZone</Type></Location>".into(),
            ErrorCode::NotImplemented,
        ),
        (
            "<Bucket><DataRedundancy>SingleAvailabilityZone</DataRedundancy><Type>Directory</Type></Bucket>".into(),
            ErrorCode::NotImplemented,
        ),
    ] {
        assert_eq!(parse(&inner).map_err(|error| error.code), Err(code), "{inner}");
    }
}

#[test]
fn complete_bodies_are_checked() {
    let part = |number| CompletedPart {
        number,
        etag: "e".into(),
        checksum: Some(checksum(Algorithm::Sha1, b"")),
    };
    let parts = [part(1), part(3)];
    let body = complete_multipart_upload_body(&parts);
    assert_eq!(
        parse_complete_multipart_upload(body.as_bytes()).as_deref(),
        Ok(&parts[..])
    );
    assert!(check_part_order(&parts).is_ok());
    for wrong in [[part(2), part(2)], [part(2), part(1)]] {
        let error = check_part_order(&wrong).expect_err("order");
        assert_eq!(error.code, ErrorCode::InvalidPartOrder);
    }
    let code = |body: &str| parse_complete_multipart_upload(body.as_bytes()).map_err(|e| e.code);
    let wrap = |part: &str| {
        format!("<CompleteMultipartUpload><Part>{part}</Part></CompleteMultipartUpload>")
    };
    for (inner, expected) in [
        (
            "<PartNumber>0</PartNumber><ETag>e</ETag>",
            ErrorCode::InvalidArgument,
        ),
        (
            "<PartNumber>10001</PartNumber><ETag>e</ETag>",
            ErrorCode::InvalidArgument,
        ),
        (
            "<PartNumber>-1</PartNumber><ETag>e</ETag>",
            ErrorCode::MalformedXML,
        ),
        (
            "<PartNumber>99999999999</PartNumber><ETag>e</ETag>",
            ErrorCode::MalformedXML,
        ),
        ("<PartNumber>1</PartNumber>", ErrorCode::MalformedXML),
        (
            "<PartNumber>1</PartNumber><PartNumber>2</PartNumber><ETag>e</ETag>",
            ErrorCode::MalformedXML,
        ),
        (
            "<PartNumber>1</PartNumber><ETag>e</ETag><ChecksumCRC32>A</ChecksumCRC32>",
            ErrorCode::InvalidRequest,
        ),
    ] {
        assert_eq!(code(&wrap(inner)), Err(expected), "{inner}");
    }
    assert_eq!(
        code("<CompleteMultipartUpload/>"),
        Err(ErrorCode::MalformedXML)
    );
    let many = "<Part><PartNumber>1</PartNumber><ETag>e</ETag></Part>".repeat(10_001);
    assert_eq!(
        code(&format!(
            "<CompleteMultipartUpload>{many}</CompleteMultipartUpload>"
        )),
        Err(ErrorCode::MalformedXML)
    );
}

#[test]
fn bombs_and_wrecks_are_refused() {
    let deep = format!("<Delete>{}", "<Object>".repeat(100_000));
    let skipped = format!(
        "<InitiateMultipartUploadResult><UploadId>u</UploadId>{}{}</InitiateMultipartUploadResult>",
        "<a>".repeat(40),
        "</a>".repeat(40)
    );
    let long = format!("<Delete>{}</Delete>", " ".repeat(MAX_BODY));
    let bomb = "<!DOCTYPE d [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><Delete><Object><Key>&b;\
        </Key></Object></Delete>";
    for body in [
        bomb,
        "<Delete><Object><Key>&b;</Key></Object></Delete>",
        "<Delete><Object><Key>&#0;</Key></Object></Delete>",
        "<Delete><Object><Key>&#xD800;</Key></Object></Delete>",
        "<?php x?><Delete><Object><Key>k</Key></Object></Delete>",
        "<Delete><Object><Key>k</Key></Object></Delete><x/>",
        "<Delete><Object><Key>k</Key></Object>",
        "<Delete><Object><Key>k</Object></Key></Delete>",
        "<Delete><Object><Key><b/></Key></Object></Delete>",
        "<Delete>text<Object><Key>k</Key></Object></Delete>",
        "<Delete/>",
        "<Other/>",
        "</Delete>",
        "",
        "<",
        &deep,
        &long,
    ] {
        assert!(
            parse_delete(body.as_bytes()).is_err(),
            "{}",
            &body[..body.len().min(80)]
        );
    }
    assert!(parse_initiate_result(skipped.as_bytes()).is_err());
    assert!(parse_delete(b"<Delete><Object><Key>\xff</Key></Object></Delete>").is_err());
    let object = "<Object><Key>k</Key></Object>";
    let delete = |count: usize| {
        parse_delete(format!("<Delete>{}</Delete>", object.repeat(count)).as_bytes())
    };
    assert_eq!(delete(1000).map(|request| request.objects.len()), Ok(1000));
    assert!(delete(1001).is_err());
}

proptest! {
    #[test]
    fn listed_keys_come_back(keys in proptest::collection::vec("\\PC{1,20}|[\u{1}-\u{7f}]{1,9}", 1..5)) {
        let listing = |encode_url| Listing {
            encode_url,
            is_truncated: true,
            contents: keys.iter().map(|key| entry(key.as_bytes())).collect(),
            common_prefixes: keys.iter().map(|key| key.as_bytes()).collect(),
            ..Listing::default()
        };
        for document in [list_objects_v1(&listing(true)), list_objects_v2(&listing(true))] {
            prop_assert!(legal(&document));
            let reply = parse_list_objects(document.as_bytes()).expect("own document");
            let found: Vec<&String> = reply.objects.iter().map(|object| &object.key).collect();
            prop_assert_eq!(found, keys.iter().collect::<Vec<_>>());
            prop_assert_eq!(&reply.common_prefixes, &keys);
        }
        let plain = list_objects_v2(&listing(false));
        prop_assert!(legal(&plain));
        prop_assert!(parse_list_objects(plain.as_bytes()).is_ok());
    }

    #[test]
    fn deletes_round_trip(keys in proptest::collection::vec("\\PC{0,20}", 1..9), quiet in any::<bool>()) {
        let body = delete_body(keys.iter().map(|key| (key.as_str(), None)), quiet);
        let request = parse_delete(body.as_bytes()).expect("own document");
        prop_assert_eq!(request.quiet, quiet);
        let found: Vec<String> = request.objects.into_iter().map(|object| object.key).collect();
        prop_assert_eq!(found, keys);
    }

    #[test]
    fn no_document_panics(body in "[<>/&;#x0-9a-zA-Z!\\[\\]? \"=-]{0,80}") {
        let wrapped = format!("<Delete><Object><Key>{body}</Key></Object></Delete>");
        let _ = (parse_delete(body.as_bytes()), parse_delete(wrapped.as_bytes()));
    }
}

#[test]
fn functions_are_asked_for_in_words_or_bytes() {
    let request = ExecuteRequest {
        module: ExecuteModule::Name("lines".to_owned()),
        function: Some("grep".to_owned()),
        arguments: b"-c\0a<b\0".to_vec(),
        inputs: vec![ExecuteInput {
            bucket: Some("logs".to_owned()),
            key: "a&b".to_owned(),
            version_id: None,
            range: Some("bytes=0-9".to_owned()),
        }],
        output: Some(ExecuteOutput {
            bucket: None,
            key: "found".to_owned(),
            content_type: Some("text/plain".to_owned()),
        }),
        capacity: Some(7),
        deadline_ms: Some(500),
    };
    assert_eq!(
        parse_execute(execute_body(&request).as_bytes()),
        Ok(request.clone())
    );
    let words = "<ExecuteRequest><Operation>9</Operation><Argument>-c</Argument><Argument>a&lt;b</Argument></ExecuteRequest>";
    let words = parse_execute(words.as_bytes()).expect("a request");
    assert_eq!(
        (words.module, words.arguments),
        (ExecuteModule::Number(9), request.arguments)
    );
    let document = execute_result("b", "k<", "tag", 9);
    assert!(document.contains("<Key>k&lt;</Key>") && document.contains("<Size>9</Size>"));
}
