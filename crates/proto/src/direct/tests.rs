use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

const STATUSES: usize = Status::ALL.len();

fn window() -> impl Strategy<Value = Window> {
    (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(stag, offset, len)| Window {
        stag,
        offset,
        len,
    })
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn range() -> impl Strategy<Value = Range> {
    prop_oneof![
        Just(Range::Full),
        any::<u64>().prop_map(Range::From),
        any::<(u64, u64)>().prop_map(|(first, last)| Range::Inclusive(first, last)),
        any::<u64>().prop_map(Range::Suffix),
    ]
}

fn attributes() -> impl Strategy<Value = Vec<u8>> {
    let pairs = proptest::collection::btree_map("[a-z-]{1,20}", vec(any::<u8>(), 0..60), 0..6);
    pairs.prop_map(|pairs| {
        let mut encoded = Vec::new();
        let pairs = pairs.iter().map(|(name, value)| (&name[..], &value[..]));
        let written = Attributes::encode(&mut encoded, pairs.clone()).unwrap();
        assert!(written.iter().eq(pairs));
        encoded
    })
}

fn condition<'a>() -> impl Strategy<Value = Condition<'a>> {
    prop_oneof![
        Just(Condition::None),
        Just(Condition::IfAbsent),
        Just(Condition::IfPresent),
        Just(Condition::IfMatch("0123456789abcdef")),
    ]
}

/// Every proper beginning of a message, and the message with a byte more, are refused.
fn only_whole(message: &[u8], parses: impl Fn(&[u8]) -> bool) {
    assert!(parses(message));
    for len in 0..message.len() {
        assert!(!parses(&message[..len]), "{len} bytes of {message:?}");
    }
    assert!(!parses(&[message, &[0]].concat()));
}

fn request(message: &[u8]) -> bool {
    parse_request(message).is_ok()
}

fn reply(message: &[u8]) -> bool {
    parse_reply(message).is_ok()
}

#[test]
fn attributes_that_are_none() {
    let encode = |pairs: &[(&str, &[u8])]| {
        let mut encoded = Vec::new();
        Attributes::encode(&mut encoded, pairs.iter().copied())?;
        Ok(encoded)
    };
    for pairs in [
        &[("b", &b"1"[..]), ("a", b"2")][..],
        &[("a", b"1"), ("a", b"2")],
        &[("", b"1")],
        &[("a", &[b'x'; ATTRIBUTES_BYTES_MAX - 4])],
        &[("a", &[b'x'; 65536])],
    ] {
        assert_eq!(encode(pairs), Err(Full), "{:?}", pairs[0].0);
    }
    let longest = encode(&[("a", &[b'x'; ATTRIBUTES_BYTES_MAX - 5])]).unwrap();
    assert_eq!(longest.len(), ATTRIBUTES_BYTES_MAX);
    for (encoded, expected) in [
        (&b"\x01\0\0\0"[..], Malformed::Truncated),
        (b"\x01\0\xff\xffa", Malformed::Truncated),
        (
            b"\xff\xff\0\0a",
            Malformed::TooLong("the name of an attribute"),
        ),
        (
            b"\x01\0\0\0\xff",
            Malformed::NotText("the name of an attribute"),
        ),
        (b"\0\0\x01\0a", Malformed::Order),
        (b"\x01\0\0\0b\x01\0\0\0a", Malformed::Order),
    ] {
        assert_eq!(Attributes::parse(encoded), Err(expected), "{encoded:?}");
    }
}

proptest! {
    #[test]
    fn a_retrieve_comes_back(
        id: u64,
        elements in vec((key(), option::of(any::<u64>()), range(), option::of(window()), any::<bool>()), 0..8),
    ) {
        let elements: Vec<_> = elements
            .iter()
            .map(|(key, version, range, window, checksum)| Retrieve {
                key,
                version: *version,
                range: *range,
                target: window.map_or(Target::Message, Target::Window),
                checksum: *checksum,
            })
            .collect();
        let mut message = Vec::new();
        let mut writer = RequestWriter::begin(&mut message, Operation::Retrieve, id, "ns").unwrap();
        for element in &elements {
            writer.retrieve(element).unwrap();
        }
        writer.finish();
        let parsed = parse_request(&message).unwrap();
        prop_assert_eq!((parsed.id, parsed.namespace), (id, "ns"));
        let Call::Retrieve(read) = parsed.call else { panic!("{parsed:?}") };
        prop_assert_eq!(read.collect::<Vec<_>>(), elements);
        only_whole(&message, request);
    }

    #[test]
    fn a_store_comes_back(
        key in key(),
        bytes in option::of(vec(any::<u8>(), 0..600)),
        window in window(),
        condition in condition(),
        crc64nvme in option::of(any::<u64>()),
        expires in option::of(any::<u64>()),
        attributes in attributes(),
    ) {
        let element = Store {
            key: &key,
            body: match &bytes {
                Some(bytes) => Body::Message(bytes),
                None => Body::Window(window),
            },
            condition,
            crc64nvme,
            expires,
            attributes: Attributes::parse(&attributes).unwrap(),
        };
        let mut message = Vec::new();
        let mut writer = RequestWriter::begin(&mut message, Operation::Store, 1, "").unwrap();
        writer.store(&element).unwrap();
        writer.store(&element).unwrap();
        writer.finish();
        let Call::Store(read) = parse_request(&message).unwrap().call else { panic!() };
        prop_assert_eq!(read.collect::<Vec<_>>(), [element, element]);
        only_whole(&message, request);
    }

    #[test]
    fn the_rest_of_the_requests_come_back(
        key in key(),
        version in option::of(any::<u64>()),
        condition in condition(),
        limit: u32,
    ) {
        let mut message = Vec::new();
        let stat = Stat { key: &key, version };
        let mut writer = RequestWriter::begin(&mut message, Operation::Stat, 2, "a").unwrap();
        writer.stat(&stat).unwrap();
        writer.finish();
        let Call::Stat(mut read) = parse_request(&message).unwrap().call else { panic!() };
        prop_assert_eq!(read.next(), Some(stat));
        only_whole(&message, request);

        let delete = Delete { key: &key, version, condition };
        let mut writer = RequestWriter::begin(&mut message, Operation::Delete, 3, "a").unwrap();
        writer.delete(&delete).unwrap();
        writer.finish();
        let Call::Delete(mut read) = parse_request(&message).unwrap().call else { panic!() };
        prop_assert_eq!(read.next(), Some(delete));
        only_whole(&message, request);

        for after in [ListAfter::Start, ListAfter::Key(&key), ListAfter::Prefix(&key)] {
            let list = List { prefix: &key, delimiter: b"/", after, limit };
            let mut writer = RequestWriter::begin(&mut message, Operation::List, 4, "a").unwrap();
            writer.list(&list).unwrap();
            prop_assert_eq!(writer.list(&list), Err(Full));
            writer.finish();
            prop_assert_eq!(parse_request(&message).unwrap().call, Call::List(list));
            only_whole(&message, request);
        }
        for operation in [Operation::Exist, Operation::LongestPrefix] {
            let mut writer = RequestWriter::begin(&mut message, operation, 5, "a").unwrap();
            writer.key(&key).unwrap();
            writer.key(b"").unwrap();
            prop_assert_eq!(writer.stat(&stat), Err(Full));
            writer.finish();
            let read: Vec<_> = match parse_request(&message).unwrap().call {
                Call::Exist(keys) | Call::LongestPrefix(keys) => keys.collect(),
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(read, [Key(&key), Key(b"")]);
            only_whole(&message, request);
        }
    }

    #[test]
    fn a_reply_comes_back(
        id: u64,
        first: u16,
        flags: (bool, bool, bool),
        words in any::<[u64; 5]>(),
        expires in 1u64..,
        crc: u64,
        status in 1..STATUSES,
        bytes in option::of(vec(any::<u8>(), 0..300)),
    ) {
        let (replaced, last, more) = flags;
        let value = Value {
            size: words[0],
            moved: words[1],
            first: words[2],
            version: words[3],
            modified: words[4],
            expires: more.then_some(expires),
            crc64nvme: last.then_some(crc),
            part_crc64nvme: (!last && more).then_some(crc),
            replaced,
            etag: "tag",
            bytes: bytes.as_deref(),
        };
        let deleted = Deleted { existed: last, version: more.then_some(crc), marker: replaced };
        let line = Listed::Value {
            key: b"k",
            size: words[0],
            modified: words[1],
            version: words[2],
            crc64nvme: crc,
            etag: "tag",
        };
        let mut writer = ReplyWriter::begin(Vec::new(), Operation::Retrieve, id, first);
        writer.value(&value).unwrap();
        writer.failed(Status::ALL[status], Hop::Storage, "broken").unwrap();
        writer.sizes([Some(7), None].into_iter()).unwrap();
        writer.prefix(crc).unwrap();
        writer.deleted(&deleted).unwrap();
        writer.listed(&line).unwrap();
        writer.listed(&Listed::Prefix(b"p/")).unwrap();
        prop_assert_eq!(writer.count(), 7);
        let message = writer.finish(last, more).to_vec();
        let mut parsed = parse_reply(&message).unwrap();
        prop_assert_eq!((parsed.id, parsed.first, parsed.last, parsed.more), (id, first, last, more));
        let mut next = || parsed.results.next().unwrap();
        prop_assert_eq!(next().value().unwrap(), value);
        let failed = next();
        prop_assert_eq!((failed.status, failed.hop), (Status::ALL[status], Hop::Storage));
        prop_assert_eq!(failed.text(), Ok("broken"));
        prop_assert_eq!(next().sizes().unwrap().collect::<Vec<_>>(), [Some(7), None]);
        prop_assert_eq!(next().prefix(), Ok(crc));
        prop_assert_eq!(next().deleted(), Ok(deleted));
        prop_assert_eq!(next().listed(), Ok(line));
        prop_assert_eq!(next().listed(), Ok(Listed::Prefix(b"p/")));
        prop_assert!(parsed.results.next().is_none());
        only_whole(&message, reply);
        writer.next();
        let next = parse_reply(writer.finish(true, false)).unwrap();
        prop_assert_eq!((next.id, next.first, next.results.len()), (id, first.saturating_add(7), 0));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..200)) {
        any_bytes(&bytes);
    }
}

/// Reads everything that can be read; a request that parses is what its parts are written as.
fn any_bytes(bytes: &[u8]) {
    if let Ok(request) = parse_request(bytes) {
        assert_eq!(rewritten(&request), bytes);
    }
    if let Ok(reply) = parse_reply(bytes) {
        for result in reply.results {
            let _ = (result.value(), result.listed(), result.deleted());
            let _ = (result.text(), result.prefix());
            let _ = result.sizes().map(Iterator::count);
        }
    }
}

fn rewritten(request: &Request<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    let operation = request.call.operation();
    let mut writer =
        RequestWriter::begin(&mut message, operation, request.id, request.namespace).unwrap();
    let written = match request.call {
        Call::Ping => Ok(()),
        Call::Retrieve(mut elements) => elements.try_for_each(|element| writer.retrieve(&element)),
        Call::Store(mut elements) => elements.try_for_each(|element| writer.store(&element)),
        Call::Exist(mut keys) | Call::LongestPrefix(mut keys) => {
            keys.try_for_each(|key| writer.key(key.0))
        }
        Call::Stat(mut elements) => elements.try_for_each(|element| writer.stat(&element)),
        Call::Delete(mut elements) => elements.try_for_each(|element| writer.delete(&element)),
        Call::List(list) => writer.list(&list),
    };
    assert_eq!(written, Ok(()));
    writer.finish();
    message
}

#[test]
fn a_message_ends_at_its_bounds() {
    let mut message = Vec::new();
    let mut writer = RequestWriter::begin(&mut message, Operation::Exist, 0, "ns").unwrap();
    let mut keys = 0;
    while writer.key(&[7; 100]).is_ok() {
        keys += 1;
    }
    assert_eq!(writer.count(), keys);
    writer.finish();
    assert!(message.len() <= MESSAGE_BYTES_MAX && message.len() + 102 > MESSAGE_BYTES_MAX);
    assert!(request(&message));

    let mut writer = RequestWriter::begin(&mut message, Operation::Exist, 0, "ns").unwrap();
    for _ in 0..ELEMENTS_MAX {
        writer.key(b"k").unwrap();
    }
    assert_eq!(writer.key(b"k"), Err(Full));
    assert_eq!(
        RequestWriter::begin(&mut Vec::new(), Operation::Ping, 0, &"n".repeat(64)).err(),
        Some(Full)
    );

    let mut writer = RequestWriter::begin(&mut message, Operation::Store, 0, "ns").unwrap();
    let store = |bytes| Store {
        key: b"k",
        body: Body::Message(bytes),
        condition: Condition::None,
        crc64nvme: None,
        expires: None,
        attributes: Attributes::NONE,
    };
    let long = [0; INLINE_BYTES_MAX + 1];
    assert_eq!(writer.store(&store(&long)), Err(Full));
    writer.store(&store(&long[1..])).unwrap();
    writer.finish();
    assert!(request(&message));
    // The length of the payload that rides along, one more than it may be.
    let at = HEADER_BYTES + 2 + 8;
    message[at..at + 8].copy_from_slice(&(INLINE_BYTES_MAX as u64 + 1).to_le_bytes());
    assert_eq!(
        parse_request(&message),
        Err(Malformed::TooLong("the payload"))
    );
}

#[test]
fn texts_of_errors_are_cut_at_a_character() {
    let mut writer = ReplyWriter::begin(Vec::new(), Operation::Stat, 0, 0);
    let text = format!("x{}", "\u{e9}".repeat(TEXT_BYTES_MAX));
    writer.failed(Status::Io, Hop::None, &text).unwrap();
    let mut parsed = parse_reply(writer.finish(true, false)).unwrap();
    let cut = parsed.results.next().unwrap().text().unwrap();
    assert_eq!(cut.len(), TEXT_BYTES_MAX - 1);
    assert!(text.starts_with(cut));
}

/// The frames of `docs/direct.md`, byte for byte.
mod golden {
    use super::*;
    use crate::hex;

    fn bytes(listing: &str) -> Vec<u8> {
        let digits: Vec<u8> = listing
            .lines()
            .flat_map(|line| line.split('#').next())
            .flat_map(str::bytes)
            .filter_map(hex::digit)
            .collect();
        let (pairs, []) = digits.as_chunks::<2>() else {
            panic!("half a byte");
        };
        pairs.iter().map(|[high, low]| high << 4 | low).collect()
    }

    #[test]
    fn retrieve() {
        let golden = bytes(include_str!("golden/retrieve.hex"));
        let mut message = Vec::new();
        let mut writer =
            RequestWriter::begin(&mut message, Operation::Retrieve, 0x0102_0304, "demo").unwrap();
        let element = Retrieve {
            key: b"layer-0",
            version: None,
            range: Range::Inclusive(4096, 8191),
            target: Target::Window(Window {
                stag: 0xaabb_ccdd,
                offset: 65536,
                len: 4096,
            }),
            checksum: true,
        };
        writer.retrieve(&element).unwrap();
        writer.finish();
        assert_eq!(message, golden);
        assert!(request(&golden));
    }

    #[test]
    fn store_in_message() {
        let golden = bytes(include_str!("golden/store_in_message.hex"));
        let mut encoded = Vec::new();
        let pairs = [("content-type", &b"text/plain"[..]), ("x-amz-meta-a", b"1")];
        let mut message = Vec::new();
        let mut writer = RequestWriter::begin(&mut message, Operation::Store, 2, "demo").unwrap();
        let element = Store {
            key: b"k",
            body: Body::Message(b"hello"),
            condition: Condition::IfMatch("tag"),
            crc64nvme: Some(0x1122_3344_5566_7788),
            expires: Some(1_800_000_000_000),
            attributes: Attributes::encode(&mut encoded, pairs).unwrap(),
        };
        writer.store(&element).unwrap();
        writer.finish();
        assert_eq!(message, golden);
        assert!(request(&golden));
    }

    #[test]
    fn retrieved() {
        let golden = bytes(include_str!("golden/retrieved.hex"));
        let mut writer = ReplyWriter::begin(Vec::new(), Operation::Retrieve, 0x0102_0304, 0);
        let value = Value {
            size: 16384,
            moved: 4096,
            first: 4096,
            version: 0,
            modified: 1_790_000_000_000,
            expires: None,
            crc64nvme: None,
            part_crc64nvme: Some(0x8877_6655_4433_2211),
            replaced: false,
            etag: "tag",
            bytes: None,
        };
        writer.value(&value).unwrap();
        writer
            .failed(Status::NotFound, Hop::None, "the key holds no value")
            .unwrap();
        assert_eq!(writer.finish(true, false), golden);
        assert!(reply(&golden));
    }

    /// A flipped bit is another message or none, never a panic.
    #[test]
    fn flipped_bits() {
        for listing in [
            include_str!("golden/retrieve.hex"),
            include_str!("golden/store_in_message.hex"),
            include_str!("golden/retrieved.hex"),
        ] {
            let golden = bytes(listing);
            for bit in 0..golden.len() * 8 {
                let mut flipped = golden.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                any_bytes(&flipped);
            }
        }
    }
}
