//! Blocks.

use forebay_io::sim::Faults;
use forebay_nvme::target::{Fused, Fuser};
use forebay_proto::nvme::Status;
use forebay_proto::nvme::nvm::{Blocks, DsmRange, NvmCommand};

use crate::support::*;

fn blocks(first: u64, count: u32) -> Blocks {
    Blocks { first, count }
}

#[tokio::test]
async fn blocks_are_written_compared_zeroed_and_read() {
    let mut fixture = Fixture::new().await;
    for way in WAYS {
        let all = blocks(0, BLOCKS as u32);
        let ones = vec![1; BLOCKS as usize * BLOCK_BYTES];
        let write = NvmCommand::Write {
            blocks: all,
            fua: true,
        };
        assert_eq!(fixture.nvm(write, &mut Data::of(way, &ones)).await, Ok(()));
        assert_eq!(fixture.read(all, way).await.unwrap(), ones);
        let compare = NvmCommand::Compare {
            blocks: blocks(3, 2),
        };
        let mut same = vec![1; 2 * BLOCK_BYTES];
        assert_eq!(
            fixture.nvm(compare, &mut Data::of(way, &same)).await,
            Ok(())
        );
        same[1023] = 0;
        let failed = Err(Status::COMPARE_FAILURE);
        assert_eq!(
            fixture.nvm(compare, &mut Data::of(way, &same)).await,
            failed
        );
        for (deallocate, first) in [(false, 5), (true, 9)] {
            let zero = NvmCommand::WriteZeroes {
                blocks: blocks(first, 3),
                deallocate,
                fua: true,
            };
            assert_eq!(fixture.nvm(zero, &mut Data::none()).await, Ok(()));
        }
        let read = fixture.read(all, way).await.unwrap();
        for (at, byte) in read.iter().enumerate() {
            let zeroed = matches!(at / BLOCK_BYTES, 5..=7 | 9..=11);
            assert_eq!(*byte == 0, zeroed, "{at}");
        }
        let verify = NvmCommand::Verify { blocks: all };
        assert_eq!(fixture.nvm(verify, &mut Data::none()).await, Ok(()));
        assert_eq!(
            fixture.nvm(NvmCommand::Flush, &mut Data::none()).await,
            Ok(())
        );
    }
}

#[tokio::test]
async fn ranges_are_given_back_when_all_of_them_exist() {
    let mut fixture = Fixture::new().await;
    let manage = async |fixture: &mut Fixture, ranges: &[(u64, u32)], deallocate: bool| {
        let encoded: Vec<u8> = ranges
            .iter()
            .flat_map(|(first, count)| {
                let range = DsmRange {
                    first: *first,
                    count: *count,
                };
                range.encode()
            })
            .collect();
        let command = NvmCommand::DatasetManagement {
            ranges: ranges.len() as u16,
            deallocate,
        };
        fixture
            .nvm(command, &mut Data::of(Way::Stream, &encoded))
            .await
    };
    assert_eq!(
        manage(&mut fixture, &[(0, 1), (63, 1), (64, 0)], true).await,
        Ok(())
    );
    for range in [(64, 1), (0, 65), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
        let outside = Err(Status::LBA_OUT_OF_RANGE);
        assert_eq!(manage(&mut fixture, &[(0, 1), range], true).await, outside);
    }
    let all = vec![(0, 1); 256];
    assert_eq!(manage(&mut fixture, &all, false).await, Ok(()));
}

#[tokio::test]
async fn compare_and_write_is_one_operation() {
    let mut fixture = Fixture::new().await;
    let (zeroes, ones) = (vec![0; BLOCK_BYTES], vec![1; BLOCK_BYTES]);
    let halves = |fixture: &mut Fixture, at: u64| {
        let compare = NvmCommand::Compare {
            blocks: blocks(0, 1),
        };
        let write = NvmCommand::Write {
            blocks: blocks(at, 1),
            fua: false,
        };
        let first = fixture
            .controller
            .io(0, 1, &compare.entry(1, BLOCK).with_fuse(1));
        let second = fixture
            .controller
            .io(0, 1, &write.entry(2, BLOCK).with_fuse(2));
        (first.unwrap(), second.unwrap())
    };
    let run = async |fixture: &mut Fixture, at: u64| {
        let (first, second) = halves(fixture, at);
        let mut fuser = Fuser::default();
        assert_eq!(fuser.next(first, 1), Fused::Wait);
        let Fused::Both((first, 1), (second, 2)) = fuser.next(second, 2) else {
            panic!("both halves are there");
        };
        let mut compared = Data::of(Way::Stream, &zeroes);
        let mut written = Data::of(Way::Stream, &ones);
        let target = &fixture.target;
        let (first, second) = target
            .execute_fused(
                &fixture.session,
                (&first, &mut compared),
                (&second, &mut written),
            )
            .await;
        (first.code(), second.code())
    };
    let success = (Status::SUCCESS, Status::SUCCESS);
    assert_eq!(run(&mut fixture, 0).await, success);
    let failed = (Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED);
    assert_eq!(run(&mut fixture, 0).await, failed);
    assert_eq!(fixture.read(blocks(0, 1), Way::Stream).await.unwrap(), ones);
    let elsewhere = (Status::INVALID_FIELD, Status::INVALID_FIELD);
    assert_eq!(run(&mut fixture, 1).await, elsewhere);

    let (first, second) = halves(&mut fixture, 0);
    let mut fuser = Fuser::default();
    assert_eq!(fuser.next(second, 1), Fused::Alone(1));
    assert_eq!(fuser.next(first, 2), Fused::Wait);
    assert_eq!(fuser.next(first, 3), Fused::Missing(2, (first, 3)));
    assert_eq!(fuser.next(first, 3), Fused::Wait);
    assert_eq!(fuser.interrupted(), Some(3));
    assert_eq!(fuser.interrupted(), None);
}

#[tokio::test]
async fn a_failing_device_is_told_and_works_again() {
    let mut fixture = Fixture::new().await;
    fixture.disk.set_faults(Faults {
        read_error: 1.0,
        write_error: 1.0,
        sync_error: 1.0,
        ..Faults::default()
    });
    for way in [Way::Stream, Way::Memory] {
        let read = fixture.read(blocks(0, 1), way).await;
        assert_eq!(read, Err(Status::UNRECOVERED_READ_ERROR), "{way:?}");
    }
    let failed = Err(Status::WRITE_FAULT);
    let write = NvmCommand::Write {
        blocks: blocks(0, 1),
        fua: false,
    };
    let mut data = Data::of(Way::Stream, &[1; BLOCK_BYTES]);
    assert_eq!(fixture.nvm(write, &mut data).await, failed);
    assert_eq!(
        fixture.nvm(NvmCommand::Flush, &mut Data::none()).await,
        failed
    );
    fixture.disk.set_faults(Faults::default());
    assert!(fixture.read(blocks(0, 1), Way::Stream).await.is_ok());
}
