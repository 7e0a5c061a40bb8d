//! Peers that break the protocol, stall, vanish or garble.

use std::time::Duration;

use forebay_fabric::iwarp::{IwarpLink, Options, accept, connect};
use forebay_fabric::{
    Access, CloseReason, ErrorKind, Exposure, Link, MESSAGE_BYTES_MAX, RemoteRange, Stag,
};
use forebay_mem::{Buf, Pool, Region, RegionSlice};
use forebay_proto::iwarp::ddp::{Header, Tagged, Untagged};
use forebay_proto::iwarp::fpdu::{Crc, Trailer};
use forebay_proto::iwarp::mpa::{self, FRAME_BYTES_MAX, Terms};
use forebay_proto::iwarp::rdmap::{Opcode, ReadRequest};
use forebay_proto::iwarp::terminate::Terminate;
use forebay_proto::iwarp::{Fault, Outbound};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{links, streams, with_crc};

const LEN: usize = 1 << 16;

/// A link with exposed memory, and a peer who can say anything.
struct Victim {
    link: IwarpLink,
    peer: TcpStream,
    memory: RegionSlice,
    writable: Exposure,
    readable: Exposure,
}

async fn victim(crc: bool) -> Victim {
    victim_with(crc, Options::default()).await
}

async fn victim_with(crc: bool, options: Options) -> Victim {
    let (theirs, mut peer) = streams().await;
    let terms = Terms {
        crc,
        ird: 4,
        ord: 64,
        peer_to_peer: true,
    };
    let request = mpa::request(&terms, b"").encode().unwrap();
    peer.write_all(&request).await.unwrap();
    let (link, ()) = accept(theirs, options, |_| Some(())).await.unwrap();
    let mut reply = [0; FRAME_BYTES_MAX];
    let length = request.len();
    peer.read_exact(&mut reply[..length]).await.unwrap();
    let region = Region::anonymous(3 * LEN).unwrap();
    let memory = region.slice(0..region.len()).unwrap();
    let part = |from: usize| memory.slice(from..from + LEN).unwrap();
    let writable = link.expose(part(LEN), Access::Write).await.unwrap();
    let readable = link.expose(part(2 * LEN), Access::Read).await.unwrap();
    Victim {
        link,
        peer,
        memory,
        writable,
        readable,
    }
}

impl Victim {
    fn check_untouched(&self) {
        let mut bytes = vec![1; 3 * LEN];
        assert!(self.memory.read(0, &mut bytes));
        assert!(bytes.iter().all(|byte| *byte == 0), "memory was touched");
    }
}

fn frame(header: &[u8], payload: &[u8], crc: bool) -> Vec<u8> {
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

fn tagged(opcode: Opcode, stag: u32, offset: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let header = Tagged {
        opcode,
        last,
        stag,
        offset,
    };
    frame(&header.encode(), payload, false)
}

pub fn untagged(opcode: Opcode, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    frame(&head(opcode, queue, msn).encode(), payload, false)
}

fn head(opcode: Opcode, queue: u32, msn: u32) -> Untagged {
    Untagged {
        opcode,
        last: true,
        invalidate: 0,
        queue,
        msn,
        mo: 0,
    }
}

fn read_request(msn: u32, stag: u32, offset: u64, bytes: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: 1,
        sink_offset: 0,
        bytes,
        source_stag: stag,
        source_offset: offset,
    };
    untagged(Opcode::ReadRequest, 1, msn, &request.encode())
}

/// Reads frames until the end; says which fault the last one, a Terminate, tells.
async fn said(peer: &mut TcpStream) -> Option<Fault> {
    let mut all = Vec::new();
    peer.read_to_end(&mut all).await.ok()?;
    let mut rest = &all[..];
    let mut fault = None;
    while let [high, low, ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (ulpdu, after) = rest[2..].split_at(length);
        rest = &after[Trailer::new(length, None).as_bytes().len()..];
        assert_eq!(fault, None, "something follows a Terminate");
        if let Header::Untagged(header) = Header::parse(ulpdu).unwrap()
            && header.opcode == Opcode::Terminate
        {
            fault = Fault::from_code(Terminate::parse(&ulpdu[18..])?.code);
        }
    }
    fault
}

type Attack = fn(&Victim) -> Vec<u8>;

