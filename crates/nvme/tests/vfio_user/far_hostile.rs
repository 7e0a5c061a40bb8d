//! Clients that mean ill when they are asked for memory, or do not answer: each harms at most itself.

use std::time::Duration;

use forebay_nvme::vfio_user::Ended;
use forebay_nvme::vfio_user::client::{DoorbellMode, Mapping, QueueMemory, QueueOptions};
use forebay_proto::nvme::nvm::NvmCommand;
use forebay_proto::nvme::property::{Configuration, ControllerStatus};
use forebay_proto::nvme::{SglDescriptor, SglKind, SglSubtype, Status, SubmissionQueueEntry};
use forebay_proto::vfio_user::{Command, Header, Kind, Request, message};

use crate::relay::{Fate, relayed, relayed_taking};
use crate::support::*;

const REFUSED: Status = Status::DATA_TRANSFER_ERROR;
const CSTS: u32 = 0x1c;
const CC: u32 = 0x14;

fn answer(header: &Header, error: Option<u32>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let kind = Kind::Reply { error };
    message(&mut bytes, header.id, header.number, kind, |out| {
        out.extend_from_slice(payload);
    });
    bytes
}

/// Answers what the device asks, which completes nothing meanwhile.
async fn answer_until(host: &mut Host, until: impl Future<Output = ()>) {
    tokio::select! {
        () = until => {}
        _ = host.queue.wait(|one| panic!("{one:?}")) => {}
    }
}

type Wrong = fn(&Header, &[u8]) -> Vec<u8>;

/// Ways to answer wrongly.
const WRONG: [(&str, Wrong); 8] = [
    ("an error", |header, _| answer(header, Some(14), &[])),
    ("an error with data", |header, payload| {
        answer(header, Some(14), payload)
    }),
    ("a byte less", |header, payload| {
        answer(header, None, &payload[..payload.len() - 1])
    }),
    ("a byte more", |header, payload| {
        answer(header, None, &[payload, &[0]].concat())
    }),
    ("much more", |header, payload| {
        answer(header, None, &[payload, &[0; 1 << 19]].concat())
    }),
    ("another address", |header, payload| {
        let mut payload = payload.to_vec();
        payload[1] ^= 1;
        answer(header, None, &payload)
    }),
    ("another count", |header, payload| {
        let mut payload = payload.to_vec();
        payload[8] ^= 1;
        answer(header, None, &payload)
    }),
    ("another command", |header, payload| {
        let number = header.number ^ (Command::DmaRead as u16 ^ Command::DmaWrite as u16);
        answer(&Header { number, ..*header }, None, payload)
    }),
];

