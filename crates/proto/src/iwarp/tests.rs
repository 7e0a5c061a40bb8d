//! Golden frames, round trips, and what a hostile peer can say.

use std::{fs, path::Path};

use proptest::prelude::*;

use super::ddp::{Header, Tagged, UNTAGGED_BYTES, Untagged};
use super::fpdu::{Crc, LENGTH_BYTES, Trailer};
use super::mpa::{self, Frame, Kind, Rtr, Terms};
use super::rdmap::{Opcode, ReadRequest};
use super::terminate::{Code, Terminate};
use super::*;

/// One buffer that may be written, one that may be read, 4096 bytes each.
struct Two;
const WRITABLE: u32 = 0x100;
const READABLE: u32 = 0x200;

impl Regions for Two {
    fn check(&self, stag: u32, offset: u64, bytes: u64, access: Access) -> Result<(), Protection> {
        match (stag, access) {
            (WRITABLE, Access::Write) | (READABLE, Access::Read) => {}
            (WRITABLE | READABLE, _) => return Err(Protection::Access),
            _ => return Err(Protection::Stag),
        }
        if offset + bytes > 4096 {
            return Err(Protection::Bounds);
        }
        Ok(())
    }

    fn may_invalidate(&self, stag: u32) -> bool {
        stag == WRITABLE
    }
}

fn limits() -> Limits {
    Limits {
        message_bytes: 1000,
        ird: 2,
        rtr: None,
    }
}

/// One whole FPDU.
fn frame(header: Header, payload: &[u8], crc: bool) -> Vec<u8> {
    let header = match header {
        Header::Tagged(header) => header.encode().to_vec(),
        Header::Untagged(header) => header.encode().to_vec(),
    };
    let ulpdu_bytes = header.len() + payload.len();
    let mut out = (ulpdu_bytes as u16).to_be_bytes().to_vec();
    out.extend(header);
    out.extend(payload);
    let digest = crc.then(|| {
        let mut digest = Crc::new();
        digest.update(&out);
        digest
    });
    out.extend(Trailer::new(ulpdu_bytes, digest).as_bytes());
    out
}

/// Header and payload of one whole FPDU.
fn unframe(bytes: &[u8], crc: bool) -> Result<(Header, &[u8]), Fault> {
    if fpdu::frame_bytes(bytes) != Some(bytes.len()) {
        return Err(Fault::Length);
    }
    if crc {
        fpdu::verify(bytes)?;
    }
    let ulpdu = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let ulpdu = &bytes[LENGTH_BYTES..LENGTH_BYTES + ulpdu];
    let header = Header::parse(ulpdu)?;
    Ok((header, &ulpdu[Header::bytes(ulpdu[0])..]))
}

fn untagged(opcode: Opcode, queue: u32, msn: u32, mo: u32, last: bool) -> Header {
    Header::Untagged(Untagged {
        opcode,
        last,
        invalidate: 0,
        queue,
        msn,
        mo,
    })
}

fn tagged(opcode: Opcode, stag: u32, offset: u64, last: bool) -> Header {
    Header::Tagged(Tagged {
        opcode,
        last,
        stag,
        offset,
    })
}

/// What `inbound` says of these frames, up to and with the first fault.
fn receive(inbound: &mut Inbound, frames: &[Vec<u8>]) -> Vec<Result<Event, Fault>> {
    let mut said = Vec::new();
    for frame in frames {
        let one = inbound.segment(frame, &Two).map(|progress| match progress {
            Progress::Segment(segment) => {
                let sum = segment.head_bytes + segment.payload_bytes + segment.trailer_bytes;
                assert_eq!(sum, frame.len());
                segment.event
            }
            Progress::Need(bytes) => panic!("a whole frame needs {bytes} bytes"),
        });
        said.push(one);
        if one.is_err() {
            break;
        }
    }
    said
}

fn fault_of(frames: &[Vec<u8>]) -> Option<Fault> {
    receive(&mut Inbound::new(limits()), frames)
        .pop()
        .and_then(Result::err)
}

fn read_request(msn: u32, request: ReadRequest) -> Vec<u8> {
    let header = untagged(Opcode::ReadRequest, 1, msn, 0, true);
    frame(header, &request.encode(), false)
}

const REQUEST: ReadRequest = ReadRequest {
    sink_stag: 7,
    sink_offset: 0,
    bytes: 4096,
    source_stag: READABLE,
    source_offset: 0,
};

