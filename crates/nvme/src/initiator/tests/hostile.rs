//! Targets that break the protocol: calls end, nothing is placed where it should not be, and nothing is believed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use forebay_mem::{Region, RegionSlice};
use forebay_proto::nvme::opcode::nvm;
use forebay_proto::nvme::{CompletionQueueEntry, Status, SubmissionQueueEntry};
use forebay_proto::nvme_tcp::{
    Data, FatalErrorStatus, Fault, Framing, ICResp, PduType, R2T, capsule_resp,
};

use super::super::{Error, Options, Sink};
use super::fake::{Answer, Fake, Manner, SUBNQN};
use super::*;

const PLAIN: Framing = Framing::PLAIN;

fn c2h(cid: u16, offset: u32, bytes: usize, last: bool, success: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let head = Data {
        cccid: cid,
        ttag: 0,
        offset,
        bytes: bytes as u32,
        last,
        success,
    };
    head.encode(PduType::C2HData, &PLAIN, &mut out);
    out.resize(out.len() + bytes, 0xee);
    out
}

fn r2t(cid: u16, offset: u32, bytes: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let request = R2T {
        cccid: cid,
        ttag: 1,
        offset,
        bytes,
    };
    request.encode(&PLAIN, &mut out);
    out
}

fn response(cid: u16, status: Status) -> Vec<u8> {
    let mut out = Vec::new();
    let entry = CompletionQueueEntry {
        cid,
        status,
        ..CompletionQueueEntry::default()
    };
    capsule_resp(&PLAIN, &entry.encode(false), &mut out);
    out
}

fn term(fault: Fault) -> Vec<u8> {
    let mut out = Vec::new();
    fault.encode(PduType::C2HTermReq, &[1, 2, 3], &mut out);
    out
}

/// A read of 8 blocks into the middle of a region, and its surroundings.
fn window() -> (RegionSlice, RegionSlice) {
    let region = Region::anonymous(3 * 4096).unwrap();
    (
        region.slice(4096..8192).unwrap(),
        region.slice(0..3 * 4096).unwrap(),
    )
}

/// Answers every read with what `wrong` makes of its identifier; the read must fail, nothing but its own memory may be touched, and
/// the next connection must work.
async fn read_is_refused(name: &str, wrong: impl Fn(u16) -> Vec<u8> + Send + Sync + 'static) {
    let reads = Arc::new(AtomicUsize::new(0));
    let seen = reads.clone();
    let manner = Manner::default().conduct(move |entry| {
        if entry.opcode() == nvm::READ && seen.fetch_add(1, SeqCst) < 2 {
            Answer::Raw(wrong(entry.cid()))
        } else {
            Answer::Proper
        }
    });
    let (fake, namespace) = blocks(manner, options()).await;
    namespace.write(0, source(&[5; 4096]), false).await.unwrap();
    let (memory, around) = window();
    // The read is sent again by the next connections, the third time with a proper answer.
    let (done, _) = namespace.read(0, Sink::Region(memory.clone(), None)).await;
    done.unwrap();
    let mut bytes = vec![0; 3 * 4096];
    assert!(around.read(0, &mut bytes));
    assert!(
        bytes[..4096]
            .iter()
            .chain(&bytes[8192..])
            .all(|byte| *byte == 0),
        "{name}"
    );
    assert_eq!(bytes[4096..8192], [5; 4096], "{name}");
    assert_eq!(reads.load(SeqCst), 3, "{name}: it was tried again");
    assert!(
        fake.shared.connections.load(SeqCst) >= 6,
        "{name}: by new connections"
    );
}

