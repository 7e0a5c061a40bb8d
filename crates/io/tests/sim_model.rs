//! The simulated disk against a model: what was synced always survives, and nothing is ever there that was not written.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_io::{Clock, Disk, File, OpenOptions};
use proptest::prelude::*;

const OPTIONS: OpenOptions = OpenOptions {
    create: true,
    read_only: false,
    direct: false,
};
const LEN: usize = 4 * SECTOR;
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
enum Step {
    Write { offset: usize, len: usize },
    SetLen(usize),
    Sync,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..LEN, 0..LEN).prop_map(|(offset, len)| Step::Write {
            offset,
            len: len.min(LEN - offset),
        }),
        1 => (0..=LEN).prop_map(Step::SetLen),
        2 => Just(Step::Sync),
    ];
    proptest::collection::vec(step, 1..24)
}

/// Every state the file went through since it was last durable; the first is the durable one.
struct Model {
    states: Vec<Vec<u8>>,
}

impl Model {
    fn now(&self) -> &Vec<u8> {
        self.states.last().unwrap()
    }

    fn then(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut next = self.now().clone();
        change(&mut next);
        self.states.push(next);
    }

    fn synced(&mut self) {
        self.states = vec![self.now().clone()];
    }

    /// Whether a medium may hold `found`: each sector is one of its versions (or zero, where a length came without
    /// its data), cut at one of the lengths.
    fn allows(&self, found: &[u8]) -> bool {
        let shortest = self.states.iter().map(Vec::len).min().unwrap();
        let longest = self.states.iter().map(Vec::len).max().unwrap();
        let sector = |state: &[u8], index: usize| {
            let mut bytes = [0; SECTOR];
            let from = (index * SECTOR).min(state.len());
            let to = (from + SECTOR).min(state.len());
            bytes[..to - from].copy_from_slice(&state[from..to]);
            bytes
        };
        (shortest..=longest).contains(&found.len())
            && (0..found.len().div_ceil(SECTOR)).all(|index| {
                let end = (found.len() - index * SECTOR).min(SECTOR);
                let found = sector(found, index);
                // A cut leaves zeroes behind it, at any of the lengths.
                let cut = |version: [u8; SECTOR]| {
                    (0..=SECTOR).rev().any(|at| {
                        found[..at.min(end)] == version[..at.min(end)]
                            && found[at.min(end)..].iter().all(|byte| *byte == 0)
                    })
                };
                self.states.iter().any(|state| cut(sector(state, index)))
            })
    }
}

fn content(disk: &SimDisk) -> Vec<u8> {
    let file = disk.open("data", OPTIONS).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(0, &mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn synced_data_survives(steps in steps(), seeds in proptest::collection::vec(any::<u64>(), 4)) {
        let disk = SimDisk::new(0);
        let file = disk.open("data", OPTIONS).unwrap();
        disk.sync().unwrap();
        let mut model = Model { states: vec![Vec::new()] };
        for (index, step) in steps.into_iter().enumerate() {
            let value = index as u8 + 1;
            match step {
                Step::Write { offset, len } => {
                    file.write_all_at(offset as u64, &vec![value; len]).unwrap();
                    if len > 0 {
                        model.then(|state| {
                            state.resize(state.len().max(offset + len), 0);
                            state[offset..offset + len].fill(value);
                        });
                    }
                }
                Step::SetLen(len) => {
                    file.set_len(len as u64).unwrap();
                    model.then(|state| state.resize(len, 0));
                }
                Step::Sync => {
                    file.sync_data().unwrap();
                    model.synced();
                }
            }
            prop_assert_eq!(&content(&disk), model.now());
            for seed in &seeds {
                let found = content(&disk.crash(*seed));
                prop_assert!(model.allows(&found), "seed {} found {:?}", seed, found);
            }
        }
        file.sync_data().unwrap();
        for seed in seeds {
            prop_assert_eq!(&content(&disk.crash(seed)), model.now());
        }
    }
}

/// All that some hundred crashes leave.
fn outcomes(disk: &SimDisk) -> HashSet<Vec<u8>> {
    (0..200).map(|seed| content(&disk.crash(seed))).collect()
}

#[test]
fn unsynced_writes_are_lost_kept_torn_and_reordered() {
    let disk = SimDisk::new(0);
    let file = disk.open("data", OPTIONS).unwrap();
    file.write_all_at(0, &[1; 2 * SECTOR]).unwrap();
    file.sync_data().unwrap();
    disk.sync().unwrap();
    file.write_all_at(0, &[2; 2 * SECTOR]).unwrap();
    file.write_all_at(0, &[3; 2 * SECTOR]).unwrap();
    let found = outcomes(&disk);
    for (first, second) in [
        (1, 1),
        (2, 2),
        (3, 3),
        (1, 3),
        (3, 1),
        (2, 3),
        (3, 2),
        (1, 2),
    ] {
        let wanted = [[first; SECTOR], [second; SECTOR]].concat();
        assert!(
            found.contains(&wanted),
            "{first} beside {second} never happened"
        );
    }
    assert_eq!(content(&disk.crash(5)), content(&disk.crash(5)));
}

#[test]
fn a_file_is_there_for_certain_after_a_directory_sync() {
    let disk = SimDisk::new(0);
    let file = disk.open("data", OPTIONS).unwrap();
    file.write_all_at(0, b"data").unwrap();
    file.sync_data().unwrap();
    let there = |disk: &SimDisk| {
        (0..50)
            .filter(|seed| disk.crash(*seed).exists("data").unwrap())
            .count()
    };
    assert!((1..50).contains(&there(&disk)));
    disk.sync().unwrap();
    assert_eq!(there(&disk), 50);
}

#[test]
fn a_failed_sync_loses_what_a_later_one_does_not_bring_back() {
    let lost = (0..20).any(|seed| {
        let disk = SimDisk::new(seed);
        let file = disk.open("data", OPTIONS).unwrap();
        disk.sync().unwrap();
        file.write_all_at(0, &[1; 8 * SECTOR]).unwrap();
        disk.set_faults(Faults {
            sync_error: 1.0,
            ..Faults::default()
        });
        file.sync_data().unwrap_err();
        disk.set_faults(Faults::default());
        file.sync_data().unwrap();
        assert_eq!(content(&disk), [1; 8 * SECTOR]);
        content(&disk.crash(0)) != [1; 8 * SECTOR]
    });
    assert!(lost);
}

#[test]
fn every_operation_can_fail_or_be_the_last() {
    let run = |disk: &SimDisk| -> io::Result<()> {
        let file = disk.open("data", OPTIONS)?;
        disk.sync()?;
        file.allocate(0, 8192)?;
        file.write_all_at(0, &[1; 4096])?;
        file.sync_data()?;
        file.read_exact_at(0, &mut [0; 4096])
    };
    let whole = SimDisk::new(0);
    run(&whole).unwrap();
    let total = whole.operations().total();
    assert_eq!(total, 6);
    for number in 0..total {
        let disk = SimDisk::new(0);
        disk.set_faults(Faults {
            error_at: Some(number),
            ..Faults::default()
        });
        run(&disk).unwrap_err();
        assert_eq!(disk.operations().total(), number + 1);
        run(&disk).unwrap();

        let disk = SimDisk::new(0);
        disk.set_faults(Faults {
            power_off_at: Some(number),
            ..Faults::default()
        });
        run(&disk).unwrap_err();
        run(&disk).unwrap_err();
        run(&disk.crash(number)).unwrap();
    }
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let disk = SimDisk::new(0);
    disk.set_capacity(Some(64 << 10));
    let file = disk.open("data", OPTIONS).unwrap();
    file.allocate(0, 60 << 10).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 4 << 10);
    let full = file.write_all_at(60 << 10, &[1; 8192]).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert_eq!(
        file.allocate(0, 65 << 10).unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
    // What was taken can be written without more.
    file.write_all_at(0, &[1; 60 << 10]).unwrap();
    file.set_len(4096).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 60 << 10);
    file.write_all_at(4096, &[1; 32 << 10]).unwrap();
}

