//! Parsers of the direct path: messages, bearer tokens, and the iWARP stream.

use forebay_proto::bearer::Bearer;
use forebay_proto::direct::{
    Attributes, Call, INLINE_BYTES_MAX, Operation, Status, parse_reply, parse_request, peek_id,
};
use forebay_proto::iwarp::{Access, Event, Fault, Inbound, Limits, Progress, Protection, Regions};
use forebay_proto::iwarp::{fpdu, mpa};

/// Requests of the direct path's messages.
pub fn direct_request(data: &[u8]) {
    let Ok(request) = parse_request(data) else {
        return;
    };
    assert_eq!(peek_id(data), Some(request.id));
    // Everything was read once when the message was parsed, so reading again must not end early.
    match request.call {
        Call::Ping => {}
        Call::Retrieve(elements) => assert_eq!(elements.count(), elements.len()),
        Call::Store(elements) => {
            assert_eq!(elements.count(), elements.len());
            for element in elements {
                if let forebay_proto::direct::Body::Message(bytes) = element.body {
                    assert!(bytes.len() <= INLINE_BYTES_MAX);
                }
                let mut again = Vec::new();
                let written = Attributes::encode(&mut again, element.attributes.iter());
                assert_eq!(written, Ok(element.attributes));
            }
        }
        Call::Exist(elements) | Call::LongestPrefix(elements) => {
            assert_eq!(elements.count(), elements.len());
        }
        Call::Stat(elements) => assert_eq!(elements.count(), elements.len()),
        Call::Delete(elements) => assert_eq!(elements.count(), elements.len()),
        Call::List(list) => assert!(list.prefix.len() <= data.len()),
    }
}

/// Replies, as a client reads those of a server that it does not trust.
pub fn direct_reply(data: &[u8]) {
    let Ok(reply) = parse_reply(data) else {
        return;
    };
    assert_eq!(peek_id(data), Some(reply.id));
    for result in reply.results {
        if result.status != Status::Ok {
            let _ = result.text();
            continue;
        }
        match reply.operation {
            Operation::List => drop(result.listed()),
            Operation::Delete => drop(result.deleted()),
            Operation::LongestPrefix => drop(result.prefix()),
            Operation::Exist => drop(result.sizes().map(Iterator::count)),
            Operation::Ping | Operation::Retrieve | Operation::Store | Operation::Stat => {
                if let Ok(value) = result.value() {
                    assert!(value.crc64nvme.is_none() || value.part_crc64nvme.is_none());
                }
            }
        }
    }
}

/// Bearer tokens of the gRPC door.
pub fn bearer(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(bearer) = Bearer::parse(text)
    {
        assert!(bearer.check(None, 0).is_err());
    }
}

/// The frames that open an iWARP connection, in both directions.
pub fn mpa(data: &[u8]) {
    for kind in [mpa::Kind::Request, mpa::Kind::Reply] {
        if let Some(header) = data.first_chunk() {
            let _ = mpa::frame_bytes(kind, header);
        }
        if let Ok(frame) = mpa::Frame::parse(kind, data)
            && let Some(encoded) = frame.encode()
        {
            assert_eq!(mpa::Frame::parse(kind, &encoded), Ok(frame));
        }
    }
}

/// What the peer of the fuzzed stream may reach: one buffer to write, one to read.
struct Reachable;

const WRITABLE: (u32, u64, u64) = (0x100, 4096, 8192);
const READABLE: (u32, u64, u64) = (0x200, 64, 65_536);

impl Regions for Reachable {
    fn check(&self, stag: u32, offset: u64, bytes: u64, access: Access) -> Result<(), Protection> {
        assert!(bytes > 0 && offset.checked_add(bytes).is_some());
        let (known, base, len) = match access {
            Access::Read => READABLE,
            Access::Write => WRITABLE,
        };
        if stag != known {
            Err(Protection::Stag)
        } else if offset < base || offset + bytes > base + len {
            Err(Protection::Bounds)
        } else {
            Ok(())
        }
    }

    fn may_invalidate(&self, stag: u32) -> bool {
        stag == WRITABLE.0
    }
}

const MESSAGE_BYTES: u32 = 16 << 10;
const READ_BYTES: u32 = 5000;

/// The segments of an iWARP stream. The first byte says how many reads the peer owes answers to.
pub fn iwarp(data: &[u8]) {
    let _ = stream_ends(data);
}

/// As [`iwarp`]; says for which fault the stream is ended, if any.
pub fn stream_ends(data: &[u8]) -> Option<Fault> {
    let (first, mut stream) = data.split_first()?;
    let mut inbound = Inbound::new(Limits {
        message_bytes: MESSAGE_BYTES,
        ird: 4,
        rtr: None,
    });
    for sink in 0..u32::from(first % 4) {
        inbound.expect_response(0x700 + sink, READ_BYTES);
    }
    loop {
        let _ = fpdu::frame_bytes(stream).map(|bytes| stream.get(..bytes).map(fpdu::verify));
        let segment = match inbound.segment(stream, &Reachable) {
            Ok(Progress::Segment(segment)) => segment,
            Ok(Progress::Need(bytes)) => {
                assert!(bytes > stream.len());
                return None;
            }
            Err(fault) => {
                assert_eq!(Fault::from_code(fault.code()), Some(fault));
                return Some(fault);
            }
        };
        let payload = segment.payload_bytes as u64;
        match segment.event {
            Event::Write { stag, offset, .. } if payload > 0 => {
                assert_eq!(stag, WRITABLE.0);
                assert!(offset >= WRITABLE.1 && offset + payload <= WRITABLE.1 + WRITABLE.2);
            }
            Event::Response { offset, .. } => {
                assert!(u64::from(offset) + payload <= u64::from(READ_BYTES));
            }
            Event::Send { offset, .. } => {
                assert!(u64::from(offset) + payload <= u64::from(MESSAGE_BYTES));
            }
            Event::ReadRequest(request) => {
                let end = request.source_offset + u64::from(request.bytes);
                assert!(request.bytes == 0 || end <= READABLE.1 + READABLE.2);
            }
            Event::Terminate(_) => return None,
            Event::Write { .. } | Event::Immediate { .. } | Event::Ready => {}
        }
        let end = segment.head_bytes + segment.payload_bytes + segment.trailer_bytes;
        stream = stream.get(end..)?;
    }
}