#[test]
fn crc_is_castagnolis_least_significant_byte_first() {
    let mut crc = Crc::new();
    crc.update(b"123456789");
    assert_eq!(crc.field(), 0xe306_9283_u32.to_le_bytes());
}

#[test]
fn headers_have_the_lengths_of_the_standard() {
    let lengths = [
        frame(tagged(Opcode::Write, 1, 2, true), b"", false).len(),
        frame(untagged(Opcode::Send, 0, 1, 0, true), b"", false).len(),
        read_request(1, REQUEST).len(),
    ];
    assert_eq!(lengths, [16 + 4, 20 + 4, 48 + 4]);
}

#[test]
fn golden_frames_decode_and_encode_again() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/iwarp/golden");
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let say = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(&format!("# {name}: ")))
                .unwrap_or_else(|| panic!("{path:?} says no {name}"))
        };
        golden(&path, say("kind"), say("decoded"), &bytes_of(&text));
        files += 1;
    }
    assert!(files >= 8);
}

fn bytes_of(golden: &str) -> Vec<u8> {
    let digits: String = golden
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .collect();
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// A head with what follows it.
fn whole(head: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = [head, payload].concat();
    let trailer = Trailer::new(out.len() - LENGTH_BYTES, None);
    out.extend(trailer.as_bytes());
    out
}

#[test]
fn messages_of_the_send_queue_are_headed_as_the_standards_have_it() {
    let mut outbound = Outbound::new();
    let mut first = outbound.begin_send(SendKind::default());
    Outbound::send(&mut first, 0, true);
    let mut send = outbound.begin_send(SendKind {
        invalidate: Some(0x1234),
        ..SendKind::default()
    });
    let send = whole(&Outbound::send(&mut send, 2, true), b"hi");
    assert_eq!(send, bytes_of(include_str!("golden/send_invalidate.hex")));
    let immediate = outbound.immediate([0, 1, 2, 3, 4, 5, 6, 7], false);
    let immediate = whole(&immediate, b"");
    assert_eq!(immediate, bytes_of(include_str!("golden/immediate.hex")));
}

/// What one end sends the other end takes: a Write with what is said of it behind it, and every kind of Send, in one or in two segments.
#[test]
fn every_message_that_is_sent_is_received() {
    let mut outbound = Outbound::new();
    let mut inbound = Inbound::new(limits());
    let written = Tagged {
        opcode: Opcode::Write,
        last: true,
        stag: WRITABLE,
        offset: 8,
    };
    let write = whole(&Outbound::tagged(written, 4), b"1234");
    let write_event = Event::Write {
        stag: WRITABLE,
        offset: 8,
        last: true,
    };
    for solicited in [false, true] {
        let data = *b"four@8..";
        let immediate = whole(&outbound.immediate(data, solicited), b"");
        let said = receive(&mut inbound, &[write.clone(), immediate]);
        let event = Event::Immediate { data, solicited };
        assert_eq!(said, [Ok(write_event), Ok(event)]);
        for invalidate in [None, Some(WRITABLE)] {
            let mut sending = outbound.begin_send(SendKind {
                solicited,
                invalidate,
            });
            let segments = [
                whole(&Outbound::send(&mut sending, 3, false), b"abc"),
                whole(&Outbound::send(&mut sending, 1, true), b"d"),
            ];
            let said = receive(&mut inbound, &segments);
            let [Ok(first), Ok(second)] = said[..] else {
                panic!("{said:?}");
            };
            for (event, at, ends) in [(first, 0, false), (second, 3, true)] {
                let Event::Send {
                    opcode,
                    offset,
                    last,
                    invalidate: named,
                } = event
                else {
                    panic!("{event:?}");
                };
                assert_eq!((offset, last, named), (at, ends, invalidate));
                assert_eq!(opcode.is_solicited(), solicited);
            }
        }
    }
}

fn golden(path: &Path, kind: &str, decoded: &str, bytes: &[u8]) {
    let (say, again): (String, Vec<u8>) = match kind {
        "mpa request" | "mpa reply" => {
            let kind = if kind == "mpa request" {
                Kind::Request
            } else {
                Kind::Reply
            };
            for length in 0..bytes.len() {
                assert!(Frame::parse(kind, &bytes[..length]).is_err());
            }
            let frame = Frame::parse(kind, bytes).unwrap();
            (format!("{frame:?}"), frame.encode().unwrap())
        }
        "fpdu" | "fpdu with crc" => {
            let crc = kind == "fpdu with crc";
            for length in 0..bytes.len() {
                assert!(unframe(&bytes[..length], crc).is_err());
            }
            let (header, payload) = unframe(bytes, crc).unwrap();
            let note = match header {
                Header::Untagged(header) if header.opcode == Opcode::Terminate => {
                    format!(" {}", Terminate::parse(payload).unwrap())
                }
                Header::Untagged(header) if header.opcode == Opcode::ReadRequest => {
                    format!(" {:?}", ReadRequest::parse(payload.first_chunk().unwrap()))
                }
                _ => String::new(),
            };
            let say = format!("{header:?} {} bytes{note}", payload.len());
            (say, frame(header, payload, crc))
        }
        other => panic!("{path:?}: kind {other}"),
    };
    assert_eq!(say, decoded, "{path:?}");
    assert_eq!(again, bytes, "{path:?}");
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let _ = Frame::parse(Kind::Request, &flipped);
        let _ = Frame::parse(Kind::Reply, &flipped);
        let _ = Inbound::new(limits()).segment(&flipped, &Two);
        assert!(
            kind != "fpdu with crc" || unframe(&flipped, true).is_err(),
            "{path:?}: bit {bit} is not seen"
        );
    }
}

