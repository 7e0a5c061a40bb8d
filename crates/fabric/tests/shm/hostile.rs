//! Clients that keep to nothing: each ends its own link, at worst.

use std::collections::VecDeque;
use std::fs::File;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use forebay_fabric::shm::{self, MAGIC};
use forebay_fabric::{
    Accepted, Access, CloseReason, ErrorKind, Link, MESSAGE_BYTES_MAX, RemoteRange, Session,
    Sessions, Stag,
};
use forebay_io::passing;
use forebay_mem::{PAGE_BYTES, Pool, Region, RegionSlice};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use tokio::net::UnixStream;
use tokio::task::{JoinHandle, LocalSet, spawn_local, yield_now};

use crate::ends;
use crate::lingering::{LINGER, lingering};
use crate::run;

const FRAME: usize = 64;
const RING: usize = 256 << 10;
const DIRECTION: usize = PAGE_BYTES + RING;

/// A client made by hand.
struct Hand {
    stream: UnixStream,
    rings: RegionSlice,
    /// Files it passed, and still holds.
    passed: Vec<OwnedFd>,
}

fn hello(proof: &[u8]) -> Vec<u8> {
    let mut hello = MAGIC.to_vec();
    hello.extend(proof);
    hello.resize(FRAME, 0);
    hello
}

async fn by_hand(sessions: &Sessions, session: &Session) -> (Accepted, Hand) {
    let (here, there) = UnixStream::pair().unwrap();
    let client = async {
        passing::send(&there, &hello(&session.proof()), None)
            .await
            .unwrap();
        let (mut welcome, mut files) = ([0; FRAME], VecDeque::new());
        while files.is_empty() {
            there.readable().await.unwrap();
            let _ = passing::try_recv(&there, &mut welcome, &mut files, None);
        }
        let file = files.pop_front().unwrap();
        Region::received(file, 0, 2 * DIRECTION, true, Box::new(())).unwrap()
    };
    let (accepted, rings) = tokio::join!(shm::accept(here, sessions), client);
    let hand = Hand {
        stream: there,
        rings,
        passed: Vec::new(),
    };
    (accepted.unwrap(), hand)
}

fn frame(kind: u8, value: u8, name: u32, numbers: [u64; 2]) -> Vec<u8> {
    let mut frame = vec![kind, value, 0, 0];
    frame.extend(name.to_le_bytes());
    frame.extend(numbers[0].to_le_bytes());
    frame.extend(numbers[1].to_le_bytes());
    frame.resize(FRAME, 0);
    frame
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("hostile", flags).unwrap();
    ftruncate(&file, len).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// What a server does with a link: echoes messages, and moves bytes where they tell it to.
async fn serve(accepted: &Accepted, pool: &Pool) -> CloseReason {
    let link = &accepted.link;
    let mut message = Vec::new();
    while let Ok(Some(())) = link.recv(&mut message).await {
        assert!(message.len() <= MESSAGE_BYTES_MAX);
        let numbers = message
            .first_chunk()
            .map_or(0, |numbers| u64::from_le_bytes(*numbers));
        let range = RemoteRange {
            stag: Stag(numbers as u32),
            offset: numbers >> 32,
            len: 3000,
        };
        let _ = link.write(range, vec![vec![1; 3000].into()]).await;
        let _ = link.read(range, pool.take(3000).await).await;
        if let Some(window) = link.mapped(range, Access::Write) {
            window.write(0, &[2; 3000]);
        }
        // A client that takes no answers holds up its own link only; here it is left at that.
        tokio::select! {
            biased;
            sent = link.send(&message) => if sent.is_err() { break },
            () = turns(50) => break,
        }
    }
    link.close(CloseReason::Lost);
    link.closed().await
}

async fn turns(count: usize) {
    for _ in 0..count {
        yield_now().await;
    }
}

#[test]
fn who_shows_no_proof_is_refused_in_the_same_words() {
    run(async {
        let sessions = ends::sessions();
        let session = ends::session_of(&sessions, "tenant");
        let ended = ends::session_of(&sessions, "tenant");
        sessions.close(ended.id());
        let mut forged = session.proof();
        forged[35] ^= 1;
        let mut unknown = session.proof();
        unknown[10] ^= 1;
        let mut reserved = hello(&session.proof());
        reserved[63] = 1;
        let mut words = Vec::new();
        let hellos = [
            hello(&forged),
            hello(&unknown),
            hello(&ended.proof()),
            reserved,
            vec![0; FRAME],
            b"GET / HTTP/1.1\r\n".repeat(4),
        ];
        for hello in hellos {
            let (here, there) = UnixStream::pair().unwrap();
            passing::send(&there, &hello, None).await.unwrap();
            let refused = shm::accept(here, &sessions).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Closed);
            words.push(refused.message);
        }
        words.dedup();
        assert_eq!(words.len(), 1, "{words:?}");
        // Cut short at every length.
        for len in 0..FRAME {
            let (here, there) = UnixStream::pair().unwrap();
            if len > 0 {
                passing::send(&there, &hello(&session.proof())[..len], None)
                    .await
                    .unwrap();
            }
            drop(there);
            let refused = shm::accept(here, &sessions).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Closed);
        }
        assert_eq!(session.counts(), (0, 0, 0));
    });
}

