//! Groups larger than the memory they are written from, and values that find none.

use bytes::Bytes;
use forebay_io::sim::{SimClock, SimDisk};
use forebay_store::{Condition, NamespaceConfig, NamespaceInfo, Seal, Space};
use tokio::sync::oneshot;

use super::*;
use crate::Config;
use crate::command::{Content, StoreCommand, Target};
use crate::group::Record;
use crate::keys::{self, Table};
use crate::recover;

const ROWS: u64 = 24;
const ROW_BYTES: usize = 1 << 20;

fn open(disk: &SimDisk) -> (Arc<Core<SimDisk>>, Position) {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let config = Config {
        reserve_bytes: 0,
        ..Config::default()
    };
    let pool = Pool::new(8 << 20);
    let (core, position, _) = recover::open(disk.clone(), clock, pool, config).unwrap();
    (Arc::new(core), position)
}

fn row(number: u64) -> Bytes {
    Bytes::from(vec![number as u8; ROW_BYTES])
}

/// One record that a segment takes and the journal's pool does not, as that of a value in very many pieces.
fn large() -> Record {
    let mut record = Record::default();
    for number in 0..ROWS {
        record.put(Table::Inline, keys::body(number), row(number));
    }
    record
}

#[test]
fn a_group_beyond_the_pool_is_written_in_parts() {
    let disk = SimDisk::new(1);
    let (core, position) = open(&disk);
    let record = large();
    assert!(record.encoded_len() > POOL_BYTES);
    assert!(record.encoded_len() as u64 <= core.geometry.record_bytes_max());
    let mut batch = Batch::default();
    record.encode(&mut batch.payload);
    batch.records = 1;
    batch.sync = true;
    let mut journal = Journal::new(core.clone(), position);
    // As much as the copies of a full group's small values may take.
    let held: Vec<_> = (0..4)
        .map(|_| journal.pool.try_take(BLOCK_MAX_BYTES).unwrap())
        .collect();
    assert!(matches!(journal.commit(batch), Outcome::Published));
    assert!(!core.is_read_only());
    drop((held, journal, core));
    // Only the device knows it now.
    let (core, _) = open(&disk.crash(2));
    for number in 0..ROWS {
        let found = core.view().get(Table::Inline, &keys::body(number));
        assert!(found.unwrap() == Some(row(number)), "row {number}");
    }
}

#[test]
fn a_small_value_that_finds_no_buffer_leaves_its_space_free() {
    let disk = SimDisk::new(2);
    let (core, position) = open(&disk);
    let mut journal = Journal::new(core.clone(), position);
    let held: Vec<_> = std::iter::from_fn(|| journal.pool.try_take(BLOCK_MAX_BYTES).ok()).collect();
    let free = core.space.usage().free_bytes;
    let target = Target {
        namespace: Arc::new(NamespaceInfo {
            name: "n".to_owned(),
            id: 1,
            created: 0,
            revision: 1,
            config: NamespaceConfig::default(),
        }),
        space: Space::Objects,
        key: Bytes::from_static(b"k"),
    };
    core.registry.write().put(target.namespace.clone());
    let command = StoreCommand {
        reservation: core.ledger.reservation(1),
        target,
        condition: Condition::None,
        seal: Seal::default(),
        size: 4096,
        crc64nvme: 0,
        content: Content::Small(Buf::from(vec![1; 4096])),
    };
    let (reply, mut answer) = oneshot::channel();
    journal.decider.begin(0);
    journal.decider.decide(Command::Store(command, reply));
    for answer in std::mem::take(&mut journal.decider.batch.answers) {
        answer.send();
    }
    let refused = answer.try_recv().unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    let grown = core.space.usage();
    assert_eq!(grown.free_bytes, grown.total_bytes.max(free));
    drop(held);
}