#[test]
fn a_write_is_placed_segment_by_segment() {
    let mut inbound = Inbound::new(limits());
    let said = receive(
        &mut inbound,
        &[
            frame(
                tagged(Opcode::Write, WRITABLE, 96, false),
                &[1; 1000],
                false,
            ),
            frame(untagged(Opcode::Send, 0, 1, 0, true), b"between", false),
            frame(
                tagged(Opcode::Write, WRITABLE, 1096, true),
                &[1; 3000],
                false,
            ),
            frame(tagged(Opcode::Write, 0xdead, 9, true), b"", false),
        ],
    );
    let event = |stag, offset, last| Ok(Event::Write { stag, offset, last });
    assert_eq!(said[0], event(WRITABLE, 96, false));
    assert_eq!(said[2], event(WRITABLE, 1096, true));
    assert_eq!(said[3], event(0xdead, 9, true), "no byte, no check");
}

#[test]
fn a_write_that_strays_is_refused() {
    let write = |stag, offset, bytes: usize| {
        frame(
            tagged(Opcode::Write, stag, offset, true),
            &vec![0; bytes],
            false,
        )
    };
    let first = || frame(tagged(Opcode::Write, WRITABLE, 0, false), &[0; 8], false);
    for (frames, fault) in [
        (vec![write(0x101, 0, 1)], Fault::TaggedStag),
        (vec![write(READABLE, 0, 1)], Fault::TaggedAccess),
        (vec![write(WRITABLE, 4096, 1)], Fault::TaggedBounds),
        (vec![write(WRITABLE, 4000, 97)], Fault::TaggedBounds),
        (vec![write(WRITABLE, u64::MAX, 1)], Fault::TaggedWrap),
        (vec![first(), write(WRITABLE, 9, 1)], Fault::TaggedBounds),
        (vec![first(), write(READABLE, 8, 1)], Fault::TaggedStag),
        (
            vec![
                first(),
                frame(tagged(Opcode::ReadResponse, 7, 0, true), b"", false),
            ],
            Fault::Opcode,
        ),
    ] {
        assert_eq!(fault_of(&frames), Some(fault));
    }
}