#[tokio::test]
async fn wrong_data_ends_the_connection_and_touches_nothing_else() {
    read_is_refused("unknown command", |cid| c2h(cid ^ 1, 0, 4096, true, true)).await;
    read_is_refused("stale command", |cid| {
        c2h(cid ^ 1 << 12, 0, 4096, true, true)
    })
    .await;
    read_is_refused("place out of range", |_| c2h(0x3ff, 0, 4096, true, true)).await;
    read_is_refused("not from the begin", |cid| c2h(cid, 512, 512, true, true)).await;
    read_is_refused("too much", |cid| c2h(cid, 0, 4608, true, true)).await;
    read_is_refused("offset wraps", |cid| c2h(cid, u32::MAX, 4096, true, true)).await;
    read_is_refused("more than the rest", |cid| {
        [
            c2h(cid, 0, 2048, false, false),
            c2h(cid, 2048, 4096, true, true),
        ]
        .concat()
    })
    .await;
    read_is_refused("twice", |cid| {
        [
            c2h(cid, 0, 2048, false, false),
            c2h(cid, 0, 2048, true, true),
        ]
        .concat()
    })
    .await;
    read_is_refused("after the last", |cid| {
        [
            c2h(cid, 0, 2048, true, false),
            c2h(cid, 2048, 2048, true, true),
        ]
        .concat()
    })
    .await;
    read_is_refused("success without last", |cid| c2h(cid, 0, 4096, false, true)).await;
    read_is_refused("data requested of a read", |cid| r2t(cid, 0, 512)).await;
    read_is_refused("completion of nothing", |cid| {
        response(cid ^ 3, Status::SUCCESS)
    })
    .await;
    read_is_refused("unknown PDU", |_| vec![0x0a, 0, 24, 0, 24, 0, 0, 0]).await;
    read_is_refused("a host's PDU", |_| vec![0x04, 0, 72, 0, 72, 0, 0, 0]).await;
    read_is_refused("wrong HLEN", |_| vec![0x05, 0, 23, 0, 24, 0, 0, 0]).await;
    read_is_refused("wrong PLEN", |_| {
        vec![0x05, 0, 24, 0, 0xff, 0xff, 0xff, 0xff]
    })
    .await;
    read_is_refused("digest that was not agreed", |_| {
        vec![0x05, 1, 24, 0, 28, 0, 0, 0]
    })
    .await;
    read_is_refused("second ICResp", |_| vec![0x01, 0, 128, 0, 128, 0, 0, 0]).await;
    let fault = Fault::of(FatalErrorStatus::PduSequenceError);
    read_is_refused("TermReq", move |_| term(fault)).await;
}

#[tokio::test]
async fn a_short_read_is_no_success() {
    let manner = Manner::default().conduct(|entry| match entry.opcode() {
        nvm::READ => Answer::Raw(c2h(entry.cid(), 0, 512, true, true)),
        _ => Answer::Proper,
    });
    let (_fake, namespace) = blocks(manner, options()).await;
    let (done, _) = namespace.read(0, room(4096)).await;
    assert!(matches!(done, Err(Error::Protocol(_))), "{done:?}");
    let manner = Manner::default().conduct(|entry| match entry.opcode() {
        nvm::READ | nvm::WRITE => Answer::Raw(response(entry.cid(), Status::SUCCESS)),
        _ => Answer::Proper,
    });
    let (_fake, namespace) = blocks(manner, options()).await;
    let (done, _) = namespace.read(0, room(512)).await;
    assert!(matches!(done, Err(Error::Protocol(_))), "{done:?}");
    // A write that nobody asked the data of.
    let done = namespace.write(0, source(&[1; 8192]), false).await;
    assert!(matches!(done, Err(Error::Protocol(_))), "{done:?}");
}

#[tokio::test]
async fn wrong_requests_for_data_end_the_connection() {
    type Wrong = fn(u16) -> Vec<u8>;
    let cases: [(&str, Wrong); 6] = [
        ("nothing", |cid| r2t(cid, 0, 0)),
        ("beyond the end", |cid| r2t(cid, 0, 8193)),
        ("not the next", |cid| r2t(cid, 4096, 4096)),
        ("wraps", |cid| r2t(cid, u32::MAX, 2)),
        ("unknown command", |cid| r2t(cid ^ 2, 0, 8192)),
        ("more than there is", |cid| {
            [r2t(cid, 0, 8192), r2t(cid, 8192, 1)].concat()
        }),
    ];
    for (name, wrong) in cases {
        let writes = Arc::new(AtomicUsize::new(0));
        let seen = writes.clone();
        let manner = Manner::default().conduct(move |entry| {
            if entry.opcode() == nvm::WRITE && seen.fetch_add(1, SeqCst) == 0 {
                Answer::Raw(wrong(entry.cid()))
            } else {
                Answer::Proper
            }
        });
        let (fake, namespace) = blocks(manner, options()).await;
        namespace.write(0, source(&[3; 8192]), false).await.unwrap();
        assert_eq!(writes.load(SeqCst), 2, "{name}");
        assert_eq!(fake.shared.blocks.lock()[..8192], [3; 8192], "{name}");
    }
}

