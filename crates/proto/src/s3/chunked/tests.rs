//! The published chunked example, round trips under any split, and forgeries chunk by chunk.

use proptest::prelude::*;

use super::*;
use crate::s3::sigv4::{Request, parse_authorization, verify};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const NOW_S: i64 = 1_369_353_600;

fn chain(seed: [u8; 32]) -> ChunkChain {
    let key = SigningKey::derive(SECRET, "20130524", "us-east-1", "s3");
    let date = AmzDate::from_unix_s(NOW_S);
    let scope = CredentialScope::new("AKIAIOSFODNN7EXAMPLE", &date, "us-east-1");
    ChunkChain::new(key, &date, &scope, seed)
}

type Decoded = (Vec<u8>, Vec<(String, String)>);

/// Feeds `body` in pieces of `step` bytes.
fn decode(mut decoder: Decoder, body: &[u8], step: usize) -> Result<Decoded, ChunkError> {
    let mut data = Vec::new();
    for piece in body.chunks(step.max(1)) {
        let mut input = piece;
        while let Some(event) = decoder.next(&mut input)? {
            match event {
                Event::Data(slice) => data.extend_from_slice(slice),
                Event::End => break,
            }
        }
    }
    decoder.finish().map(|trailers| (data, trailers))
}

fn encode(
    mut encoder: Encoder,
    payload: &[u8],
    chunk: usize,
    trailers: &[(&str, &str)],
) -> Vec<u8> {
    let mut body = Vec::new();
    for piece in payload.chunks(chunk) {
        body.extend_from_slice(encoder.header(&[piece]).as_bytes());
        body.extend_from_slice(piece);
        body.extend_from_slice(CHUNK_END);
    }
    body.extend_from_slice(encoder.finish(trailers).as_bytes());
    body
}