#[test]
fn a_message_is_whole_and_in_order() {
    let send = |msn, mo, last, bytes: usize| {
        frame(
            untagged(Opcode::Send, 0, msn, mo, last),
            &vec![0; bytes],
            false,
        )
    };
    let mut inbound = Inbound::new(limits());
    let said = receive(
        &mut inbound,
        &[
            send(1, 0, false, 600),
            send(1, 600, true, 400),
            send(2, 0, true, 0),
        ],
    );
    let event = |offset, last| {
        Ok(Event::Send {
            opcode: Opcode::Send,
            offset,
            last,
            invalidate: None,
        })
    };
    assert_eq!(said, [event(0, false), event(600, true), event(0, true)]);
    let solicited = |msn, mo| {
        frame(
            untagged(Opcode::SendSolicited, 0, msn, mo, true),
            b"",
            false,
        )
    };
    for (frames, fault) in [
        (vec![send(0, 0, true, 1)], Fault::Msn),
        (vec![send(2, 0, true, 1)], Fault::Msn),
        (vec![send(1, 0, true, 1), send(1, 0, true, 1)], Fault::Msn),
        (vec![send(1, 4, true, 1)], Fault::Mo),
        (vec![send(1, 0, false, 4), send(1, 5, true, 1)], Fault::Mo),
        (
            vec![send(1, 0, false, 4), send(1, u32::MAX, true, 4)],
            Fault::Mo,
        ),
        (vec![send(1, 0, false, 4), send(2, 4, true, 1)], Fault::Msn),
        (vec![send(1, 0, false, 4), solicited(1, 4)], Fault::Opcode),
        (vec![send(1, 0, true, 1001)], Fault::TooLong),
        (
            vec![send(1, 0, false, 999), send(1, 999, true, 2)],
            Fault::TooLong,
        ),
        (
            vec![frame(untagged(Opcode::Send, 1, 1, 0, true), b"", false)],
            Fault::Queue,
        ),
        (
            vec![frame(
                untagged(Opcode::Terminate, 0, 1, 0, true),
                b"",
                false,
            )],
            Fault::Queue,
        ),
    ] {
        assert_eq!(fault_of(&frames), Some(fault));
    }
}

#[test]
fn message_numbers_wrap() {
    let mut inbound = Inbound::new(limits());
    let mut outbound = Outbound::new();
    inbound.sends = u32::MAX - 2;
    outbound.sends = u32::MAX - 2;
    for _ in 0..4 {
        let mut sending = outbound.begin_send(SendKind::default());
        let mut bytes = Outbound::send(&mut sending, 0, true).to_vec();
        bytes.extend(Trailer::new(UNTAGGED_BYTES, None).as_bytes());
        assert!(matches!(
            inbound.segment(&bytes, &Two),
            Ok(Progress::Segment(_))
        ));
    }
}

#[test]
fn a_send_invalidates_only_what_it_may() {
    let send = |invalidate| {
        let header = Header::Untagged(Untagged {
            opcode: Opcode::SendInvalidate,
            last: true,
            invalidate,
            queue: 0,
            msn: 1,
            mo: 0,
        });
        frame(header, b"x", false)
    };
    assert_eq!(fault_of(&[send(READABLE)]), Some(Fault::CannotInvalidate));
    assert_eq!(fault_of(&[send(WRITABLE)]), None);
}

#[test]
fn immediate_data_is_eight_bytes_on_the_send_queue() {
    let immediate = |bytes: &[u8]| frame(untagged(Opcode::Immediate, 0, 1, 0, true), bytes, false);
    let said = receive(&mut Inbound::new(limits()), &[immediate(b"12345678")]);
    let event = Event::Immediate {
        data: *b"12345678",
        solicited: false,
    };
    assert_eq!(said, [Ok(event)]);
    assert_eq!(fault_of(&[immediate(b"1234567")]), Some(Fault::Length));
    assert_eq!(fault_of(&[immediate(b"123456789")]), Some(Fault::TooLong));
}

#[test]
fn reads_are_answered_in_order_and_no_deeper_than_agreed() {
    let mut inbound = Inbound::new(limits());
    let two = [read_request(1, REQUEST), read_request(2, REQUEST)];
    assert!(receive(&mut inbound, &two).iter().all(Result::is_ok));
    inbound.answered();
    let third = inbound.segment(&read_request(3, REQUEST), &Two);
    assert!(third.is_ok());
    let fourth = inbound.segment(&read_request(4, REQUEST), &Two);
    assert_eq!(fourth, Err(Fault::Stream));

    let ask = |change: fn(&mut ReadRequest)| {
        let mut request = REQUEST;
        change(&mut request);
        fault_of(&[read_request(1, request)])
    };
    assert_eq!(ask(|_| ()), None);
    assert_eq!(ask(|r| r.source_stag = WRITABLE), Some(Fault::ReadAccess));
    assert_eq!(ask(|r| r.source_stag += 1), Some(Fault::ReadStag));
    assert_eq!(ask(|r| r.source_offset = 1), Some(Fault::ReadBounds));
    assert_eq!(ask(|r| r.bytes = u32::MAX), Some(Fault::ReadBounds));
    assert_eq!(ask(|r| r.source_offset = u64::MAX), Some(Fault::ReadWrap));
    assert_eq!(ask(|r| r.sink_offset = u64::MAX), Some(Fault::ReadWrap));
    assert_eq!(ask(|r| (r.bytes, r.source_stag) = (0, 0)), None);
    assert_eq!(fault_of(&[read_request(2, REQUEST)]), Some(Fault::Msn));
    let header = untagged(Opcode::ReadRequest, 1, 1, 0, true);
    let body = REQUEST.encode();
    let long = [&body[..], b"x"].concat();
    for (body, fault) in [(&body[1..], Fault::Length), (&long, Fault::TooLong)] {
        assert_eq!(fault_of(&[frame(header, body, false)]), Some(fault));
    }
}