/// It said that it takes one at a time: each is more to keep.
#[tokio::test]
async fn requests_for_data_that_come_together_end_the_connection() {
    let writes = Arc::new(AtomicUsize::new(0));
    let seen = writes.clone();
    let manner = Manner::default().conduct(move |entry| {
        if entry.opcode() == nvm::WRITE && seen.fetch_add(1, SeqCst) == 0 {
            let cid = entry.cid();
            Answer::Raw([r2t(cid, 0, 512), r2t(cid, 512, 512)].concat())
        } else {
            Answer::Proper
        }
    });
    let (fake, namespace) = blocks(manner, options()).await;
    namespace.write(0, source(&[3; 8192]), false).await.unwrap();
    assert_eq!(writes.load(SeqCst), 2);
    let mut told = fake.shared.terminated.subscribe();
    let told = told.wait_for(Option::is_some);
    let told = tokio::time::timeout(Duration::from_secs(20), told).await;
    let why = told.expect("a reason").unwrap().unwrap();
    assert_eq!(
        why.known(),
        Some(FatalErrorStatus::DataTransferLimitExceeded)
    );
}

#[tokio::test]
async fn damaged_data_is_asked_for_again_and_not_for_ever() {
    let digests = Options {
        data_digest: true,
        ..options()
    };
    let manner = Manner::default();
    let wrong = manner.wrong_digests.clone();
    let (fake, namespace) = blocks(manner, digests).await;
    namespace.write(0, source(&[5; 4096]), false).await.unwrap();
    let before = fake.shared.connections.load(SeqCst);
    for sink in [room(4096), Sink::Region(window().0, None)] {
        wrong.store(2, SeqCst);
        let (done, sink) = namespace.read(0, sink).await;
        done.unwrap();
        assert_eq!(received(sink), [5; 4096]);
    }
    wrong.store(1000, SeqCst);
    let (done, _) = namespace.read(0, room(4096)).await;
    assert_eq!(done, Err(Error::Damaged));
    assert_eq!(
        fake.shared.connections.load(SeqCst),
        before,
        "it is no reason to part"
    );
}

#[tokio::test]
async fn a_controller_that_cannot_carry_out_a_command_for_a_moment_is_asked_again() {
    let times = Arc::new(AtomicUsize::new(0));
    let seen = times.clone();
    let manner = Manner::default().conduct(move |entry| {
        if seen.fetch_add(1, SeqCst) % 3 < 2 {
            Answer::Raw(response(entry.cid(), Status::NAMESPACE_NOT_READY))
        } else {
            Answer::Proper
        }
    });
    let (_fake, namespace) = blocks(manner, options()).await;
    namespace.write(0, source(&[1; 512]), false).await.unwrap();
    assert_eq!(times.load(SeqCst), 3);
    let pool = Pool::new(1 << 20);
    for sink in [room(512), Sink::Buf(pool.take(512).await, 512)] {
        let (done, sink) = namespace.read(0, sink).await;
        done.unwrap();
        assert_eq!(received(sink), [1; 512]);
    }
    assert_eq!(times.load(SeqCst), 9);
}

#[tokio::test]
async fn a_silent_controller_is_left() {
    let silent = Arc::new(AtomicUsize::new(1));
    let seen = silent.clone();
    let manner = Manner::default().conduct(move |_| {
        match seen.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Answer::Silence,
            Err(_) => Answer::Proper,
        }
    });
    let impatient = Options {
        command_timeout: Duration::from_millis(200),
        ..options()
    };
    let (fake, namespace) = blocks(manner, impatient).await;
    let (done, _) = namespace.read(0, room(512)).await;
    done.unwrap();
    assert_eq!(silent.load(SeqCst), 0);
    assert_eq!(fake.shared.connections.load(SeqCst), 4);
}