#[tokio::test]
async fn a_peer_that_strays_ends_its_link_and_touches_nothing() {
    let attacks: [(Attack, Fault); 22] = [
        (
            |_| tagged(Opcode::Write, 0, 0, true, b"x"),
            Fault::TaggedStag,
        ),
        (
            |v| tagged(Opcode::Write, v.writable.stag.0 ^ 1 << 31, 0, true, b"x"),
            Fault::TaggedStag,
        ),
        (
            |v| tagged(Opcode::Write, v.writable.stag.0 + 2, 0, true, b"x"),
            Fault::TaggedStag,
        ),
        (
            |v| tagged(Opcode::Write, v.readable.stag.0, 0, true, b"x"),
            Fault::TaggedAccess,
        ),
        (
            |v| tagged(Opcode::Write, v.writable.stag.0, LEN as u64, true, b"x"),
            Fault::TaggedBounds,
        ),
        (
            |v| {
                tagged(
                    Opcode::Write,
                    v.writable.stag.0,
                    LEN as u64 - 3,
                    true,
                    b"1234",
                )
            },
            Fault::TaggedBounds,
        ),
        (
            |v| tagged(Opcode::Write, v.writable.stag.0, u64::MAX, true, b"12"),
            Fault::TaggedWrap,
        ),
        (
            |v| tagged(Opcode::Write, v.writable.stag.0, u64::MAX - 4, true, b"12"),
            Fault::TaggedBounds,
        ),
        (
            |_| tagged(Opcode::ReadResponse, 1, 0, true, b"unasked"),
            Fault::TaggedStag,
        ),
        (
            |v| read_request(1, v.writable.stag.0, 0, 1),
            Fault::ReadAccess,
        ),
        (|_| read_request(1, 0x7777_0000, 0, 1), Fault::ReadStag),
        (
            |v| read_request(1, v.readable.stag.0, 1, LEN as u32),
            Fault::ReadBounds,
        ),
        (
            |v| read_request(1, v.readable.stag.0, u64::MAX, 2),
            Fault::ReadWrap,
        ),
        (
            |v| read_request(1, v.readable.stag.0, 0, u32::MAX),
            Fault::ReadBounds,
        ),
        (|_| untagged(Opcode::Send, 0, 2, b"late"), Fault::Msn),
        (|_| untagged(Opcode::Send, 3, 1, b"queue"), Fault::Queue),
        (
            |_| untagged(Opcode::Send, 0, 1, &[0; 16385]),
            Fault::TooLong,
        ),
        (
            |_| untagged(Opcode::SendInvalidate, 0, 1, b"of nothing"),
            Fault::CannotInvalidate,
        ),
        (|_| vec![0; 64], Fault::Length),
        (|_| vec![0xff; 64], Fault::TaggedVersion),
        (
            |_| {
                let mut bytes = untagged(Opcode::Send, 0, 1, b"");
                bytes[3] = 0x4a;
                bytes
            },
            Fault::Opcode,
        ),
        (
            |v| {
                let stag = v.readable.stag.0;
                (1..=70)
                    .flat_map(|msn| read_request(msn, stag, 0, LEN as u32))
                    .collect()
            },
            Fault::Stream,
        ),
    ];
    for (number, (attack, fault)) in attacks.into_iter().enumerate() {
        let mut victim = victim(false).await;
        let bytes = attack(&victim);
        victim.peer.write_all(&bytes).await.unwrap();
        // Not read by the peer until now: many answers wait.
        let reason = victim.link.closed().await;
        assert_eq!(
            reason,
            CloseReason::Violation(fault.to_string()),
            "attack {number}"
        );
        if fault != Fault::Stream {
            assert_eq!(said(&mut victim.peer).await, Some(fault), "attack {number}");
        }
        victim.check_untouched();
        let late = victim.link.fence().await.unwrap_err();
        assert_eq!(late.kind, ErrorKind::Closed);
    }
}

#[tokio::test]
async fn a_withdrawn_region_is_unknown() {
    let mut victim = victim(false).await;
    let stag = victim.writable.stag.0;
    let writable = std::mem::replace(
        &mut victim.writable,
        Exposure {
            stag: forebay_fabric::Stag(0),
            base: 0,
            len: 0,
        },
    );
    victim.link.withdraw(writable).await;
    let again = victim.memory.slice(0..LEN).unwrap();
    let again = victim.link.expose(again, Access::Write).await.unwrap();
    assert_ne!(again.stag.0, stag, "a name is not used twice in a row");
    let write = tagged(Opcode::Write, stag, 0, true, b"late");
    victim.peer.write_all(&write).await.unwrap();
    assert_eq!(said(&mut victim.peer).await, Some(Fault::TaggedStag));
    victim.check_untouched();
}