#[test]
fn a_response_is_what_was_asked_for() {
    let response = |stag, offset, last, bytes: usize| {
        frame(
            tagged(Opcode::ReadResponse, stag, offset, last),
            &vec![0; bytes],
            false,
        )
    };
    let after_asking = |frames: &[Vec<u8>]| {
        let mut inbound = Inbound::new(limits());
        inbound.expect_response(7, 100);
        inbound.expect_response(8, 0);
        receive(&mut inbound, frames)
    };
    let event = |offset, last| Ok(Event::Response { offset, last });
    let all = [
        response(7, 0, false, 60),
        response(7, 60, true, 40),
        response(8, 0, true, 0),
    ];
    assert_eq!(
        after_asking(&all),
        [event(0, false), event(60, true), event(0, true)]
    );
    for (frames, fault) in [
        (vec![response(8, 0, true, 0)], Fault::TaggedStag),
        (vec![response(7, 1, false, 9)], Fault::TaggedBounds),
        (vec![response(7, 0, true, 101)], Fault::TaggedBounds),
        (vec![response(7, 0, true, 60)], Fault::TaggedBounds),
        (vec![response(7, 0, false, 100)], Fault::TaggedBounds),
    ] {
        assert_eq!(after_asking(&frames).pop(), Some(Err(fault)));
    }
    assert_eq!(fault_of(&all[2..]), Some(Fault::TaggedStag), "unsolicited");
}

#[test]
fn lengths_and_versions_that_cannot_be() {
    let mut short = frame(tagged(Opcode::Write, WRITABLE, 0, true), b"", false);
    for length in 0..14 {
        short[1] = length;
        assert_eq!(fault_of(&[short.clone()]), Some(Fault::Length));
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = frame(tagged(Opcode::Write, WRITABLE, 0, true), b"", false);
        bytes[at] = byte;
        fault_of(&[bytes])
    };
    assert_eq!(with(2, 0xc0), Some(Fault::TaggedVersion));
    assert_eq!(with(2, 0xc2), Some(Fault::TaggedVersion));
    assert_eq!(with(3, 0x00), Some(Fault::RdmapVersion));
    for opcode in 10..16 {
        assert_eq!(with(3, 0x40 | opcode), Some(Fault::Opcode));
    }
    assert_eq!(with(3, 0x43), Some(Fault::Opcode), "a tagged Send");
    assert_eq!(with(2, 0xc1 | 0x3c), None, "reserved bits");
}

#[test]
fn terminate_says_the_same_in_both_orders() {
    for (bytes, said) in [
        (
            [0x11, 0, 0xc0, 0],
            "layer 1 type 1 code 0 (tagged buffer: invalid STag)",
        ),
        ([0x20, 6, 0, 0], "layer 2 type 0 code 6 (insufficient IRD)"),
        ([0x21, 9, 0, 0], "layer 2 type 1 code 9"),
        (
            [0x10, 9, 0, 0],
            "layer 1 type 0 code 9, or layer 0 type 1 code 9 (STag cannot be invalidated)",
        ),
    ] {
        assert_eq!(Terminate::parse(&bytes).unwrap().to_string(), said);
    }
    assert_eq!(Terminate::parse(&[0x11]), None);
    let mut out = Vec::new();
    let segment = tagged(Opcode::Write, 0xc140, 0, true);
    let offending = frame(segment, b"1234", true);
    Outbound::terminate(Fault::TaggedStag, &offending[2..], 18, true, &mut out);
    let (_, payload) = unframe(&out, true).unwrap();
    assert_eq!(payload[..6], [0x11, 0, 0xc0, 0, 0, 18]);
    assert_eq!(payload[6..], offending[2..16]);
    let event = receive(&mut Inbound::new(limits()), &[out]).pop();
    let Some(Ok(Event::Terminate(Some(said)))) = event else {
        panic!("{event:?}");
    };
    assert_eq!(said.code, Fault::TaggedStag.code());
}

