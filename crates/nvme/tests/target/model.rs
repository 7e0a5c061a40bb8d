//! Random commands, and a model that says what they come to.

use std::collections::BTreeMap;

use forebay_proto::nvme::Status;
use forebay_proto::nvme::kv::*;
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};
use proptest::prelude::*;

use crate::support::*;

#[derive(Debug, Clone)]
enum Step {
    Store(Vec<u8>, Vec<u8>, u8),
    Retrieve(Vec<u8>, usize),
    Range(Vec<u8>, u64, usize),
    Delete(Vec<u8>),
    Exist(Vec<u8>),
    List(Option<Vec<u8>>, usize),
    Write(u64, u32, u8),
    Zero(u64, u32, bool),
    Compare(u64, u32, u8),
    Read(u64, u32),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::sample::select(vec![b"a".to_vec(), b"b".to_vec(), vec![0], vec![0xff; 16]]),
        prop::collection::vec(any::<u8>(), 1..=16),
    ]
}

fn blocks() -> impl Strategy<Value = (u64, u32)> {
    (0..BLOCKS, 1..8u32).prop_map(|(first, count)| (first, count.min((BLOCKS - first) as u32)))
}

fn step() -> impl Strategy<Value = (Step, Way)> {
    let value = (any::<u8>(), 0..5000usize).prop_map(|(byte, len)| vec![byte; len]);
    let step = prop_oneof![
        4 => (key(), value, 0..3u8).prop_map(|(key, value, when)| Step::Store(key, value, when)),
        3 => (key(), 0..6000usize).prop_map(|(key, room)| Step::Retrieve(key, room)),
        2 => (key(), 0..6000u64, 0..6000usize).prop_map(|(key, at, room)| Step::Range(key, at, room)),
        2 => key().prop_map(Step::Delete),
        1 => key().prop_map(Step::Exist),
        1 => (prop::option::of(key()), 4..200usize).prop_map(|(start, room)| Step::List(start, room)),
        3 => (blocks(), any::<u8>()).prop_map(|((first, count), byte)| Step::Write(first, count, byte)),
        1 => (blocks(), any::<bool>()).prop_map(|((first, count), give)| Step::Zero(first, count, give)),
        1 => (blocks(), any::<u8>()).prop_map(|((first, count), byte)| Step::Compare(first, count, byte)),
        3 => blocks().prop_map(|(first, count)| Step::Read(first, count)),
    ];
    (step, prop::sample::select(WAYS.to_vec()))
}

async fn run(steps: Vec<(Step, Way)>) {
    let mut fixture = Fixture::new().await;
    let mut values: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut medium = vec![0u8; BLOCKS as usize * BLOCK_BYTES];
    let absent = Err(Status::KV_KEY_DOES_NOT_EXIST);
    let place = |first: u64, count: u32| {
        let first = first as usize * BLOCK_BYTES;
        first..first + count as usize * BLOCK_BYTES
    };
    for (step, way) in steps {
        match step {
            Step::Store(key, value, when) => {
                let options = StoreOptions {
                    if_exists: when == 1,
                    if_absent: when == 2,
                    ..StoreOptions::default()
                };
                let expected = match (when, values.contains_key(&key)) {
                    (1, false) => absent,
                    (2, true) => Err(Status::KEY_EXISTS),
                    _ => Ok(0),
                };
                assert_eq!(
                    fixture.store_with(&key, &value, options, way).await,
                    expected
                );
                if expected.is_ok() {
                    values.insert(key, value);
                }
            }
            Step::Retrieve(key, room) => {
                let expected = values.get(&key).ok_or(Status::KV_KEY_DOES_NOT_EXIST);
                let expected = expected.map(|value| {
                    let head = value[..value.len().min(room)].to_vec();
                    (value.len() as u64, head)
                });
                assert_eq!(fixture.retrieve(&key, room, way).await, expected);
            }
            Step::Range(key, offset, room) => {
                let command = KvCommand::RetrieveRange {
                    key: RangeKey::Inline(Key::new(&key).unwrap()),
                    offset,
                    buffer_bytes: room as u32,
                };
                let mut data = Data::room(way, room);
                let size = fixture.kv(command, &mut data).await;
                match values.get(&key) {
                    None => assert_eq!(size, absent),
                    Some(value) => {
                        assert_eq!(size, Ok(value.len() as u64));
                        let from = value.len().min(offset as usize);
                        let there = &value[from..value.len().min(from + room)];
                        assert_eq!(&data.bytes()[..there.len()], there);
                    }
                }
            }
            Step::Delete(key) => {
                let command = KvCommand::Delete {
                    key: Key::new(&key).unwrap(),
                };
                let expected = values.remove(&key).map_or(absent, |_| Ok(0));
                assert_eq!(fixture.kv(command, &mut Data::none()).await, expected);
            }
            Step::Exist(key) => {
                let command = KvCommand::Exist {
                    key: Key::new(&key).unwrap(),
                };
                let expected = values
                    .get(&key)
                    .map_or(absent, |value| Ok(value.len() as u64));
                assert_eq!(fixture.kv(command, &mut Data::none()).await, expected);
            }
            Step::List(start, room) => {
                let first = start.as_deref().and_then(Key::new);
                let command = KvCommand::List {
                    start: first.map_or(ListStart::First, ListStart::Key),
                    extended: false,
                    buffer_bytes: room as u32,
                };
                let mut data = Data::room(Way::Stream, room);
                fixture.kv(command, &mut data).await.unwrap();
                let mut expected = vec![0; room];
                let mut writer = ListWriter::new(&mut expected).unwrap();
                let from = values.range(start.unwrap_or_default()..);
                let count = from.take_while(|(key, _)| writer.push(key)).count();
                let bytes = data.bytes();
                let found: Vec<&[u8]> = ListReader::new(&bytes).unwrap().collect();
                assert_eq!(found.len(), count);
                assert_eq!(
                    found,
                    ListReader::new(&expected).unwrap().collect::<Vec<_>>()
                );
            }
            Step::Write(first, count, byte) => {
                let place = place(first, count);
                medium[place.clone()].fill(byte);
                let command = NvmCommand::Write {
                    blocks: Blocks { first, count },
                    fua: byte == 0,
                };
                let mut data = Data::of(way, &medium[place]);
                assert_eq!(fixture.nvm(command, &mut data).await, Ok(()));
            }
            Step::Zero(first, count, deallocate) => {
                medium[place(first, count)].fill(0);
                let command = NvmCommand::WriteZeroes {
                    blocks: Blocks { first, count },
                    deallocate,
                    fua: false,
                };
                assert_eq!(fixture.nvm(command, &mut Data::none()).await, Ok(()));
            }
            Step::Compare(first, count, byte) => {
                let place = place(first, count);
                let theirs = vec![byte; place.len()];
                let command = NvmCommand::Compare {
                    blocks: Blocks { first, count },
                };
                let expected = match medium[place] == theirs {
                    true => Ok(()),
                    false => Err(Status::COMPARE_FAILURE),
                };
                assert_eq!(
                    fixture.nvm(command, &mut Data::of(way, &theirs)).await,
                    expected
                );
            }
            Step::Read(first, count) => {
                let read = fixture.read(Blocks { first, count }, way).await.unwrap();
                assert_eq!(read, medium[place(first, count)]);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_target_does_what_the_model_says(steps in prop::collection::vec(step(), 1..60)) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run(steps));
    }
}