#[tokio::test]
async fn a_peer_may_invalidate_what_it_was_given() {
    let mut victim = victim(false).await;
    let stag = victim.writable.stag.0;
    let header = Untagged {
        opcode: Opcode::SendInvalidate,
        last: true,
        invalidate: stag,
        queue: 0,
        msn: 1,
        mo: 0,
    };
    let send = frame(&header.encode(), b"done with it", false);
    victim.peer.write_all(&send).await.unwrap();
    let mut message = Vec::new();
    victim.link.recv(&mut message).await.unwrap().unwrap();
    assert_eq!(message, b"done with it");
    let write = tagged(Opcode::Write, stag, 0, true, b"late");
    victim.peer.write_all(&write).await.unwrap();
    assert_eq!(said(&mut victim.peer).await, Some(Fault::TaggedStag));
    victim.check_untouched();
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_waits_for_a_segment_but_not_for_ever() {
    let payload = vec![7; 20_000];
    for stalls in [false, true] {
        let mut victim = victim(false).await;
        let stag = victim.writable.stag;
        let write = tagged(Opcode::Write, stag.0, 0, true, &payload);
        victim.peer.write_all(&write[..10_000]).await.unwrap();
        // Until some of it is there.
        let mut seen = [0];
        while seen == [0] {
            tokio::task::yield_now().await;
            assert!(victim.memory.read(LEN + 5000, &mut seen));
        }
        let exposure = Exposure {
            stag,
            base: 0,
            len: LEN as u64,
        };
        let withdraw = victim.link.withdraw(exposure);
        if stalls {
            withdraw.await;
            assert_eq!(victim.link.closed().await, CloseReason::Lost);
        } else {
            let rest = async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                victim.peer.write_all(&write[10_000..]).await.unwrap();
            };
            tokio::join!(withdraw, rest);
            let mut whole = vec![0; payload.len()];
            assert!(victim.memory.read(LEN, &mut whole));
            assert!(whole == payload, "withdrawn before the segment ended");
            victim.link.send(b"alive").await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_is_lost_or_finished() {
    let whole = |victim: &Victim| {
        [
            tagged(Opcode::Write, victim.writable.stag.0, 0, true, &[1; 3000]),
            untagged(Opcode::Send, 0, 1, b"a message"),
        ]
    };
    let frames = whole(&victim(false).await);
    let (first, all) = (frames[0].len(), frames[0].len() + frames[1].len());
    for cut in (0..all).step_by(97).chain([1, 2, 15, 16, first, all]) {
        let mut victim = victim(false).await;
        let bytes = whole(&victim).concat();
        victim.peer.write_all(&bytes[..cut]).await.unwrap();
        drop(victim.peer);
        let reason = victim.link.closed().await;
        let finished = cut == 0 || cut == first || cut == all;
        let expected = if finished {
            CloseReason::Done
        } else {
            CloseReason::Lost
        };
        assert_eq!(reason, expected, "cut after {cut} of {all}");
        let mut message = Vec::new();
        let got = victim.link.recv(&mut message).await;
        if cut == all {
            assert_eq!(message, b"a message");
        } else {
            assert_eq!(got.is_ok(), finished);
        }
    }
}

#[tokio::test]
async fn a_terminate_ends_a_link_whatever_it_says() {
    let mut whole = Vec::new();
    Outbound::terminate(Fault::Mo, &[], 0, false, &mut whole);
    let swapped = untagged(Opcode::Terminate, 2, 1, &[0x20, 6, 0, 0]);
    let short = untagged(Opcode::Terminate, 2, 1, &[0x20]);
    let long = untagged(Opcode::Terminate, 2, 1, &[0xff; 300]);
    for bytes in [whole, swapped, short, long] {
        let mut victim = victim(false).await;
        victim.peer.write_all(&bytes).await.unwrap();
        let reason = victim.link.closed().await;
        assert!(matches!(reason, CloseReason::Terminated(_)), "{reason}");
    }
}

#[tokio::test]
async fn what_follows_a_terminate_is_not_looked_at() {
    let mut victim = victim(false).await;
    let mut terminate = Vec::new();
    Outbound::terminate(Fault::Mo, &[], 0, false, &mut terminate);
    let write = tagged(Opcode::Write, victim.writable.stag.0, 0, true, b"late");
    let all = [&terminate[..], &terminate, &write].concat();
    victim.peer.write_all(&all).await.unwrap();
    let reason = victim.link.closed().await;
    assert_eq!(
        reason,
        CloseReason::Terminated(format!("{} ({})", "layer 1 type 2 code 4", Fault::Mo))
    );
    victim.check_untouched();
}

#[tokio::test]
async fn a_stream_that_is_reset_or_half_closed_ends_its_link() {
    let ask = |victim: &Victim| {
        (1..=3)
            .flat_map(|msn| read_request(msn, victim.readable.stag.0, 0, LEN as u32))
            .collect::<Vec<u8>>()
    };
    let mut reset = victim(false).await;
    let bytes = ask(&reset);
    reset.peer.write_all(&bytes).await.unwrap();
    reset.peer.set_zero_linger().unwrap();
    drop(reset.peer);
    // The system tells of a reset once, to the direction that asks first; the other only sees the end.
    let reason = reset.link.closed().await;
    assert!(
        matches!(reason, CloseReason::Lost | CloseReason::Done),
        "{reason}"
    );

    // What was asked for before may be answered or not; it is not waited for for ever, and no answer is torn.
    let mut half = victim(false).await;
    let bytes = ask(&half);
    half.peer.write_all(&bytes).await.unwrap();
    half.peer.shutdown().await.unwrap();
    assert_eq!(half.link.closed().await, CloseReason::Done);
    assert_eq!(said(&mut half.peer).await, None);
}

#[tokio::test]
async fn pads_are_not_looked_at_nor_digests_that_were_not_agreed_on() {
    for crc in [false, true] {
        let mut victim = victim(crc).await;
        let header = Tagged {
            opcode: Opcode::Write,
            last: true,
            stag: victim.writable.stag.0,
            offset: 0,
        };
        let mut bytes = frame(&header.encode(), b"?", false);
        let pad = bytes.len() - 4;
        bytes[pad - 1] = 0xee;
        let mut digest = Crc::new();
        digest.update(&bytes[..pad]);
        let [a, b, c, d] = digest.field();
        // Without CRCs the field holds whatever its sender likes (RFC 5044 section 4.1).
        bytes[pad..].copy_from_slice(&if crc { [a, b, c, d] } else { [!a, b, c, d] });
        bytes.extend(frame(&head(Opcode::Send, 0, 1).encode(), b"after it", crc));
        victim.peer.write_all(&bytes).await.unwrap();
        let mut message = Vec::new();
        victim.link.recv(&mut message).await.unwrap();
        assert_eq!(message, b"after it");
        let mut placed = [0];
        assert!(victim.memory.read(LEN, &mut placed));
        assert_eq!(&placed, b"?");
    }
}

#[tokio::test]
async fn a_peer_is_told_why_its_link_ends() {
    let violation = CloseReason::Violation("what it asked for makes no sense".into());
    let stream =
        CloseReason::Terminated(format!("{} ({})", "layer 0 type 2 code 7", Fault::Stream));
    for (reason, told) in [
        (CloseReason::SessionEnded, CloseReason::SessionEnded),
        (violation, stream),
        (CloseReason::Done, CloseReason::Done),
    ] {
        let (server, client) = links(Options::default(), Options::default()).await;
        server.close(reason);
        assert_eq!(client.closed().await, told);
    }
}

#[tokio::test]
async fn a_garbled_segment_is_never_placed() {
    let mut victim = victim(true).await;
    let header = Tagged {
        opcode: Opcode::Write,
        last: true,
        stag: victim.writable.stag.0,
        offset: 0,
    };
    let mut bytes = frame(&header.encode(), &[9; 5000], true);
    bytes[2500] ^= 4;
    victim.peer.write_all(&bytes).await.unwrap();
    assert_eq!(said(&mut victim.peer).await, Some(Fault::Crc));
    victim.check_untouched();
    let late = victim.link.fence().await.unwrap_err();
    assert_eq!(late.kind, ErrorKind::Corrupt);
}

/// Passes bytes on until `left` are passed; then it changes the next one, if it is to, and cuts the connection if not.
async fn relay(from: &mut TcpStream, to: &mut TcpStream, mut left: usize, garble: bool) {
    let mut garble = garble;
    let (mut back, mut forth) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            read = from.read(&mut forth) => {
                let Ok(read @ 1..) = read else { return };
                let bytes = &mut forth[..read];
                if left < read {
                    if !garble {
                        let _ = to.write_all(&bytes[..left]).await;
                        return;
                    }
                    bytes[left] ^= 0x10;
                    (left, garble) = (usize::MAX, false);
                    if to.write_all(bytes).await.is_err() { return }
                    continue;
                }
                left -= read;
                if to.write_all(bytes).await.is_err() { return }
            }
            read = to.read(&mut back) => {
                let Ok(read @ 1..) = read else { return };
                if from.write_all(&back[..read]).await.is_err() { return }
            }
        }
    }
}

/// Whatever a connection does to the bytes, what is proven to be placed is right.
#[tokio::test]
async fn proof_of_placement_survives_cuts_and_garbling() {
    let pool = Pool::new(8 << 20);
    for round in 0..60_usize {
        let (server_end, mut to_server) = streams().await;
        let (mut to_client, client_end) = streams().await;
        // The agreement has no CRC: it may be garbled, but is not here.
        let left = 100 + round * round * 97;
        let garble = round % 2 == 1;
        let relayed = tokio::spawn(async move {
            relay(&mut to_client, &mut to_server, left, garble).await;
        });
        let (server, client) = tokio::join!(
            accept(server_end, with_crc(), |_| Some(())),
            connect(client_end, b"", with_crc())
        );
        let (server, client) = (server.unwrap().0, client.unwrap());
        let region = Region::anonymous(1 << 16).unwrap();
        let memory = region.slice(0..1 << 16).unwrap();
        let exposure = server
            .expose(memory.clone(), Access::ReadWrite)
            .await
            .unwrap();
        let range = RemoteRange {
            stag: exposure.stag,
            offset: 0,
            len: 1 << 16,
        };
        let failed = loop {
            let value = vec![round as u8 ^ 0x55; 1 << 16];
            let written = client.write(range, vec![Buf::from(value.clone())]).await;
            if let Err(error) = written {
                break error;
            }
            let mut seen = vec![0; 1 << 16];
            match client.fence().await {
                Ok(_placed) => assert!(memory.read(0, &mut seen) && seen == value),
                Err(error) => break error,
            }
            match client.read(range, pool.take(1 << 16).await).await {
                Ok(got) => assert!(got[..] == value[..]),
                Err(error) => break error,
            }
        };
        assert!(matches!(
            failed.kind,
            ErrorKind::Closed | ErrorKind::Corrupt
        ));
        drop((server, client));
        relayed.await.unwrap();
    }
}

/// Its messages are heard to the last, though nobody took the first of them while it was there.
#[tokio::test]
async fn a_peer_that_has_gone_is_missed_though_nobody_takes_its_messages() {
    const MESSAGES: usize = 10;
    for crash in [false, true] {
        let mut victim = victim(false).await;
        for msn in 1..=MESSAGES {
            let message = untagged(Opcode::Send, 0, msn as u32, &[7; MESSAGE_BYTES_MAX]);
            victim.peer.write_all(&message).await.unwrap();
        }
        // Time goes on when nothing else does: the link waits, and does not look again and again.
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(60)).await;
        tokio::time::resume();
        assert!(!victim.link.has_ended());
        if crash {
            victim.peer.set_zero_linger().unwrap();
        }
        drop(victim.peer);
        let reason = tokio::time::timeout(Duration::from_secs(10), victim.link.closed()).await;
        let (mut message, mut heard) = (Vec::new(), 0);
        while let Ok(Some(())) = victim.link.recv(&mut message).await {
            heard += 1;
        }
        if crash {
            reason.expect("it is missed");
        } else {
            assert_eq!((reason, heard), (Ok(CloseReason::Done), MESSAGES));
        }
    }
}

