//! Making a store is cut short anywhere: the directory is made again. What is not one's own is left alone.

mod support;

use std::sync::Arc;

use forebay_engine::{Engine, OpenError};
use forebay_io::sim::{Faults, SimClock, SimDisk};
use forebay_io::{Disk, OpenOptions};
use forebay_mem::Pool;
use support::{config, content, replace};

fn try_open(disk: &SimDisk) -> Result<Engine<SimDisk>, OpenError> {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    Engine::open(disk.clone(), clock, Pool::new(1 << 20), config())
}

/// How many operations it takes.
fn operations() -> u64 {
    let disk = SimDisk::new(0);
    let engine = try_open(&disk).unwrap();
    let made = disk.operations().total();
    drop(engine);
    made
}

#[test]
fn a_store_whose_making_lost_power_is_made_again() {
    for at in 0..operations() {
        let disk = SimDisk::new(at);
        disk.set_faults(Faults {
            power_off_at: Some(at),
            ..Faults::default()
        });
        drop(try_open(&disk));
        for crash in 0..12 {
            let again = try_open(&disk.crash(crash));
            again.unwrap_or_else(|error| panic!("{at}, {crash}: {error:?}"));
        }
    }
}

#[test]
fn a_store_whose_making_failed_is_made_again() {
    for at in 0..operations() {
        let disk = SimDisk::new(at);
        disk.set_faults(Faults {
            error_at: Some(at),
            ..Faults::default()
        });
        drop(try_open(&disk));
        disk.set_faults(Faults::default());
        try_open(&disk).unwrap_or_else(|error| panic!("{at}: {error:?}"));
    }
}

#[test]
fn a_store_whose_making_found_no_room_is_made_again() {
    let journal = 2 * config().segment_bytes;
    let mut refused = 0;
    for capacity in (journal..).step_by(4096) {
        let disk = SimDisk::new(capacity);
        disk.set_capacity(Some(capacity));
        if try_open(&disk).is_ok() {
            break;
        }
        disk.set_capacity(None);
        try_open(&disk).unwrap_or_else(|error| panic!("{capacity}: {error:?}"));
        refused += 1;
    }
    assert!(refused > 5, "{refused}");
}

#[test]
fn a_file_of_somebody_else_is_left_alone() {
    let blank = vec![0; 20_000];
    for foreign in [b"notes".to_vec(), [blank, b"notes".to_vec()].concat()] {
        let disk = SimDisk::new(1);
        let options = OpenOptions {
            create: true,
            read_only: false,
            direct: false,
        };
        disk.open("data", options).unwrap();
        replace(&disk, "data", &foreign);
        for _ in 0..2 {
            let refused = try_open(&disk).err();
            assert!(matches!(refused, Some(OpenError::NotAStore)), "{refused:?}");
            assert!(content(&disk, "data") == foreign);
        }
    }
}

#[test]
fn a_store_whose_index_is_lost_says_so() {
    let disk = SimDisk::new(1);
    drop(try_open(&disk).unwrap());
    replace(&disk, "index", b"");
    for _ in 0..2 {
        let refused = try_open(&disk).err();
        assert!(matches!(refused, Some(OpenError::NoIndex)), "{refused:?}");
    }
}