#[test]
fn frames_that_no_client_sends_end_the_link() {
    let expose = |name, offset, len| frame(b'e', 3, name, [offset, len]);
    let wrong: [(&str, Vec<u8>); 9] = [
        ("an unknown kind", frame(b'?', 0, 0, [0, 0])),
        ("a welcome", frame(b'h', 0, 0, [1, RING as u64])),
        ("an exposure without a file", expose(1, 0, 10)),
        ("an access that is none", frame(b'e', 4, 1, [0, 10])),
        ("withdrawing what is not exposed", frame(b'u', 0, 1, [0, 0])),
        ("taking what was not offered", frame(b'E', 0, 1, [0, 0])),
        ("refusing what was not offered", frame(b'R', 1, 1, [0, 0])),
        ("giving back what was not lent", frame(b'U', 0, 1, [0, 0])),
        ("an end for no reason", frame(b'c', 9, 0, [0, 0])),
    ];
    for (what, bytes) in wrong {
        run(async {
            let sessions = ends::sessions();
            let session = ends::session_of(&sessions, "tenant");
            let (accepted, hand) = by_hand(&sessions, &session).await;
            passing::send(&hand.stream, &bytes, None).await.unwrap();
            assert_violation(&accepted, what).await;
        });
    }
}

#[test]
fn files_that_cannot_be_used_are_refused_and_no_more() {
    run(async {
        let sessions = ends::sessions();
        let session = ends::session_of(&sessions, "tenant");
        let (accepted, hand) = by_hand(&sessions, &session).await;
        let sealed = || memfd(8192, SealFlags::SHRINK);
        let (pipe, _other) = std::io::pipe().unwrap();
        let cases: [(OwnedFd, u64, u64); 8] = [
            (sealed(), 0, 8193),
            (sealed(), 8192, 1),
            (sealed(), 0, 0),
            (sealed(), u64::MAX, 2),
            (sealed(), 0, u64::MAX),
            (File::open("/dev/zero").unwrap().into(), 0, 10),
            (pipe.into(), 0, 10),
            (memfd(8192, SealFlags::SHRINK | SealFlags::WRITE), 0, 10),
        ];
        let mut answer = [0; FRAME];
        for (name, (file, offset, len)) in cases.into_iter().enumerate() {
            let bytes = frame(b'e', 3, name as u32, [offset, len]);
            passing::send(&hand.stream, &bytes, Some(file.as_fd()))
                .await
                .unwrap();
            read_frame(&hand, &mut answer).await;
            assert_eq!((answer[0], answer[4]), (b'R', name as u8), "case {name}");
        }
        let bytes = frame(b'e', 3, 77, [0, 10]);
        passing::send(&hand.stream, &bytes, Some(sealed().as_fd()))
            .await
            .unwrap();
        read_frame(&hand, &mut answer).await;
        assert_eq!((answer[0], answer[4]), (b'E', 77));
        // The same name once more, before it was withdrawn.
        passing::send(&hand.stream, &bytes, Some(sealed().as_fd()))
            .await
            .unwrap();
        read_frame(&hand, &mut answer).await;
        assert_eq!((answer[0], answer[4]), (b'R', 77));
        accepted.link.send(b"still there").await.unwrap();
    });
}