/// The control field, and which headers of the offending segment follow, with its length.
#[test]
fn terminate_tells_the_headers_that_its_fault_is_about() {
    let payload = |fault, offending: &[u8]| {
        let mut out = Vec::new();
        let ulpdu_bytes = usize::from(u16::from_be_bytes([offending[0], offending[1]]));
        let segment = &offending[LENGTH_BYTES..];
        Outbound::terminate(fault, segment, ulpdu_bytes, false, &mut out);
        unframe(&out, false).unwrap().1.to_vec()
    };
    let read = read_request(1, REQUEST);
    for (fault, code) in [
        (Fault::ReadStag, 0),
        (Fault::ReadBounds, 1),
        (Fault::ReadAccess, 2),
        (Fault::ReadWrap, 4),
    ] {
        let said = payload(fault, &read);
        assert_eq!(said[..6], [0x01, code, 0xe0, 0, 0, 46]);
        assert_eq!(said[6..], read[2..48]);
        // As far as it was received.
        let said = payload(fault, &read[..40]);
        assert_eq!(said[..6], [0x01, code, 0xc0, 0, 0, 46]);
        assert_eq!(said[6..], read[2..20]);
    }
    let said = payload(Fault::Msn, &read);
    assert_eq!(said[..6], [0x12, 3, 0xc0, 0, 0, 46]);
    assert_eq!(said[6..], read[2..20]);
    let write = frame(tagged(Opcode::Write, 1, 0, true), b"1234", true);
    for (fault, code) in [(Fault::Crc, 2), (Fault::Length, 3)] {
        assert_eq!(payload(fault, &write), [0x20, code, 0, 0]);
    }
    let said = payload(Fault::TaggedStag, &write[..15]);
    assert_eq!(said, [0x11, 0, 0, 0], "its header is cut short");
}

#[test]
fn codes_of_faults_are_their_own() {
    for layer in 0..3 {
        for etype in 0..3 {
            for code in 0..=255 {
                let code = Code { layer, etype, code };
                if let Some(fault) = Fault::from_code(code) {
                    assert_eq!(fault.code(), code);
                }
            }
        }
    }
}

const TERMS: Terms = Terms {
    crc: false,
    ird: 16,
    ord: 8,
    peer_to_peer: true,
};

#[test]
fn two_ends_agree() {
    for (initiator_crc, responder_crc) in [(false, false), (true, false), (false, true)] {
        let ours = Terms {
            crc: initiator_crc,
            ..TERMS
        };
        let theirs = Terms {
            crc: responder_crc,
            ird: 4,
            ord: 64,
            peer_to_peer: false,
        };
        let request = mpa::request(&ours, b"hello").encode().unwrap();
        let request = Frame::parse(Kind::Request, &request).unwrap();
        assert_eq!(request.private_data, b"hello");
        let (there, reply) = mpa::accept(&theirs, &request, b"welcome").unwrap();
        let reply = reply.encode().unwrap();
        let reply = Frame::parse(Kind::Reply, &reply).unwrap();
        let here = mpa::conclude(&ours, &reply).unwrap();
        assert_eq!(here.crc, initiator_crc || responder_crc);
        assert_eq!(there.crc, here.crc);
        assert_eq!((here.ird, here.ord), (16, 4));
        assert_eq!((there.ird, there.ord), (4, 16));
        assert_eq!(here.rtr, Some(Rtr::Write));
        assert_eq!(there.rtr, here.rtr);
        assert_eq!(reply.private_data, b"welcome");
    }
}

#[test]
fn frames_that_are_refused() {
    let good = mpa::request(&TERMS, &[7; 508]).encode().unwrap();
    assert!(Frame::parse(Kind::Request, &good).is_ok());
    assert!(Frame::parse(Kind::Reply, &good).is_err());
    assert_eq!(mpa::request(&TERMS, &[7; 509]).encode(), None);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Frame::parse(Kind::Request, &bytes).is_ok()
    };
    assert!(!with(0, b'm') && !with(17, 0) && !with(17, 3) && !with(18, 3) && !with(19, 1));
    assert!(Frame::parse(Kind::Request, &[&good[..], b"x"].concat()).is_err());
    assert!(with(16, 0x5f), "reserved flags");
    let mut empty = good[..20].to_vec();
    empty[18..].fill(0);
    assert!(
        Frame::parse(Kind::Request, &empty).is_err(),
        "no room for depths"
    );
    let marked = Frame {
        markers: true,
        ..mpa::request(&TERMS, b"")
    };
    assert_eq!(mpa::accept(&TERMS, &marked, b"").err(), Some(Fault::Frame));
    let refusal = mpa::reject(&marked, b"no").encode().unwrap();
    assert!(Frame::parse(Kind::Reply, &refusal).unwrap().reject);
}

