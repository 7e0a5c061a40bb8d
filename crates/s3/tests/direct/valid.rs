//! What is served: V of section 8.

use forebay_proto::s3::checksum::{Algorithm, checksum};
use forebay_proto::s3::sigv4::{self, AmzDate, CredentialScope, SigningKey};
use forebay_proto::token::ort1::{Flags, Promise, Segment, Segments, Slot};

use crate::gated::At;
use crate::rig::*;
use crate::support::{ALPHA, Ask, HOST, REGION, Sign};

/// Around a page, around an iWARP segment, around several buffers.
const SIZES: [usize; 9] = [
    1,
    4095,
    4096,
    4097,
    65_519,
    65_520,
    65_521,
    1 << 20,
    (4 << 20) + 1,
];

#[tokio::test]
async fn v1_v2_puts_and_gets_of_every_size() {
    for way in WAYS {
        let rig = Rig::open().await;
        let peer = rig.peer(ALPHA, way).await;
        for size in SIZES {
            let data = pattern(size);
            peer.fill(100, &data);
            let put = rig.put(&peer, "/bucket/key", 100, size as u64).await;
            served(&put, 200, size as u64);
            let got = rig.server.get("/bucket/key").await;
            assert_eq!(
                (got.etag(), &got.body),
                (put.etag(), &data),
                "{way:?} {size}"
            );

            peer.fill(0, &vec![UNTOUCHED; MEMORY]);
            let got = rig.get(&peer, "/bucket/key", 7, size as u64).await;
            served(&got, 200, size as u64);
            assert_eq!(got.etag(), put.etag());
            assert_eq!(peer.bytes(7, size), data, "{way:?} {size}");
            peer.untouched_but(7, size);
        }
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn v3_ranges_and_parts() {
    for way in WAYS {
        let rig = Rig::open().await;
        let peer = rig.peer(ALPHA, way).await;
        let data = pattern(100_000);
        rig.server.put("/bucket/key", &data).await;
        for (range, from, to) in [
            ("bytes=10-19", 10, 20),
            ("bytes=-5", 99_995, 100_000),
            ("bytes=0-", 0, 100_000),
            ("bytes=99999-200000", 99_999, 100_000),
        ] {
            let ask = Ask::new("GET", "/bucket/key").header("range", range);
            let answer = rig.send(&peer, ask, 0, 200_000).await;
            served(&answer, 206, (to - from) as u64);
            let told = format!("bytes {from}-{}/100000", to - 1);
            assert_eq!(answer.header("content-range"), Some(told.as_str()));
            assert_eq!(peer.bytes(0, to - from), data[from..to], "{way:?} {range}");
        }
        let part = rig.get(&peer, "/bucket/key?partNumber=1", 0, 200_000).await;
        served(&part, 206, 100_000);
        let ask = Ask::new("GET", "/bucket/key").header("range", "bytes=100000-");
        refused(&rig.send(&peer, ask, 0, 1).await, 416, "InvalidRange");
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn v5_segments_are_filled_and_read_in_order() {
    for way in WAYS {
        let rig = Rig::open().await;
        let peer = rig.peer(ALPHA, way).await;
        let data = pattern(3_000_000);
        rig.server.put("/bucket/key", &data).await;
        let ask = Ask::new("GET", "/bucket/key");
        let mut token = peer.token(&ask, rig.server.now_ms(), 5_000_000, 1_000_000);
        let segment = |address, length| Segment {
            address,
            length,
            remote_key: peer.stag.0,
        };
        token.segments = Segments::new(&[segment(1000, 1), segment(2_000_000, 1_999_999)]).unwrap();
        let answer = rig.server.ask(ALPHA, peer.carry(ask, &token)).await;
        served(&answer, 200, 3_000_000);
        let landed = [
            peer.bytes(5_000_000, 1_000_000),
            peer.bytes(1000, 1),
            peer.bytes(2_000_000, 1_999_999),
        ];
        assert_eq!(landed.concat(), data);

        let ask = Ask::new("PUT", "/bucket/back");
        let mut back = peer.token(&ask, rig.server.now_ms(), 5_000_000, 1_000_000);
        back.segments = token.segments;
        let answer = rig.server.ask(ALPHA, peer.carry(ask, &back)).await;
        served(&answer, 200, 3_000_000);
        assert_eq!(rig.server.get("/bucket/back").await.body, data);
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn v6_v13_v15_spellings_that_are_accepted() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    peer.fill(0, b"payload");
    let ask = Ask::new("PUT", "/bucket/semicolon");
    let token = peer.token(&ask, rig.server.now_ms(), 0, 7);
    let text = format!("{};", peer.seal(&ask, &token));
    let ask = ask.header("x-amz-rdma-token", &text).sign(Sign::Unsigned);
    served(&rig.server.ask(ALPHA, ask).await, 200, 7);

    let ask = Ask::new("PUT", "/bucket/hashed").header("x-amz-rdma-agent", "cuobj");
    let token = peer.token(&ask, rig.server.now_ms(), 0, 7);
    let ask = peer.carry(ask, &token).sign(Sign::Hash);
    let answer = rig.server.ask(ALPHA, ask).await;
    served(&answer, 200, 7);
    assert_eq!(answer.header("x-amz-rdma-agent"), Some("cuobj"));
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn v7_parts_with_tokens_and_with_bodies() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    let begun = rig
        .server
        .ask(ALPHA, Ask::new("POST", "/bucket/key?uploads="))
        .await;
    let id = begun.element("UploadId").unwrap();
    let first = pattern(5 << 20);
    peer.fill(0, &first);
    let target = format!("/bucket/key?partNumber=1&uploadId={id}");
    let one = rig.put(&peer, &target, 0, first.len() as u64).await;
    served(&one, 200, first.len() as u64);
    let target = format!("/bucket/key?partNumber=2&uploadId={id}");
    let two = rig.server.put(&target, b"tail").await;
    let part = |number, etag: &str| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    };
    let parts = [part(1, &one.etag()), part(2, &two.etag())].concat();
    let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let ask = Ask::new("POST", &format!("/bucket/key?uploadId={id}")).body(body);
    let done = rig.server.ask(ALPHA, ask).await;
    assert_eq!(done.status, 200, "{}", done.text());
    let whole = [&first[..], b"tail"].concat();
    let answer = rig.get(&peer, "/bucket/key", 0, MEMORY as u64).await;
    served(&answer, 200, whole.len() as u64);
    assert_eq!(peer.bytes(0, whole.len()), whole);
    let answer = rig.get(&peer, "/bucket/key?partNumber=2", 0, 100).await;
    served(&answer, 206, 4);
    assert_eq!(peer.bytes(0, 4), b"tail");
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn v14_checksums_right_and_wrong() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::File).await;
    let data = pattern(2_500_000);
    peer.fill(0, &data);
    for algorithm in Algorithm::ALL {
        let right = checksum(algorithm, &data).to_base64();
        let ask = Ask::new("PUT", "/bucket/key").header(algorithm.header(), &right);
        let answer = rig.send(&peer, ask, 0, data.len() as u64).await;
        served(&answer, 200, data.len() as u64);
        assert_eq!(answer.header(algorithm.header()), Some(right.as_str()));
        let wrong = checksum(algorithm, b"other").to_base64();
        let ask = Ask::new("PUT", "/bucket/wrong").header(algorithm.header(), &wrong);
        let answer = rig.send(&peer, ask, 0, data.len() as u64).await;
        refused(&answer, 400, "BadDigest");
        rig.server.get("/bucket/wrong").await.is(404, "NoSuchKey");
    }
    // The promise inside the token is a claim like a header's, and beside one of another kind.
    let crc32c = checksum(Algorithm::Crc32C, &data);
    let crc64 = checksum(Algorithm::Crc64Nvme, &data);
    let sha256 = checksum(Algorithm::Sha256, &data);
    let right = [
        Promise::Crc32C(crc32c.as_bytes().try_into().unwrap()),
        Promise::Crc64Nvme(crc64.as_bytes().try_into().unwrap()),
        Promise::Sha256(sha256.as_bytes().try_into().unwrap()),
    ];
    let wrong = [
        Promise::Crc32C([0; 4]),
        Promise::Crc64Nvme([0; 8]),
        Promise::Sha256([0; 32]),
    ];
    let header = crc32c.to_base64();
    for (promises, good) in [(right, true), (wrong, false)] {
        for (promise, header) in promises
            .iter()
            .flat_map(|p| [(p, None), (p, Some(&header))])
        {
            let mut ask = Ask::new("PUT", "/bucket/promised");
            if let Some(text) = header {
                ask = ask.header("x-amz-checksum-crc32c", text);
            }
            let mut token = peer.token(&ask, rig.server.now_ms(), 0, data.len() as u64);
            token.promise = Some(*promise);
            let answer = rig.server.ask(ALPHA, peer.carry(ask, &token)).await;
            match good {
                true => served(&answer, 200, data.len() as u64),
                false => refused(&answer, 400, "BadDigest"),
            }
        }
    }
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn v16_an_object_longer_than_the_window() {
    for way in WAYS {
        let rig = Rig::open().await;
        let peer = rig.peer(ALPHA, way).await;
        let data = pattern(3_000_000);
        rig.server.put("/bucket/key", &data).await;
        let ask = Ask::new("GET", "/bucket/key").header("x-amz-checksum-mode", "ENABLED");
        let answer = rig.send(&peer, ask, 4096, 1_500_001).await;
        served(&answer, 206, 1_500_001);
        assert_eq!(
            answer.header("content-range"),
            Some("bytes 0-1500000/3000000")
        );
        assert_eq!(answer.header("x-amz-checksum-crc64nvme"), None);
        assert_eq!(peer.bytes(4096, 1_500_001), data[..1_500_001]);
        peer.untouched_but(4096, 1_500_001);
        assert_eq!(answer.header("x-amz-rdma-checksum-crc64nvme"), None);
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn v17_an_empty_object() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/empty", b"").await;
    served(&rig.get(&peer, "/bucket/empty", 0, 10).await, 200, 0);
    peer.untouched_but(0, 0);
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn v18_operations_without_payload_ignore_the_header() {
    let rig = Rig::open().await;
    rig.server.put("/bucket/key", b"value").await;
    let token = "complete nonsense";
    let with = |method, target: &str| Ask::new(method, target).header("x-amz-rdma-token", token);
    let head = rig.server.ask(ALPHA, with("HEAD", "/bucket/key")).await;
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("5"))
    );
    assert_eq!(head.header("x-amz-rdma-reply"), None);
    let copy = with("PUT", "/bucket/copy").header("x-amz-copy-source", "/bucket/key");
    assert_eq!(rig.server.ask(ALPHA, copy).await.status, 200);
    assert_eq!(rig.server.get("/bucket/copy").await.body, b"value");
    let gone = rig.server.ask(ALPHA, with("DELETE", "/bucket/copy")).await;
    assert_eq!(gone.status, 204);
    let list = rig
        .server
        .ask(ALPHA, with("GET", "/bucket?list-type=2"))
        .await;
    assert_eq!(list.element("KeyCount").as_deref(), Some("1"));
    rig.finish().await;
}

#[tokio::test]
async fn v10_a_session_serves_many_objects_and_ends() {
    let rig = Rig::open().await;
    let answer = rig.server.ask(ALPHA, Rig::connect_request()).await;
    assert_eq!(answer.header("x-amz-rdma-protocol"), Some("ort1"));
    assert_eq!(answer.header("x-amz-rdma-transport"), Some("shm"));
    assert_eq!(answer.header("x-amz-rdma-uds"), Some(UDS));
    assert_eq!(
        answer.header("x-amz-rdma-limits"),
        Some("max=5368709120;inflight=64;idle=300;lease=50000")
    );
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    for name in ["a", "b", "c"] {
        peer.fill(0, name.as_bytes());
        served(
            &rig.put(&peer, &format!("/bucket/{name}"), 0, 1).await,
            200,
            1,
        );
    }
    let end = Ask::new("POST", "/.ort1/disconnect")
        .header("x-amz-rdma-session", &session_text(&peer.session));
    assert_eq!(rig.server.ask(ALPHA, end.clone()).await.status, 204);
    refused(
        &rig.get(&peer, "/bucket/a", 0, 1).await,
        403,
        "AccessDenied",
    );
    assert_eq!(rig.server.ask(ALPHA, end).await.status, 204, "always");
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn slots_apart_from_their_generation_and_device_marks() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/key", b"value").await;
    let slots = forebay_fabric::shm::REGIONS as u32;
    let apart = |slot: u32, generation: u32, remote_key: u32| {
        let ask = Ask::new("GET", "/bucket/key");
        let mut token = peer.token(&ask, rig.server.now_ms(), 0, 5);
        token.flags = Flags::OFFSET.with(Flags::ONE_SHOT);
        token.slot = Some(Slot { slot, generation });
        token.remote_key = remote_key;
        peer.carry(ask, &token)
    };
    let (slot, generation) = (peer.stag.0 % slots, peer.stag.0 / slots);
    let answer = rig.server.ask(ALPHA, apart(slot, generation, slot)).await;
    served(&answer, 200, 5);
    for (slot, generation, remote_key) in [
        (slots, generation, slots),
        (slot, generation, slot + 1),
        (slot, u32::MAX, slot),
    ] {
        let answer = rig
            .server
            .ask(ALPHA, apart(slot, generation, remote_key))
            .await;
        refused(&answer, 400, "InvalidRDMAToken");
    }
    // A slot that was used again is another one: nothing is there under the old generation.
    let answer = rig
        .server
        .ask(ALPHA, apart(slot, generation + 1, slot))
        .await;
    refused(&answer, 500, "RDMATransferFailed");
    drop(peer);
    rig.finish().await;
}

#[tokio::test]
async fn conditions_decide_before_any_byte_moves() {
    for way in WAYS {
        let rig = Rig::open().await;
        let peer = rig.peer(ALPHA, way).await;
        let etag = rig.server.put("/bucket/key", b"value").await.etag();
        let get = |name: &str, value: &str| Ask::new("GET", "/bucket/key").header(name, value);
        let answer = rig.send(&peer, get("if-match", "\"other\""), 0, 5).await;
        refused(&answer, 412, "PreconditionFailed");
        let answer = rig.send(&peer, get("if-none-match", &etag), 0, 5).await;
        assert_eq!(
            (answer.status, answer.header("x-amz-rdma-reply")),
            (304, Some("304"))
        );
        refused(
            &rig.get(&peer, "/bucket/none", 0, 5).await,
            404,
            "NoSuchKey",
        );
        peer.untouched_but(0, 0);
        served(&rig.send(&peer, get("if-match", &etag), 0, 5).await, 200, 5);
        let put = Ask::new("PUT", "/bucket/key").header("if-none-match", "*");
        refused(&rig.send(&peer, put, 0, 5).await, 412, "PreconditionFailed");
        assert_eq!(rig.server.get("/bucket/key").await.body, b"value");
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn an_object_replaced_meanwhile_is_the_old_or_the_new_one() {
    for (way, at) in [
        (Way::Mapped, At::Into),
        (Way::File, At::Body(1)),
        (Way::Iwarp, At::Body(1)),
    ] {
        let rig = Rig::open().await;
        let peer = rig.peer(ALPHA, way).await;
        let old = vec![1; 3_000_000];
        let before = rig.server.put("/bucket/key", &old).await.etag();
        rig.gate.close(at);
        let get = rig.get(&peer, "/bucket/key", 0, MEMORY as u64);
        // Of the same length, so that only what is known of it tells the two apart.
        let new = pattern(3_000_000);
        let replace = async {
            rig.gate.arrival().await;
            let put = rig.server.put("/bucket/key", &new).await;
            rig.gate.open();
            put.etag()
        };
        let (answer, after) = tokio::join!(get, replace);
        served(&answer, 200, 3_000_000);
        let (etag, data) = match way {
            Way::Mapped => (after, new),
            Way::File | Way::Iwarp => (before, old),
        };
        assert_eq!(answer.etag(), etag, "{way:?}");
        assert!(peer.bytes(0, data.len()) == data, "{way:?}");
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn v12_longer_than_every_buffer() {
    const LEN: usize = (16 << 20) + 1;
    for way in WAYS {
        let rig = Rig::open().await;
        let peer = rig.peer_with(ALPHA, way, 2 * LEN).await;
        let data = pattern(LEN);
        peer.fill(0, &data);
        served(
            &rig.put(&peer, "/bucket/key", 0, LEN as u64).await,
            200,
            LEN as u64,
        );
        let got = rig.get(&peer, "/bucket/key", LEN as u64, LEN as u64).await;
        served(&got, 200, LEN as u64);
        assert!(peer.bytes(LEN, LEN) == data, "{way:?}");
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn what_can_be_refused_is_refused_before_a_byte_moves() {
    for way in WAYS {
        let rig = Rig::open().await;
        let peer = rig.peer(ALPHA, way).await;
        rig.server.put("/bucket/key", b"value").await;
        let target = "/bucket/key?response-content-type=%01";
        refused(&rig.get(&peer, target, 0, 5).await, 400, "InvalidArgument");
        peer.untouched_but(0, 0);
        drop(peer);
        rig.finish().await;
    }
}

#[tokio::test]
async fn presigned_addresses_carry_tokens_too() {
    let rig = Rig::open().await;
    let peer = rig.peer(ALPHA, Way::Mapped).await;
    rig.server.put("/bucket/key", b"value").await;
    let now_ms = rig.server.now_ms();
    let date = AmzDate::from_unix_s((now_ms / 1000) as i64);
    let scope = CredentialScope::new(ALPHA.id, &date, REGION);
    let signing = SigningKey::for_scope(ALPHA.secret, &scope);
    let presigned = |token: &str| {
        let headers = [("host", HOST), ("x-amz-rdma-token", token)];
        let request = sigv4::Request {
            method: "GET",
            path: "/bucket/key",
            query: "",
            headers: &headers[..],
        };
        sigv4::presign(
            &request,
            "host;x-amz-rdma-token",
            &date,
            60,
            &scope,
            &signing,
        )
    };
    // The token covers the query, and the signature, which is the last of it, covers the token.
    let query = presigned("");
    let (covered, _) = query.rsplit_once("&X-Amz-Signature=").unwrap();
    let ask = Ask::new("GET", &format!("/bucket/key?{covered}"));
    let text = peer.seal(&ask, &peer.token(&ask, now_ms, 0, 5));
    let send = |token: &str, query: &str| {
        Ask::new("GET", &format!("/bucket/key?{query}")).header("x-amz-rdma-token", token)
    };
    let answer = rig.server.anonymous(send(&text, &presigned(&text))).await;
    served(&answer, 200, 5);
    assert_eq!(peer.bytes(0, 5), b"value");
    let other = peer.seal(&ask, &peer.token(&ask, now_ms, 8, 5));
    let answer = rig.server.anonymous(send(&other, &presigned(&text))).await;
    refused(&answer, 403, "SignatureDoesNotMatch");
    peer.untouched_but(0, 5);
    drop(peer);
    rig.finish().await;
}