#[tokio::test]
async fn what_is_no_nvme_is_not_connected_to() {
    let icresp = ICResp {
        cpda: 0,
        digests: Default::default(),
        h2c_data_bytes_max: 1 << 20,
    };
    let mut wrong: Vec<Vec<u8>> = vec![b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(8), vec![0; 128]];
    for (at, value) in [
        (8, 1),
        (10, 32),
        (11, 1),
        (11, 4),
        (2, 64),
        (4, 127),
        (1, 1),
    ] {
        let mut bytes = icresp.encode().to_vec();
        bytes[at] = value;
        wrong.push(bytes);
    }
    for max in [0u32, 4092, 4098] {
        let mut bytes = icresp.encode().to_vec();
        bytes[12..16].copy_from_slice(&max.to_le_bytes());
        wrong.push(bytes);
    }
    for bytes in wrong {
        let fake = Fake::start(Manner {
            icresp: Some(bytes.clone()),
            ..Manner::default()
        })
        .await;
        let refused = Controller::connect(address(&fake), SUBNQN, options()).await;
        assert!(
            matches!(refused, Err(Error::Protocol(_))),
            "{bytes:?} {refused:?}"
        );
    }
    // Not a word.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap().to_string().parse().unwrap();
    let impatient = Options {
        connect_timeout: Duration::from_millis(100),
        ..options()
    };
    let refused = Controller::connect(silent, SUBNQN, impatient).await;
    assert!(matches!(refused, Err(Error::Unreachable(_))), "{refused:?}");
}

#[tokio::test]
async fn a_host_that_is_not_let_in_is_told_so() {
    for (status, denied) in [
        (Status::CONNECT_INVALID_HOST, true),
        (Status::CONNECT_INVALID_PARAMETERS, true),
        (Status::CONNECT_CONTROLLER_BUSY, false),
    ] {
        let fake = Fake::start(Manner {
            connect: status,
            ..Manner::default()
        })
        .await;
        match Controller::connect(address(&fake), SUBNQN, options()).await {
            Err(Error::Denied(_)) => assert!(denied),
            Err(Error::Status(told)) => assert_eq!((told.code(), denied), (status, false)),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_future_that_is_dropped_keeps_its_memory_until_the_controller_is_done() {
    let manner = Manner::default().conduct(|_| Answer::Silence);
    let (fake, namespace) = blocks(manner, options()).await;
    let hold: forebay_io::Hold = Arc::new(());
    let (memory, _) = window();
    let sink = Sink::Region(memory, Some(super::super::Hold(hold.clone())));
    let mut read = Box::pin(namespace.read(0, sink));
    // It is sent when another one is, which goes after it.
    let poll = poll_once(read.as_mut());
    assert!(poll.is_pending());
    let flush = namespace.flush();
    let mut flush = Box::pin(flush);
    assert!(poll_once(flush.as_mut()).is_pending());
    tokio::task::yield_now().await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(read);
    drop(flush);
    assert_eq!(
        Arc::strong_count(&hold),
        2,
        "the controller may still answer"
    );
    fake.behave(Manner::default());
    fake.cut();
    namespace.controller().disconnected().await;
    namespace.controller().connected().await.unwrap();
    namespace.flush().await.unwrap();
    assert_eq!(Arc::strong_count(&hold), 1);
}

#[tokio::test]
async fn random_bytes_never_do_harm() {
    let seed = Arc::new(AtomicUsize::new(1));
    let next = seed.clone();
    let manner = Manner::default().conduct(move |entry: &SubmissionQueueEntry| {
        let seed = next.fetch_add(1, SeqCst) as u64;
        if seed.is_multiple_of(8) {
            return Answer::Proper;
        }
        let mut bytes = pattern(200, seed);
        // Some look right at first.
        if seed.is_multiple_of(2) {
            let cid = entry.cid().to_le_bytes();
            bytes[..8].copy_from_slice(&[0x07, 0x04, 24, 24, 200, 0, 0, 0]);
            bytes[8..10].copy_from_slice(&cid);
        }
        Answer::Raw(bytes)
    });
    let (_fake, namespace) = blocks(manner, options()).await;
    for turn in 0..40 {
        let (memory, around) = window();
        let _ = namespace.read(turn, Sink::Region(memory, None)).await;
        let mut bytes = vec![0; 3 * 4096];
        assert!(around.read(0, &mut bytes));
        assert!(
            bytes[..4096]
                .iter()
                .chain(&bytes[8192..])
                .all(|byte| *byte == 0)
        );
    }
}