#[test]
fn a_responder_may_not_take_more_than_is_offered() {
    let reply = |change: fn(&mut Frame<'_>)| {
        let request = mpa::request(&TERMS, b"");
        let (_, mut reply) = mpa::accept(&TERMS, &request, b"").unwrap();
        change(&mut reply);
        mpa::conclude(&TERMS, &reply).err()
    };
    assert_eq!(reply(|_| ()), None);
    assert_eq!(reply(|r| r.revision = 1), Some(Fault::Frame));
    assert_eq!(reply(|r| r.markers = true), Some(Fault::Frame));
    let enhanced = |r: &mut Frame<'_>, change: fn(&mut mpa::Enhanced)| {
        change(r.enhanced.as_mut().unwrap());
    };
    assert_eq!(reply(|_| ()), None);
    let mut request = mpa::request(&TERMS, b"");
    enhanced(&mut request, |e| e.ord = 17);
    request.kind = Kind::Reply;
    assert_eq!(
        mpa::conclude(&TERMS, &request).err(),
        Some(Fault::InsufficientIrd)
    );
    enhanced(&mut request, |e| e.ord = mpa::DEPTH_UNSPECIFIED);
    assert_eq!(mpa::conclude(&TERMS, &request).unwrap().ird, TERMS.ird);
    enhanced(&mut request, |e| e.rtr = mpa::RtrKinds::default());
    assert_eq!(mpa::conclude(&TERMS, &request).err(), Some(Fault::NoRtr));
    enhanced(&mut request, |e| e.peer_to_peer = false);
    assert_eq!(mpa::conclude(&TERMS, &request).unwrap().rtr, None);
}

#[test]
fn a_zero_length_send_may_say_ready() {
    let mut inbound = Inbound::new(Limits {
        rtr: Some(Rtr::Send),
        ..limits()
    });
    let send = |msn| frame(untagged(Opcode::Send, 0, msn, 0, true), b"", false);
    assert!(!inbound.heard());
    assert_eq!(receive(&mut inbound, &[send(1)]), [Ok(Event::Ready)]);
    assert!(inbound.heard());
    let second = receive(&mut inbound, &[send(2)]);
    assert!(matches!(second[..], [Ok(Event::Send { .. })]));
}

proptest! {
    #[test]
    fn fpdus_of_any_length_come_back(bytes in 0..70_usize, crc: bool, offset: u64, stag: u32) {
        let payload = vec![0x5a; bytes];
        let header = tagged(Opcode::Write, stag, offset, true);
        let whole = frame(header, &payload, crc);
        prop_assert_eq!(whole.len() % 4, 0);
        prop_assert_eq!(unframe(&whole, crc), Ok((header, &payload[..])));
        prop_assert_eq!(fpdu::fpdu_bytes(bytes + 14), whole.len());
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Frame::parse(Kind::Request, &bytes);
        if let Ok(Progress::Segment(segment)) = Inbound::new(limits()).segment(&bytes, &Two)
            && let Event::Write { stag, offset, .. } = segment.event
        {
            let payload = segment.payload_bytes as u64;
            prop_assert!(payload == 0 || (stag == WRITABLE && offset + payload <= 4096));
        }
    }

    /// However a stream is cut, the machine says the same about it.
    #[test]
    fn a_segment_is_judged_by_its_head(cut in 0..48_usize) {
        let whole = read_request(1, REQUEST);
        let mut inbound = Inbound::new(limits());
        let early = inbound.segment(&whole[..cut], &Two);
        let Ok(Progress::Need(need)) = early else { panic!("{early:?}") };
        prop_assert!(need > cut && need <= 48);
        prop_assert!(matches!(inbound.segment(&whole[..48], &Two), Ok(Progress::Segment(_))));
    }
}