#[test]
fn files_that_are_slow_to_close_hold_nobody() {
    run(async {
        let sessions = ends::sessions();
        let begin = Instant::now();
        let mut others = Vec::new();
        let mut slow = || {
            let (stream, other) = lingering();
            others.push(other);
            stream
        };
        // Of who proves nothing.
        let (here, there) = UnixStream::pair().unwrap();
        let false_hello = hello(&[7; 36]);
        for bytes in [&false_hello[..20], &false_hello[20..], &false_hello] {
            let file = slow();
            passing::send(&there, bytes, Some(file.as_fd()))
                .await
                .unwrap();
        }
        shm::accept(here, &sessions).await.unwrap_err();
        // Of one whose link ends with some of them unread.
        let session = ends::session_of(&sessions, "tenant");
        let (accepted, hand) = by_hand(&sessions, &session).await;
        let expose = frame(b'e', 3, 1, [0, 10]);
        for bytes in [&expose, &expose, &vec![b'?'; FRAME], &expose, &expose] {
            let file = slow();
            passing::send(&hand.stream, bytes, Some(file.as_fd()))
                .await
                .unwrap();
        }
        let reason = accepted.link.closed().await;
        assert!(matches!(reason, CloseReason::Violation(_)), "{reason}");
        drop((accepted, session, hand));
        assert!(begin.elapsed() < LINGER / 2, "{:?}", begin.elapsed());
    });
}

#[test]
fn a_file_that_is_no_frames_ends_the_link() {
    let expose = frame(b'e', 3, 1, [0, 10]);
    let strays: [(&str, Vec<&[u8]>); 3] = [
        ("with a wake-up", vec![b"w"]),
        ("behind a frame", vec![&expose, b"w"]),
        ("amid a frame", vec![&expose[..20], &expose[20..40]]),
    ];
    for (what, pieces) in strays {
        run(async {
            let sessions = ends::sessions();
            let session = ends::session_of(&sessions, "tenant");
            let (accepted, hand) = by_hand(&sessions, &session).await;
            for piece in pieces {
                let file = memfd(8192, SealFlags::SHRINK);
                passing::send(&hand.stream, piece, Some(file.as_fd()))
                    .await
                    .unwrap();
            }
            assert_violation(&accepted, what).await;
        });
    }
    // It may come with the beginning of its frame.
    run(async {
        let sessions = ends::sessions();
        let session = ends::session_of(&sessions, "tenant");
        let (_accepted, hand) = by_hand(&sessions, &session).await;
        let file = memfd(8192, SealFlags::SHRINK);
        passing::send(&hand.stream, &expose[..20], Some(file.as_fd()))
            .await
            .unwrap();
        turns(50).await;
        passing::send(&hand.stream, &expose[20..], None)
            .await
            .unwrap();
        let mut answer = [0; FRAME];
        read_frame(&hand, &mut answer).await;
        assert_eq!((answer[0], answer[4]), (b'E', 1));
    });
}

/// That the link ends for what its client did.
async fn assert_violation(accepted: &Accepted, what: &str) {
    let reason = accepted.link.closed().await;
    assert!(
        matches!(reason, CloseReason::Violation(_)),
        "{what}: {reason}"
    );
}

/// A socket in which lies what is slow to close: whoever closes it waits for that; and the other end of what lies there.
fn slow_to_close() -> (UnixStream, TcpStream) {
    let (stream, other) = lingering();
    let (here, there) = UnixStream::pair().unwrap();
    passing::try_send(&here, b"x", Some(stream.as_fd())).unwrap();
    (there, other)
}