/// Memory of ours that a peer neither takes nor fills is not kept from others for ever.
#[tokio::test]
async fn a_peer_that_does_not_go_on_is_left() {
    let options = Options {
        stall: Duration::from_millis(50),
        ..Options::default()
    };
    let far = RemoteRange {
        stag: Stag(1),
        offset: 0,
        len: 1 << 20,
    };
    let pool = Pool::new(64 << 20);
    for said_ready in [false, true] {
        for reads in [false, true] {
            let mut victim = victim_with(false, options).await;
            if said_ready {
                let ready = tagged(Opcode::Write, 0, 0, true, b"");
                victim.peer.write_all(&ready).await.unwrap();
            }
            let moving = async {
                loop {
                    let moved = match reads {
                        true => victim
                            .link
                            .read(far, pool.take(1 << 20).await)
                            .await
                            .map(drop),
                        false => {
                            let bytes = Buf::from(vec![7; 1 << 20]);
                            victim.link.write(far, vec![bytes]).await
                        }
                    };
                    if let Err(error) = moved {
                        return error.kind;
                    }
                }
            };
            assert_eq!(moving.await, ErrorKind::Closed);
            assert_eq!(victim.link.closed().await, CloseReason::Stalled);
        }
    }
    assert_eq!(pool.usage().in_use, 0, "buffers are kept");
}