/// The seed and the three chunk signatures as published.
#[test]
fn published_example() {
    let headers: &[(&str, &str)] = &[
        ("content-encoding", "aws-chunked"),
        ("content-length", "66824"),
        ("host", "s3.amazonaws.com"),
        ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
        ("x-amz-date", "20130524T000000Z"),
        ("x-amz-decoded-content-length", "66560"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
    ];
    let request = Request {
        method: "PUT",
        path: "/examplebucket/chunkObject.txt",
        query: "",
        headers,
    };
    let claim = parse_authorization(
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
         SignedHeaders=content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;\
         x-amz-decoded-content-length;x-amz-storage-class, \
         Signature=4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    )
    .expect("published header");
    let key = SigningKey::derive(SECRET, "20130524", "us-east-1", "s3");
    verify(&request, &claim, &key, NOW_S).expect("published seed signature");

    let payload = vec![b'a'; 66_560];
    let body = encode(
        Encoder::signed(chain(claim.signature), false),
        &payload,
        65_536,
        &[],
    );
    assert_eq!(body.len(), 66_824);
    assert_eq!(encoded_length(66_560, 65_536, true, false, &[]), 66_824);
    for published in [
        "10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n",
        "400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n",
        "0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n",
    ] {
        let found = body
            .windows(published.len())
            .any(|window| window == published.as_bytes());
        assert!(found, "{published}");
    }
    let decoder = || Decoder::signed(chain(claim.signature), false, 66_560);
    for step in [1, 7, 1000, usize::MAX] {
        let (data, trailers) = decode(decoder(), &body, step.min(body.len())).expect("valid");
        assert_eq!((data == payload, trailers.len()), (true, 0));
    }
}

/// The published example with a trailing CRC32C and its signature.
#[test]
fn published_trailer_example() {
    let seed =
        hex::decode::<32>(b"106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e")
            .expect("64 digits");
    let payload = vec![b'a'; 66_560];
    let trailers = [("x-amz-checksum-crc32c", "sOO8/Q==")];
    let body = encode(
        Encoder::signed(chain(seed), true),
        &payload,
        65_536,
        &trailers,
    );
    let text = String::from_utf8_lossy(&body);
    for published in [
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        "x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:\
         d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n",
    ] {
        assert!(text.contains(published), "{published}");
    }
    assert_eq!(
        body.len() as u64,
        encoded_length(66_560, 65_536, true, true, &trailers)
    );
    let decoder = || Decoder::signed(chain(seed), true, 66_560);
    let (data, found) = decode(decoder(), &body, 4096).expect("valid");
    assert!(data == payload);
    assert_eq!(
        found,
        [("x-amz-checksum-crc32c".to_owned(), "sOO8/Q==".to_owned())]
    );

    // The line ends of the published grammar.
    let published = text.replace("sOO8/Q==\r\n", "sOO8/Q==\n\r\n");
    assert!(decode(decoder(), published.as_bytes(), 4096).is_ok());
    for (from, to) in [
        ("sOO8", "sOO9"),
        ("d81f", "d81e"),
        ("x-amz-checksum-crc32c", "x-amz-meta-x"),
    ] {
        let forged = text.replace(from, to);
        assert_eq!(
            decode(decoder(), forged.as_bytes(), 4096),
            Err(ChunkError::SignatureDoesNotMatch),
            "{from}"
        );
    }
    let cut = text.find("x-amz-trailer-signature").expect("present");
    let unsigned = format!("{}\r\n", &text[..cut]);
    assert_eq!(
        decode(decoder(), unsigned.as_bytes(), 4096),
        Err(ChunkError::Incomplete)
    );
}

#[test]
fn unsigned_bodies_carry_trailers() {
    let body = b"3\r\nabc\r\n0\r\nX-Amz-Checksum-Crc64nvme: AAAAAAAAAAA=\r\n\r\n";
    let (data, trailers) = decode(Decoder::unsigned(3), body, 2).expect("valid");
    assert_eq!(data, b"abc");
    assert_eq!(
        trailers,
        [(
            "x-amz-checksum-crc64nvme".to_owned(),
            "AAAAAAAAAAA=".to_owned()
        )]
    );
    assert!(decode(Decoder::unsigned(0), b"0\r\n\r\n", 1).is_ok());
}

/// As minio-go sends it: a trailer that a lone LF ends, the empty line, and another one.
#[test]
fn an_unsigned_body_may_end_with_one_line_end_more() {
    let trailer = "x-amz-checksum-crc32c:AAAAAA==";
    for end in ["\n\r\n\r\n", "\r\n\r\n\r\n", "\r\n\r\n"] {
        let body = format!("3\r\nabc\r\n0\r\n{trailer}{end}");
        for step in 1..=body.len() {
            let (data, trailers) =
                decode(Decoder::unsigned(3), body.as_bytes(), step).expect("valid");
            assert_eq!((&data[..], trailers.len()), (&b"abc"[..], 1), "{step}");
        }
        // In two pieces, wherever it is cut.
        for at in 0..body.len() {
            let (first, second) = body.as_bytes().split_at(at);
            let mut decoder = Decoder::unsigned(3);
            let mut last = None;
            for mut input in [first, second] {
                loop {
                    last = decoder.next(&mut input).expect("valid");
                    if !matches!(last, Some(Event::Data(_))) {
                        break;
                    }
                }
            }
            assert_eq!(last, Some(Event::End), "{at}");
            assert!(decoder.finish().is_ok(), "{at}");
        }
    }
    let body = format!("3\r\nabc\r\n0\r\n{trailer}\r\n\r\n");
    for more in ["\r", "\n", "\r\r", "\r\n\r", "\r\n\r\n", "\r\nx"] {
        let body = format!("{body}{more}");
        for step in 1..=body.len() {
            assert_eq!(
                decode(Decoder::unsigned(3), body.as_bytes(), step),
                Err(ChunkError::Excess),
                "{more:?} {step}"
            );
        }
    }
    // A signature says where a body ends.
    for trailer in [false, true] {
        let trailers: &[(&str, &str)] = match trailer {
            true => &[("x-amz-checksum-crc32", "AAAAAA==")],
            false => &[],
        };
        let mut body = encode(
            Encoder::signed(chain([7; 32]), trailer),
            b"abc",
            3,
            trailers,
        );
        body.extend_from_slice(CHUNK_END);
        for step in [1, 4096] {
            let decoder = Decoder::signed(chain([7; 32]), trailer, 3);
            assert_eq!(decode(decoder, &body, step), Err(ChunkError::Excess));
        }
    }
}

#[test]
fn broken_framing_is_refused() {
    use ChunkError::{Excess, Incomplete, Malformed, MalformedTrailer, TooLong};
    let long = format!("{}\r\n", "0".repeat(MAX_LINE + 1));
    let many = format!("0\r\n{}\r\n", "a:b\r\n".repeat(2000));
    let fat = format!(
        "0\r\n{}\r\n",
        (0..9)
            .map(|i| format!("a{i}:{}\r\n", "b".repeat(1000)))
            .collect::<String>()
    );
    let cases: &[(&str, ChunkError)] = &[
        ("", Incomplete),
        ("3\r\nabc\r\n", Incomplete),
        ("3\r\nab", Incomplete),
        ("0\r\n\r\n", Incomplete),
        ("2\r\nab\r\n0\r\n\r\n", Incomplete),
        ("4\r\nabcd\r\n0\r\n\r\n", TooLong),
        ("2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n", TooLong),
        ("ffffffffffffffff\r\n", Malformed("chunk too large")),
        ("11111111111111111\r\n", Malformed("chunk size")),
        ("\r\n", Malformed("chunk size")),
        ("-3\r\nabc", Malformed("chunk size")),
        ("3\nabc\r\n", Malformed("line without CR")),
        ("3\r\nabcd\r\n", Malformed("no line end after the data")),
        (
            "3;chunk-signature=00\r\nabc",
            Malformed("unexpected chunk extension"),
        ),
        ("3\r\nabc\r\n0\r\n\r\nx", Excess),
        (
            "3\r\nabc\r\n0\r\nname\r\n\r\n",
            MalformedTrailer("no colon"),
        ),
        (
            "3\r\nabc\r\n0\r\na:b\r\nA:c\r\n\r\n",
            MalformedTrailer("given twice"),
        ),
        (
            "3\r\nabc\r\n0\r\n a:b\r\n\r\n",
            MalformedTrailer("name or value"),
        ),
        (&long, Malformed("line too long")),
    ];
    for (body, error) in cases {
        for step in [1, 4096] {
            assert_eq!(
                decode(Decoder::unsigned(3), body.as_bytes(), step),
                Err(*error),
                "{body}"
            );
        }
    }
    assert_eq!(
        decode(Decoder::unsigned(0), many.as_bytes(), 9),
        Err(MalformedTrailer("given twice"))
    );
    assert_eq!(
        decode(Decoder::unsigned(0), fat.as_bytes(), 9),
        Err(MalformedTrailer("too long"))
    );
    let mut failed = Decoder::unsigned(1);
    assert!(failed.next(&mut b"x".as_slice()).is_ok());
    assert!(failed.next(&mut b"\r\n".as_slice()).is_err());
    assert!(
        failed.next(&mut b"".as_slice()).is_err(),
        "an error is for ever"
    );
}

/// A carriage return that became a form feed or a tab ended the line all the same.
#[test]
fn the_end_of_the_last_trailer_is_as_it_was_sent() {
    let trailers = &[("x-amz-checksum-crc32", "AAAAAA==")];
    let body = encode(
        Encoder::signed(chain([7; 32]), true),
        b"payload",
        32,
        trailers,
    );
    let end = body.len() - 4;
    assert_eq!(&body[end..], b"\r\n\r\n");
    for bit in 0..8 {
        let mut body = body.clone();
        body[end] ^= 1 << bit;
        let decoder = Decoder::signed(chain([7; 32]), true, 7);
        assert!(decode(decoder, &body, 50).is_err(), "bit {bit}");
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_under_any_split(
        payload in proptest::collection::vec(any::<u8>(), 0..600),
        chunk in 1usize..200,
        step in 1usize..700,
        signed in any::<bool>(),
        trailer in any::<bool>(),
    ) {
        let trailers: &[(&str, &str)] =
            if trailer || !signed { &[("x-amz-checksum-crc32", "AAAAAA==")] } else { &[] };
        let (encoder, decoder) = if signed {
            (
                Encoder::signed(chain([7; 32]), trailer),
                Decoder::signed(chain([7; 32]), trailer, payload.len() as u64),
            )
        } else {
            (Encoder::unsigned(), Decoder::unsigned(payload.len() as u64))
        };
        let body = encode(encoder, &payload, chunk, trailers);
        prop_assert_eq!(
            body.len() as u64,
            encoded_length(payload.len() as u64, chunk as u64, signed, trailer, trailers)
        );
        let (data, found) = decode(decoder, &body, step).expect("valid");
        prop_assert_eq!(data, payload);
        prop_assert_eq!(found.len(), trailers.len());
    }

    #[test]
    fn any_changed_byte_of_a_signed_body_is_refused(
        payload in proptest::collection::vec(any::<u8>(), 1..80),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
        trailer in any::<bool>(),
    ) {
        let trailers: &[(&str, &str)] = if trailer { &[("x-amz-checksum-crc32", "AAAAAA==")] } else { &[] };
        let mut body = encode(Encoder::signed(chain([7; 32]), trailer), &payload, 32, trailers);
        let index = at.index(body.len());
        let before = body.clone();
        body[index] ^= 1 << bit;
        let same = before.eq_ignore_ascii_case(&body);
        let decoder = Decoder::signed(chain([7; 32]), trailer, payload.len() as u64);
        match decode(decoder, &body, 50) {
            Err(_) => {}
            // The case of a hexadecimal digit or of a trailer's name carries nothing.
            Ok((data, found)) => {
                prop_assert!(same, "byte {index} changed unseen");
                prop_assert_eq!(data, payload);
                prop_assert_eq!(found.len(), trailers.len());
            }
        }
    }

    #[test]
    fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200), step in 1usize..50) {
        let _ = decode(Decoder::unsigned(40), &body, step);
        let _ = decode(Decoder::signed(chain([0; 32]), true, 40), &body, step);
    }
}