#[tokio::test]
async fn a_wrong_answer_fails_what_it_was_asked_for() {
    let world = World::new().await;
    let (mut host, relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let memory = host.lent(1 << 20).await;
    put(&memory, 0, &pattern(100_000, 1));
    let stored = host.store(b"key", &memory, 100_000).await;
    assert_eq!(stored.status, Status::SUCCESS);
    for (what, wrong) in WRONG {
        let block = memory.point(write(1, 0, 8), 0, 4096).unwrap();
        let block_back = memory.point(read(1, 0, 8), 0, 4096).unwrap();
        // The first answer, or a later one.
        for after in [0, 2] {
            let judge = move || {
                let mut count = 0;
                move |header: &Header, payload: &[u8]| {
                    count += 1;
                    match count > after {
                        true => Fate::Is(wrong(header, payload)),
                        false => Fate::Passes,
                    }
                }
            };
            relay.judge(judge());
            let status = host.store(b"key", &memory, 100_000).await.status.code();
            assert_eq!(status, REFUSED, "{what} {after}");
            relay.judge(judge());
            let status = host.retrieve(b"key", &memory, 100_000).await.status.code();
            assert_eq!(status, REFUSED, "{what} {after}");
        }
        relay.judge(move |header, payload| Fate::Is(wrong(header, payload)));
        for command in [&block, &block_back] {
            let status = host.execute(command).await.status.code();
            assert_eq!(status, REFUSED, "{what}");
        }
        relay.pass();
        // What was stored before is what is there.
        put(&memory, 0, &vec![0; 100_000]);
        let back = host.retrieve(b"key", &memory, 100_000).await;
        assert_eq!((back.status, back.result), (Status::SUCCESS, 100_000));
        assert!(get(&memory, 0, 100_000) == pattern(100_000, 1), "{what}");
    }
}

#[tokio::test]
async fn an_answer_to_nothing_ends_the_connection() {
    let world = World::new().await;
    let (mut host, relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let memory = host.lent(8192).await;
    relay.judge(|header, payload| {
        let id = header.id ^ 0x8000;
        Fate::Is(answer(&Header { id, ..*header }, None, payload))
    });
    let command = memory.point(write(1, 0, 8), 0, 4096).unwrap();
    assert!(host.queue.submit(&command));
    host.queue.ring().await.unwrap();
    assert!(host.queue.wait(|_| {}).await.is_err());
    assert!(matches!(host.served.ended(), Ended::Broken(_)));
    still_serves(&world).await;
}

#[tokio::test]
async fn who_never_answers_is_waited_for_so_long_and_a_late_answer_is_dropped() {
    let world = World::new().await;
    let (mut host, relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let memory = host.lent(1 << 20).await;
    put(&memory, 0, &pattern(8192, 1));
    let store = memory.point(store(b"key", 8192), 0, 8192).unwrap();
    assert_eq!(host.execute(&store).await.status, Status::SUCCESS);
    let retrieve = memory.point(retrieve(b"key", 8192), 0, 8192).unwrap();
    for command in [store, retrieve] {
        for lost in [true, false] {
            relay.judge(move |_, _| match lost {
                true => Fate::IsLost,
                false => Fate::IsKept,
            });
            host.served.stop_clock();
            let status = host.execute(&command).await.status.code();
            assert_eq!(status, REFUSED, "{lost}");
            host.served.start_clock();
            relay.release().await;
            // The next ones are answered as they should be.
            assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
        }
    }
    assert!(get(&memory, 0, 8192) == pattern(8192, 1));
}

#[tokio::test]
async fn a_shutdown_is_complete_when_nothing_is_awaited_any_more() {
    let world = World::new().await;
    let (mut host, mut relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let memory = host.lent(8192).await;
    relay.judge(|_, _| Fate::IsLost);
    let command = memory.point(write(1, 0, 8), 0, 4096).unwrap();
    assert!(host.queue.submit(&command));
    host.queue.ring().await.unwrap();
    relay.wait_asked(1).await;
    let shutdown = u64::from(Configuration::ENABLE.with_shutdown().0);
    host.device.write_register(CC, 4, shutdown).await.unwrap();
    let status = async |host: &Host| {
        let status = host.device.read_register(CSTS, 4).await.unwrap();
        ControllerStatus(status as u32)
    };
    let now = status(&host).await;
    assert!(now.shuts_down() && !now.shutdown_complete());
    // It is not waited for any longer.
    host.served.stop_clock();
    while !status(&host).await.shutdown_complete() {}
}

#[tokio::test]
async fn a_client_that_owes_many_answers_is_asked_no_more() {
    let world = World::new().await;
    let (mut host, mut relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let memory = host.lent(1 << 20).await;
    let commands: Vec<_> = (0..100)
        .map(|number| {
            let at = usize::from(number) * 4096;
            memory.point(write(number, 0, 8), at, 4096).unwrap()
        })
        .collect();
    relay.judge(|_, _| Fate::IsLost);
    while relay.asked().len() < 64 {
        let before = relay.asked().len();
        for command in &commands {
            assert!(host.queue.submit(command));
        }
        host.queue.ring().await.unwrap();
        relay.wait_asked(64.min(before + 16)).await;
        let mut ended = Vec::new();
        if before == 0 {
            // They are all with the device when it answers this: it asks for no more while it waits.
            let flush = SubmissionQueueEntry::new(0, 200, BLOCK);
            assert!(host.queue.submit(&flush));
            host.queue.ring().await.unwrap();
            host.queue.wait(|one| ended.push(one.cid)).await.unwrap();
            assert_eq!(ended, [200]);
            assert_eq!(relay.asked().len(), 16);
            ended.clear();
        }
        host.served.stop_clock();
        while ended.len() < 100 {
            let ended = &mut ended;
            let each = host.queue.wait(|one| {
                assert_eq!(one.status.code(), REFUSED);
                ended.push(one.cid);
            });
            each.await.unwrap();
        }
        host.served.start_clock();
    }
    assert_eq!(relay.asked().len(), 64);
    // It owes too much to be asked again; its other memory is reached as ever. What it still answers to earlier questions is lost, too.
    assert_eq!(host.execute(&commands[0]).await.status.code(), REFUSED);
    assert_eq!(relay.asked().len(), 64);
    let near = host.memory(4096).await;
    let command = near.point(write(1, 0, 8), 0, 4096).unwrap();
    assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
}

#[tokio::test]
async fn data_that_is_kept_back_keeps_nobody_from_the_blocks() {
    let world = World::new().await;
    let (mut host, mut relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let mut other = Host::new(&world, DoorbellMode::Shadow).await;
    let (far, near) = (host.lent(8192).await, other.memory(8192).await);
    let pair = |memory: &Mapping| {
        let blocks = blocks(0, 16);
        let compare = NvmCommand::Compare { blocks }.entry(1, BLOCK).with_fuse(1);
        let replace = write(2, 0, 16).with_fuse(2);
        [compare, replace].map(|half| memory.point(half, 0, 8192).unwrap())
    };
    let single = |memory: &Mapping| memory.point(write(3, 0, 16), 0, 8192).unwrap();
    for held in [&[single(&far)][..], &pair(&far)] {
        // Each is asked for in two pieces; from one of them on, answers do not come.
        for pass in 0..2 * held.len() {
            relay.forget();
            let mut count = 0;
            relay.judge(move |_, _| {
                count += 1;
                match count > pass {
                    true => Fate::IsKept,
                    false => Fate::Passes,
                }
            });
            for command in held {
                assert!(host.queue.submit(command));
            }
            host.queue.ring().await.unwrap();
            answer_until(&mut host, relay.wait_asked(pass + 1)).await;
            let mut ended = other.execute_all(&pair(&near)).await;
            ended.push(other.execute(&single(&near)).await);
            assert!(ended.iter().all(|one| one.status == Status::SUCCESS));
            relay.release().await;
            ended.clear();
            while ended.len() < held.len() {
                let ended = &mut ended;
                host.queue.wait(|one| ended.push(one)).await.unwrap();
            }
            assert!(ended.iter().all(|one| one.status == Status::SUCCESS));
        }
    }
}

#[tokio::test]
async fn everything_else_goes_on_while_an_answer_is_awaited() {
    let world = World::new().await;
    for queues in [QueueMemory::Mapped, QueueMemory::Lent] {
        let (mut host, mut relay) = relayed(&world, DoorbellMode::Trapped, queues).await;
        let (near, far) = (host.memory(8192).await, host.lent(8192).await);
        let mut other = host.device.create_queue(QueueOptions::default()).await;
        let other = other.as_mut().unwrap();
        relay.forget();
        relay.keep();
        let command = far.point(write(1, 0, 8), 0, 4096).unwrap();
        assert!(host.queue.submit(&command));
        host.queue.ring().await.unwrap();
        relay.wait_asked(1).await;
        // The client's own requests: registers, memory, and commands, if it can be told of them.
        assert_eq!(host.device.read_register(CSTS, 4).await.unwrap() & 3, 1);
        let more = host.lent(4096).await;
        host.device.unmap(more).await.unwrap();
        if queues == QueueMemory::Mapped {
            let command = near.point(read(2, 0, 8), 0, 4096).unwrap();
            assert!(other.submit(&command));
            other.ring().await.unwrap();
            let ended = other.wait(|one| assert_eq!(one.status, Status::SUCCESS));
            assert_eq!(ended.await.unwrap(), 1);
        }
        relay.release().await;
        let ended = host
            .queue
            .wait(|one| assert_eq!(one.status, Status::SUCCESS));
        assert_eq!(ended.await.unwrap(), 1);
    }
}

#[tokio::test]
async fn memory_is_unmapped_while_the_client_owes_an_answer_about_it() {
    let world = World::new().await;
    let (mut host, mut relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let blocks = host.memory(4096).await;
    let command = blocks.point(write(1, 0, 8), 0, 4096).unwrap();
    assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
    for all in [false, true] {
        for command in [write(1, 0, 8), read(1, 0, 8)] {
            let (kept, gone) = (host.lent(4096).await, host.lent(4096).await);
            relay.forget();
            relay.keep();
            let command = gone.point(command, 0, 4096).unwrap();
            assert!(host.queue.submit(&command));
            host.queue.ring().await.unwrap();
            relay.wait_asked(1).await;
            // It is answered though the client has not answered.
            if all {
                host.device.request(&unmap(0, 0, true)).await.unwrap();
                // The queues are gone, too.
                relay.release().await;
                (host, relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
                continue;
            }
            host.device.unmap(gone).await.unwrap();
            let ended = host
                .queue
                .wait(|one| assert_eq!(one.status.code(), REFUSED));
            assert_eq!(ended.await.unwrap(), 1);
            relay.release().await;
            assert_eq!(host.execute(&command).await.status.code(), REFUSED);
            assert_eq!(relay.asked().len(), 1);
            let command = kept.point(read(1, 0, 8), 0, 4096).unwrap();
            assert_eq!(host.execute(&command).await.status, Status::SUCCESS);
        }
    }
}

#[tokio::test]
async fn a_half_that_is_near_is_unmapped_while_the_other_is_awaited() {
    let world = World::new().await;
    let (mut host, mut relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let (near, far) = (host.memory(4096).await, host.lent(4096).await);
    relay.keep();
    let compare = NvmCommand::Compare {
        blocks: blocks(0, 8),
    };
    let compare = compare.entry(1, BLOCK).with_fuse(1);
    let compare = far.point(compare, 0, 4096).unwrap();
    let replace = near.point(write(2, 0, 8), 0, 4096).unwrap().with_fuse(2);
    assert!(host.queue.submit(&compare) && host.queue.submit(&replace));
    host.queue.ring().await.unwrap();
    relay.wait_asked(1).await;
    host.device.unmap(near).await.unwrap();
    relay.release().await;
    let mut ended = Vec::new();
    while ended.len() < 2 {
        let ended = &mut ended;
        host.queue.wait(|one| ended.push(one)).await.unwrap();
    }
    assert!(ended.iter().all(|one| !one.status.is_success()));
}

#[tokio::test]
async fn a_reset_waits_for_no_answer() {
    let world = World::new().await;
    for queues in [QueueMemory::Mapped, QueueMemory::Lent] {
        for by_register in [false, true] {
            let (mut host, mut relay) = relayed(&world, DoorbellMode::Trapped, queues).await;
            let memory = host.lent(1 << 20).await;
            relay.forget();
            relay.keep();
            for number in 0..40 {
                let at = usize::from(number) * 4096;
                let command = memory.point(write(number, 0, 8), at, 4096).unwrap();
                assert!(host.queue.submit(&command));
            }
            host.queue.ring().await.unwrap();
            relay.wait_asked(1).await;
            if by_register {
                host.device.write_register(CC, 4, 0).await.unwrap();
                while host.device.read_register(CSTS, 4).await.unwrap() & 1 == 1 {}
            } else {
                host.device.request(&Request::DeviceReset).await.unwrap();
            }
            relay.release().await;
            let csts = host.device.read_register(CSTS, 4).await.unwrap();
            assert_eq!(csts & 3, 0, "{queues:?} {by_register}");
        }
    }
    still_serves(&world).await;
}

#[tokio::test]
async fn a_client_dies_while_it_is_asked() {
    let world = World::new().await;
    for queues in [QueueMemory::Mapped, QueueMemory::Lent] {
        let (mut host, mut relay) = relayed(&world, DoorbellMode::Trapped, queues).await;
        let memory = host.lent(1 << 20).await;
        relay.forget();
        relay.keep();
        let command = memory.point(write(1, 0, 8), 0, 4096).unwrap();
        assert!(host.queue.submit(&command));
        host.queue.ring().await.unwrap();
        relay.wait_asked(1).await;
        drop(host.queue);
        drop(host.device);
        // The relay goes on meanwhile.
        let ended = tokio::task::spawn_blocking(|| host.served.ended());
        assert!(matches!(ended.await.unwrap(), Ended::Gone));
    }
    still_serves(&world).await;
}

#[tokio::test]
async fn a_server_stops_while_an_answer_is_owed() {
    let world = World::new().await;
    let (mut host, mut relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let memory = host.lent(1 << 20).await;
    relay.judge(|_, _| Fate::IsLost);
    let command = memory.point(write(1, 0, 8), 0, 4096).unwrap();
    assert!(host.queue.submit(&command));
    host.queue.ring().await.unwrap();
    relay.wait_asked(1).await;
    host.served.stop_clock();
    assert!(matches!(host.served.stop(), Ended::Stopped));
}

#[tokio::test]
async fn queues_that_cannot_be_reached_stop_the_controller() {
    let world = World::new().await;
    for mode in [DoorbellMode::Shadow, DoorbellMode::Trapped] {
        for way in [Command::DmaRead, Command::DmaWrite] {
            let (mut host, relay) = relayed(&world, mode, QueueMemory::Lent).await;
            relay.judge(move |header, _| match header.command() == Some(way) {
                true => Fate::Is(answer(header, Some(14), &[])),
                false => Fate::Passes,
            });
            let flush = SubmissionQueueEntry::new(0, 1, BLOCK);
            assert!(host.queue.submit(&flush));
            host.queue.ring().await.unwrap();
            while host.device.read_register(CSTS, 4).await.unwrap() & 2 == 0 {}
            // A reset makes it whole again.
            relay.pass();
            host.device.write_register(CC, 4, 0).await.unwrap();
            while host.device.read_register(CSTS, 4).await.unwrap() & 1 == 1 {}
        }
    }
    still_serves(&world).await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_asked_for_nothing() {
    let world = World::new().await;
    let mapped = QueueMemory::Mapped;
    let (mut host, relay) = relayed_taking(&world, DoorbellMode::Shadow, mapped, Some(0)).await;
    let memory = host.lent(4096).await;
    let command = memory.point(write(1, 0, 8), 0, 4096).unwrap();
    assert_eq!(host.execute(&command).await.status.code(), REFUSED);
    assert!(relay.asked().is_empty());
}

#[tokio::test]
async fn who_begins_and_never_ends_holds_no_more_than_is_lent() {
    const BYTES: usize = 1 << 20;
    let world = World::scarce(4 << 20).await;
    let (mut host, relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let memory = host.lent(BYTES).await;
    // What is asked before there is a buffer comes, and nothing else.
    relay.judge(|_, payload| match payload.len() > 8192 {
        true => Fate::IsLost,
        false => Fate::Passes,
    });
    for cid in 0..8 {
        let command = memory.point(write(cid, 0, 2048), 0, BYTES).unwrap();
        assert!(host.queue.submit(&command));
    }
    host.queue.ring().await.unwrap();
    let mut other = Host::new(&world, DoorbellMode::Shadow).await;
    let near = other.memory(BYTES).await;
    let command = near.point(write(1, 4096, 2048), 0, BYTES).unwrap();
    let others = async {
        // By then the first ones hold what they will.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let done = tokio::time::timeout(Duration::from_secs(5), other.execute(&command));
        assert_eq!(done.await.expect("an end").status, Status::SUCCESS);
    };
    answer_until(&mut host, others).await;
}

#[tokio::test]
async fn lists_that_do_not_come_are_as_bounded_as_data() {
    const BYTES: usize = 1 << 20;
    // One command of that length has all that a client may hold of it.
    let world = World::scarce(4 << 20).await;
    let (mut host, relay) = relayed(&world, DoorbellMode::Shadow, QueueMemory::Mapped).await;
    let (memory, lists) = (host.lent(BYTES).await, host.lent(4096).await);
    let halves = [0, BYTES / 2].map(|at| {
        let address = memory.address() + at as u64;
        SglDescriptor::data_block(address, BYTES as u32 / 2).encode()
    });
    put(&lists, 0, &halves.concat());
    let listed = SglDescriptor {
        kind: SglKind::LastSegment,
        subtype: SglSubtype::Address,
        address: lists.address(),
        length: 32,
    };
    relay.keep();
    for cid in 0..4 {
        assert!(host.queue.submit(&write(cid, 0, 2048).with_sgl(listed)));
    }
    // They have begun, as far as they may, when this has ended.
    let flush = SubmissionQueueEntry::new(0, 9, BLOCK);
    assert!(host.queue.submit(&flush));
    host.queue.ring().await.unwrap();
    let ended = host.queue.wait(|one| assert_eq!(one.cid, 9)).await;
    assert_eq!(ended.unwrap(), 1);
    assert_eq!(relay.asked().len(), 1);
    relay.release().await;
    let mut ended = 0;
    while ended < 4 {
        let seen = host
            .queue
            .wait(|one| assert_eq!(one.status, Status::SUCCESS));
        ended += seen.await.unwrap();
    }
}