/// One that owes nothing may say nothing for as long as it likes.
#[tokio::test]
async fn a_peer_that_owes_nothing_is_waited_for() {
    let (server, client) = links(Options::default(), Options::default()).await;
    let silent = 4 * Options::default().stall;
    let region = Region::anonymous(1 << 20).unwrap();
    let memory = region.slice(0..1 << 20).unwrap();
    let exposure = client.expose(memory, Access::ReadWrite).await.unwrap();
    let range = RemoteRange {
        stag: exposure.stag,
        offset: 0,
        len: 1 << 20,
    };
    for _ in 0..2 {
        // This passes at once; what follows takes as long as it really does.
        tokio::time::pause();
        tokio::time::advance(silent).await;
        tokio::time::resume();
        let bytes = Buf::from(vec![7; 1 << 20]);
        server.write(range, vec![bytes]).await.unwrap();
        let _placed = server.fence().await.unwrap();
    }
}

/// Memory whose owner takes it away while it is in use harms the link, and nothing else.
#[tokio::test]
async fn memory_that_vanishes_ends_the_link() {
    let (server, client) = links(Options::default(), Options::default()).await;
    let file = tempfile();
    rustix::fs::ftruncate(&file, 1 << 16).unwrap();
    let region = Region::from_fd(file.try_clone().unwrap()).unwrap();
    let memory = region.slice(0..1 << 16).unwrap();
    let exposure = client.expose(memory, Access::ReadWrite).await.unwrap();
    rustix::fs::ftruncate(&file, 0).unwrap();
    let range = RemoteRange {
        stag: exposure.stag,
        offset: 0,
        len: 1 << 16,
    };
    let read = server.read(range, Pool::new(1 << 20).take(1 << 16).await);
    assert_eq!(read.await.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(client.closed().await, CloseReason::Lost);
}

fn tempfile() -> std::os::fd::OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    rustix::fs::memfd_create("vanishing", flags).unwrap()
}