#[test]
fn rot_flips_one_bit() {
    let disk = SimDisk::new(0);
    let file = disk.open("data", OPTIONS).unwrap();
    file.write_all_at(0, &[0; 100]).unwrap();
    disk.rot("data", 99, 7).unwrap();
    assert_eq!(content(&disk)[98..], [0, 128]);
    assert_eq!(
        disk.rot("data", 100, 0).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
    assert_eq!(
        disk.rot("none", 0, 0).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
}

#[test]
fn a_spoilt_sector_is_read_again_once_it_is_written() {
    let disk = SimDisk::new(0);
    let file = disk.open("data", OPTIONS).unwrap();
    file.write_all_at(0, &[1; 2000]).unwrap();
    disk.spoil("data", 1000).unwrap();
    let reads = |file: &forebay_io::sim::SimFile, at, len| {
        file.read_exact_at(at, &mut vec![0; len]).is_ok()
    };
    for (at, len, is_read) in [
        (0, 512, true),
        (0, 513, false),
        (1023, 1, false),
        (1024, 900, true),
    ] {
        assert_eq!(reads(&file, at, len), is_read, "{len} bytes at {at}");
    }
    let later = disk.crash(1).open("data", OPTIONS).unwrap();
    assert!(later.len().unwrap() < 1000 || !reads(&later, 512, 100));
    file.write_all_at(1500, &[2; 10]).unwrap();
    assert!(!reads(&file, 512, 512));
    file.write_all_at(512, &[2; 512]).unwrap();
    assert!(reads(&file, 0, 2000));
}

#[test]
fn a_worn_sector_takes_no_write() {
    let disk = SimDisk::new(0);
    let file = disk.open("data", OPTIONS).unwrap();
    file.write_all_at(0, &[1; 2000]).unwrap();
    disk.wear("data", 1000).unwrap();
    file.write_all_at(0, &[2; 1024]).unwrap_err();
    file.write_all_at(1023, &[2; 1]).unwrap_err();
    file.write_all_at(0, &[2; 512]).unwrap();
    file.write_all_at(1024, &[2; 900]).unwrap();
    let mut read = [0; 512];
    file.read_exact_at(512, &mut read).unwrap();
    assert_eq!(read, [1; 512]);
}

#[test]
fn the_simulated_clock_stands_still_until_told() {
    let clock = SimClock::new(1000);
    let shared = clock.clone();
    for _ in 0..4 {
        shared.advance(Duration::from_micros(500));
    }
    assert_eq!(
        (clock.unix_millis(), clock.monotonic()),
        (1002, Duration::from_millis(2))
    );
    clock.set_unix_millis(5);
    assert_eq!(
        (shared.unix_millis(), shared.monotonic()),
        (5, Duration::from_millis(2))
    );
}