/// Whoever closes the first of them has not closed the others before it is over.
#[test]
fn files_of_a_tenant_that_are_slow_to_close_end_links_of_that_tenant_alone() {
    const FILES: u32 = 1100;
    run(async {
        let sessions = ends::sessions();
        let open = |tenant| ends::session_of(&sessions, tenant);
        let (greedy, good) = (open("greedy"), open("good"));
        let (_good, hand) = by_hand(&sessions, &good).await;
        let mut answer = [0; FRAME];
        let (slow, _other) = slow_to_close();
        let (pipe, _writer) = std::io::pipe().unwrap();
        let mut slow = Some(slow);
        for _ in 0..3 {
            let (accepted, hand) = by_hand(&sessions, &greedy).await;
            // It is closed when the server closes it.
            if let Some(slow) = slow.take() {
                let bytes = frame(b'e', 3, 0, [0, 10]);
                passing::send(&hand.stream, &bytes, Some(slow.as_fd()))
                    .await
                    .unwrap();
            }
            for name in 1..FILES {
                let bytes = frame(b'e', 3, name, [0, 10]);
                let sent = tokio::select! {
                    biased;
                    _ = accepted.link.closed() => break,
                    sent = passing::send(&hand.stream, &bytes, Some(pipe.as_fd())) => sent,
                };
                if sent.is_err() {
                    break;
                }
            }
            accepted.link.closed().await;
        }

        let file = memfd(8192, SealFlags::SHRINK);
        let bytes = frame(b'e', 3, 7, [0, 10]);
        passing::send(&hand.stream, &bytes, Some(file.as_fd()))
            .await
            .unwrap();
        read_frame(&hand, &mut answer).await;
        assert_eq!((answer[0], answer[4]), (b'E', 7));
        let (accepted, client) = ends::joined(&sessions, &good).await;
        client.send(b"heard").await.unwrap();
        let mut message = Vec::new();
        accepted.link.recv(&mut message).await.unwrap().unwrap();
        assert_eq!(message, b"heard");
    });
}

#[test]
fn who_has_proven_nothing_passes_no_files() {
    run(async {
        let sessions = ends::sessions();
        let (here, there) = UnixStream::pair().unwrap();
        let stranger = async {
            let file = memfd(8192, SealFlags::SHRINK);
            let sent = passing::send(&there, &hello(&[7; 36]), Some(file.as_fd())).await;
            drop(there);
            sent
        };
        let (refused, sent) = tokio::join!(shm::accept(here, &sessions), stranger);
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Closed);
        // As far as the system can.
        let (here, there) = UnixStream::pair().unwrap();
        passing::take_files(&here, false);
        let file = memfd(8192, SealFlags::SHRINK);
        let can = passing::try_send(&there, b"x", Some(file.as_fd())).is_err();
        assert_eq!(sent.is_err(), can);
    });
}

async fn read_frame(hand: &Hand, frame: &mut [u8; FRAME]) {
    let mut files = VecDeque::new();
    let mut have = 0;
    while have < FRAME {
        hand.stream.readable().await.unwrap();
        if let Ok(got) = passing::try_recv(&hand.stream, &mut frame[have..], &mut files, None) {
            assert!(got > 0, "the link has ended");
            have += got;
        }
    }
}

/// Truncating, punching holes and scribbling by a client, under a server that uses its memory; beside it, a client that behaves and
/// must not notice.
#[test]
fn scribbles_by_seed() {
    let seeds = std::env::var("FOREBAY_SEED")
        .ok()
        .and_then(|seed| seed.parse::<u64>().ok());
    let seeds = seeds.map_or(0..150, |seed| seed..seed + 1);
    run(LocalSet::new().run_until(async move {
        let sessions = ends::sessions();
        let pool = Pool::new(16 << 20);
        let good = good_client(&sessions, &pool).await;
        for seed in seeds {
            let session = ends::session_of(&sessions, "hostile");
            let (accepted, hand) = by_hand(&sessions, &session).await;
            let serving: JoinHandle<CloseReason> = spawn_local({
                let pool = pool.clone();
                async move { serve(&accepted, &pool).await }
            });
            scribble(hand, Rng::new(seed)).await;
            serving
                .await
                .unwrap_or_else(|panic| panic!("seed {seed}: {panic}"));
            sessions.close(session.id());
            assert!(!good.is_finished(), "another link noticed seed {seed}");
        }
        good.abort();
        let ended = good.await.unwrap_err();
        assert!(ended.is_cancelled(), "{ended}");
    }));
}