/// It may take its time to end its side of the connection.
#[tokio::test]
async fn who_waits_for_an_answer_learns_of_the_end_at_once() {
    let Victim { link, mut peer, .. } = victim(false).await;
    let hello = untagged(Opcode::Send, 0, 1, b"hello");
    peer.write_all(&hello).await.unwrap();
    link.recv(&mut Vec::new()).await.unwrap().unwrap();
    let from = RemoteRange {
        stag: Stag(1),
        offset: 0,
        len: 100,
    };
    let pool = Pool::new(1 << 20);
    let into = pool.take(100).await;
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let read = async { link.read(from, into).await.unwrap_err().kind };
    let fence = async { link.fence().await.unwrap_err().kind };
    let end = async {
        // Not before both are asked.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        link.close(CloseReason::SessionEnded);
    };
    let (read, fence, ()) = tokio::join!(read, fence, end);
    assert_eq!((read, fence), (ErrorKind::Closed, ErrorKind::Closed));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(pool.usage().in_use, 0);
    drop(peer);
}

/// Talk is no answer.
#[tokio::test]
async fn a_peer_that_talks_instead_of_answering_is_left() {
    let options = Options {
        stall: Duration::from_millis(50),
        ..Options::default()
    };
    let mut victim = victim_with(false, options).await;
    let far = RemoteRange {
        stag: Stag(1),
        offset: 0,
        len: 1 << 20,
    };
    let pool = Pool::new(1 << 20);
    let reading = async { victim.link.read(far, pool.take(1 << 20).await).await };
    let talking = async {
        for msn in 1.. {
            let message = untagged(Opcode::Send, 0, msn, &[7; 16 << 10]);
            if victim.peer.write_all(&message).await.is_err() {
                return;
            }
        }
    };
    let listening = async {
        let mut message = Vec::new();
        while victim.link.recv(&mut message).await.is_ok() {}
    };
    let (read, (), ()) = tokio::join!(reading, talking, listening);
    assert_eq!(read.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(victim.link.closed().await, CloseReason::Stalled);
}