/// Talks and moves bytes for ever, and panics when one is wrong.
async fn good_client(sessions: &Arc<Sessions>, pool: &Pool) -> JoinHandle<()> {
    let session = ends::session_of(sessions, "good");
    let (accepted, client) = ends::joined(sessions, &session).await;
    let pool = pool.clone();
    spawn_local(async move {
        let memory = Region::memfd(10_000).unwrap().slice(0..10_000).unwrap();
        let exposure = client
            .expose(memory.clone(), Access::ReadWrite)
            .await
            .unwrap();
        let serving = async { serve(&accepted, &pool).await };
        let asking = async {
            let (mut got, mut there) = (Vec::new(), [0; 3000]);
            let mut message = vec![0; 100];
            for offset in (0u64..7000).cycle() {
                let numbers = u64::from(exposure.stag.0) | offset << 32;
                message[..8].copy_from_slice(&numbers.to_le_bytes());
                client.send(&message).await.unwrap();
                client.recv(&mut got).await.unwrap().unwrap();
                assert!(got == message);
                assert!(memory.read(offset as usize, &mut there));
                assert!(there == [2; 3000]);
                yield_now().await;
            }
        };
        tokio::select! {
            reason = serving => panic!("the server ended the link: {reason}"),
            () = asking => {}
        }
    })
}

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 33) % bound
    }
}

async fn scribble(mut hand: Hand, mut rng: Rng) {
    let words = [0, 128, 256, 384].map(|word| (word, word + DIRECTION));
    let mut produced = 0u64;
    for _ in 0..rng.below(200) {
        match rng.below(12) {
            0 => {
                let (to_server, to_client) = words[rng.below(4) as usize];
                let at = if rng.below(2) == 0 {
                    to_server
                } else {
                    to_client
                };
                let value = match rng.below(3) {
                    0 => rng.next(),
                    1 => rng.below(2 * RING as u64),
                    _ => produced + rng.below(64) * 8,
                };
                assert!(hand.rings.write(at, &value.to_le_bytes()));
            }
            1 => {
                let at = rng.below(2 * DIRECTION as u64 - 64) as usize;
                let junk: Vec<u8> = (0..64).map(|_| rng.next() as u8).collect();
                assert!(hand.rings.write(at, &junk));
            }
            // A message as it should be, naming some region.
            2..6 => {
                let at = PAGE_BYTES + (produced % RING as u64) as usize;
                let numbers = rng.below(8) | rng.below(6000) << 32;
                let len = match rng.below(40) {
                    0 => rng.next(),
                    1 => rng.below(100_000),
                    _ => 8,
                };
                if at + 16 <= DIRECTION {
                    assert!(hand.rings.write(at, &len.to_le_bytes()));
                    assert!(hand.rings.write(at + 8, &numbers.to_le_bytes()));
                    produced += 8 + len.min(100_000).next_multiple_of(8);
                    assert!(hand.rings.write(0, &produced.to_le_bytes()));
                }
                let _ = passing::try_send(&hand.stream, b"w", None);
            }
            6..8 => {
                let seals = [
                    SealFlags::SHRINK,
                    SealFlags::GROW,
                    SealFlags::SHRINK | SealFlags::WRITE,
                ];
                let file = memfd(rng.below(3) * 8192, seals[rng.below(3) as usize]);
                let bytes = frame(
                    b'e',
                    1 + rng.below(3) as u8,
                    rng.below(8) as u32,
                    [rng.below(2) * 100, 8000 + rng.below(300)],
                );
                let _ = passing::try_send(&hand.stream, &bytes, Some(file.as_fd()));
                hand.passed.push(file);
            }
            8 => {
                for file in &hand.passed {
                    if rng.below(2) == 0 {
                        let _ = ftruncate(file, rng.below(3) * 4096);
                    } else {
                        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                        let _ = fallocate(file, punch, 0, 1 + rng.below(9000));
                    }
                }
            }
            9 => {
                let bytes = frame(b'u', 0, rng.below(8) as u32, [0, 0]);
                let _ = passing::try_send(&hand.stream, &bytes, None);
            }
            10 if rng.below(10) == 0 => {
                let junk: Vec<u8> = (0..rng.below(200)).map(|_| rng.next() as u8).collect();
                let _ = passing::try_send(&hand.stream, &junk, None);
            }
            _ => turns(1 + rng.below(5) as usize).await,
        }
    }
    turns(10).await;
}
