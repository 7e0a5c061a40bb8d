//! Functions run over values.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use forebay_exec::{Exec, Executor};
use forebay_io::Clock;
use forebay_io::sim::{SimClock, SimFile};
use forebay_mem::Pool;
use forebay_nvme::target::{Payload, Session, Target, TargetConfig, Viewer};
use forebay_proto::nvme::identify::{self, IdentifyKv, cns};
use forebay_proto::nvme::kv::*;
use forebay_proto::nvme::log_page::{GetLogPage, lid};
use forebay_proto::nvme::{
    AdminReply, Controller, SglDescriptor, Status, SubmissionQueueEntry, opcode,
};
use forebay_store::{Address, ByteRange, MemoryStore, NamespaceConfig, Store};
use parking_lot::Mutex;

use crate::programs::{self, BYTECOUNT, ECHO, Ends, FAILS, HOSTILE, LENGTH, STATEFUL};
use crate::support::*;

const RESULT_BYTES_MAX: u32 = 1 << 20;

/// A clock that goes on by some time once it was looked at.
#[derive(Debug, Clone)]
struct Going {
    clock: SimClock,
    /// What it goes on by at the next look.
    by: Arc<Mutex<Duration>>,
}

impl Going {
    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn advance_behind_a_look(&self, by: Duration) {
        *self.by.lock() = by;
    }
}

impl Clock for Going {
    fn unix_millis(&self) -> u64 {
        let now = self.clock.unix_millis();
        self.clock.advance(std::mem::take(&mut *self.by.lock()));
        now
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}

struct Fixture {
    store: Exec<MemoryStore>,
    target: Target<Exec<MemoryStore>, SimFile>,
    clock: Going,
    pool: Pool,
    host: Host,
}

struct Host {
    session: Arc<Session<Exec<MemoryStore>>>,
    controller: Controller,
}

impl Fixture {
    async fn new() -> Fixture {
        let pool = Pool::new(64 << 20);
        Fixture::running(programs::executor(pool.clone()), pool).await
    }

    /// One whose functions have so much time.
    async fn within(deadline: Duration) -> Fixture {
        let pool = Pool::new(64 << 20);
        let executor = programs::executor_within(deadline, pool.clone());
        Fixture::running(executor, pool).await
    }

    async fn running(executor: Arc<Executor>, pool: Pool) -> Fixture {
        let clock = Going {
            clock: SimClock::new(1_000_000),
            by: Arc::default(),
        };
        let time = clock.clock.clone();
        let store = MemoryStore::new(pool.clone(), move || time.unix_millis());
        let store = Exec::new(store, Some(Arc::clone(&executor)));
        for (name, tenant) in [("values", "ours"), ("theirs", "others")] {
            let config = NamespaceConfig {
                tenant: tenant.to_owned(),
                ..NamespaceConfig::default()
            };
            store.create_namespace(name, config).await.unwrap();
        }
        programs::allow(&store, &executor, "ours", "others").await;
        let config = TargetConfig {
            nqn: SUBSYSTEM.to_owned(),
            result_bytes_max: RESULT_BYTES_MAX,
            ..TargetConfig::default()
        };
        let target = Target::new(
            Arc::new(store.clone()),
            pool.clone(),
            Arc::new(clock.clone()),
            config,
        );
        target.set_hosts(vec![
            host("nqn.our-host", "ours"),
            host("nqn.their-host", "others"),
        ]);
        target.publish(vec![key_value(KV, "values"), key_value(OTHERS, "theirs")]);
        let host = Host::of(&target, "nqn.our-host");
        let mut fixture = Fixture {
            store,
            target,
            clock,
            pool,
            host,
        };
        assert_eq!(fixture.store(b"key", b"some value").await, Ok(0));
        fixture
    }

    /// A device of whoever owns what is behind the target.
    fn device(&self) -> Host {
        let session = self.target.attach(Viewer::Everything).unwrap();
        let mut controller = self.target.device(0, &session, 4);
        enable(&mut controller);
        controller.enabled();
        Host {
            session,
            controller,
        }
    }

    async fn execute(
        &mut self,
        entry: &SubmissionQueueEntry,
        data: &mut Data,
    ) -> Result<u64, Status> {
        self.host.execute(&self.target, entry, data).await
    }

    async fn kv(&mut self, command: KvCommand, data: &mut Data) -> Result<u64, Status> {
        self.execute(&command.entry(1, KV), data).await
    }

    async fn store(&mut self, key: &[u8], value: &[u8]) -> Result<u64, Status> {
        let command = KvCommand::Store {
            key: KeyAt::Head,
            value_bytes: value.len() as u32,
            options: StoreOptions::default(),
        };
        let mut data = Data::of(Way::Stream, &headed(key, value));
        self.kv(command, &mut data).await
    }

    /// Execute-submit: DW0 and the handle.
    async fn submit(
        &mut self,
        operation: u32,
        payload: &[u8],
        capacity: u32,
    ) -> Result<(u32, u32), Status> {
        let command = KvCommand::ExecuteSubmit {
            payload_bytes: payload.len() as u32,
            capacity,
            operation,
        };
        let mut data = Data::of(Way::Stream, payload);
        let result = self.kv(command, &mut data).await?;
        Ok((result as u32, (result >> 32) as u32))
    }

    /// Execute-fetch: how much there is from the offset on, and as much of it as there is room for.
    async fn fetch(
        &mut self,
        handle: u32,
        offset: u32,
        room: u32,
    ) -> Result<(u64, Vec<u8>), Status> {
        let command = KvCommand::ExecuteFetch {
            handle,
            offset,
            buffer_bytes: room,
        };
        let mut data = Data::room(Way::Stream, room as usize);
        let rest = self.kv(command, &mut data).await?;
        assert_eq!(data.moved() as u64, rest.min(u64::from(room)));
        let mut bytes = data.bytes();
        bytes.truncate(data.moved());
        Ok((rest, bytes))
    }

    async fn inline(
        &mut self,
        operation: u32,
        argument: u32,
        room: u32,
    ) -> Result<(u64, Vec<u8>), Status> {
        let command = KvCommand::ExecuteInline {
            key: Key::new(b"key").unwrap(),
            argument,
            operation,
            buffer_bytes: room,
        };
        let mut data = Data::room(Way::Stream, room as usize);
        let len = self.kv(command, &mut data).await?;
        let mut bytes = data.bytes();
        bytes.truncate(data.moved());
        Ok((len, bytes))
    }

    async fn is_unharmed(&mut self) {
        let all = self.inline(ECHO, u32::from_le_bytes(*b"and "), 100).await;
        assert_eq!(all, Ok((14, b"and some value".to_vec())));
    }
}

impl Host {
    fn of(target: &Target<Exec<MemoryStore>, SimFile>, nqn: &str) -> Host {
        let admitted = target.connect(0, &connect(nqn)).unwrap();
        let mut controller = admitted.controller;
        enable(&mut controller);
        Host {
            session: admitted.session,
            controller,
        }
    }

    async fn execute(
        &mut self,
        target: &Target<Exec<MemoryStore>, SimFile>,
        entry: &SubmissionQueueEntry,
        data: &mut impl Payload,
    ) -> Result<u64, Status> {
        let command = self.controller.io(0, 1, entry).map_err(Status::code)?;
        let (status, result) = target.execute(&self.session, &command, data).await;
        match status.is_success() {
            true => Ok(result),
            false => Err(status.code()),
        }
    }

    fn told(
        &mut self,
        target: &Target<Exec<MemoryStore>, SimFile>,
        entry: &SubmissionQueueEntry,
    ) -> Vec<u8> {
        let entry = match self.session.host() {
            Some(_) => entry.with_sgl(SglDescriptor::transport(1 << 20)),
            None => entry.with_prps(0x10000, 0x20000),
        };
        if let Some(prepared) = target.prepare(&self.session, &entry) {
            prepared.show(&mut self.controller);
        }
        match self.controller.admin(0, &entry, &[]) {
            AdminReply::Complete { data, status, .. } if status.is_success() => data,
            other => panic!("{other:?}"),
        }
    }

    fn effects(&mut self, target: &Target<Exec<MemoryStore>, SimFile>) -> Vec<u8> {
        let asked = GetLogPage {
            lid: lid::COMMANDS_AND_EFFECTS,
            retain_event: true,
            bytes: 4096,
            offset: 0,
            csi: 1,
        };
        self.told(target, &asked.entry(1, 0))
    }
}

#[tokio::test]
async fn a_result_is_kept_until_its_last_byte_is_fetched() {
    let mut fixture = Fixture::new().await;
    let (len, handle) = fixture
        .submit(ECHO, &headed(b"key", b"told: "), 100)
        .await
        .unwrap();
    assert_eq!(len, 16);
    assert_ne!(handle, 0);
    assert_eq!(
        fixture.fetch(handle, 0, 4).await,
        Ok((16, b"told".to_vec()))
    );
    assert_eq!(
        fixture.fetch(handle, 6, 4).await,
        Ok((10, b"some".to_vec()))
    );
    assert_eq!(
        fixture.fetch(handle, 17, 4).await,
        Err(Status::INVALID_FIELD)
    );
    assert_eq!(
        fixture.fetch(handle, 4, 100).await,
        Ok((12, b": some value".to_vec()))
    );
    assert_eq!(
        fixture.fetch(handle, 0, 4).await,
        Err(Status::INVALID_FIELD)
    );
    // As much as was wanted, or nothing, with the true length.
    let (len, handle) = fixture.submit(ECHO, &headed(b"key", b""), 4).await.unwrap();
    assert_eq!(len, 10);
    assert_eq!(
        fixture.fetch(handle, 0, 100).await,
        Ok((4, b"some".to_vec()))
    );
    let nothing = fixture.submit(ECHO, &headed(b"key", b""), 0).await;
    assert_eq!(nothing, Ok((10, 0)));
    // A long key, and arguments in more than one buffer.
    let long = [7; 255];
    fixture.store(&long, b".").await.unwrap();
    let arguments = vec![b'a'; 60_000];
    let (len, handle) = fixture
        .submit(ECHO, &headed(&long, &arguments), 1 << 20)
        .await
        .unwrap();
    assert_eq!(len, 60_001);
    let (_, bytes) = fixture.fetch(handle, 0, 1 << 20).await.unwrap();
    assert_eq!(bytes, [&arguments[..], b"."].concat());
}

#[tokio::test]
async fn what_takes_the_place_of_a_namespace_while_a_payload_comes_is_not_the_hosts() {
    let (payload_bytes, capacity) = (headed(b"key", b"new").len() as u32, 100);
    let (key, options) = (KeyAt::Head, StoreOptions::default());
    for command in [
        KvCommand::ExecuteSubmit {
            payload_bytes,
            capacity,
            operation: ECHO,
        },
        KvCommand::Store {
            key,
            value_bytes: 3,
            options,
        },
        KvCommand::Store {
            key: KeyAt::Inline(Key::new(b"key").unwrap()),
            value_bytes: 3,
            options,
        },
        KvCommand::StorePart {
            key,
            offset: 0,
            value_bytes: 3,
            options,
            last: true,
        },
        KvCommand::ExtendedKey { verb: Verb::Exist },
        KvCommand::ExtendedKey { verb: Verb::Delete },
    ] {
        let mut fixture = Fixture::new().await;
        let mut slow = Slow {
            data: Data::of(Way::Stream, &headed(b"key", b"new")),
            store: &fixture.store,
            passed: false,
        };
        let entry = command.entry(1, KV);
        let executed = fixture.host.execute(&fixture.target, &entry, &mut slow);
        let gone = Status::INVALID_NAMESPACE_OR_FORMAT.code();
        assert_eq!(executed.await, Err(gone), "{command:?}");
        let theirs = Address::object("values", b"key");
        let theirs = fixture.store.retrieve(theirs, None, ByteRange::Full).await;
        let theirs = theirs.unwrap().bytes().await.unwrap();
        assert_eq!(theirs, b"theirs", "{command:?}");
    }
}

#[tokio::test]
async fn a_short_key_needs_one_command() {
    let mut fixture = Fixture::new().await;
    fixture.is_unharmed().await;
    assert_eq!(
        fixture.inline(LENGTH, 0, 8).await,
        Ok((8, 10u64.to_le_bytes().to_vec()))
    );
    assert_eq!(fixture.inline(LENGTH, 0, 3).await, Ok((8, vec![10, 0, 0])));
    assert_eq!(
        fixture.inline(BYTECOUNT, 0, 8).await,
        Ok((8, 10u64.to_le_bytes().to_vec()))
    );
    // No call sees what another left behind.
    for _ in 0..3 {
        assert_eq!(fixture.inline(STATEFUL, 0, 8).await, Ok((1, b"1".to_vec())));
    }
}

#[tokio::test]
async fn over_memory_the_result_takes_the_place_of_the_arguments() {
    let mut fixture = Fixture::new().await;
    let mut device = fixture.device();
    for way in [Way::Stream, Way::Memory, Way::Pieces(512)] {
        let payload = headed(b"key", b"told: ");
        let mut buffer = vec![0xee; 2000];
        buffer[..payload.len()].copy_from_slice(&payload);
        let mut data = Data::of(way, &buffer);
        let command = KvCommand::Execute {
            payload_bytes: payload.len() as u32,
            capacity: 2000,
            operation: ECHO,
        };
        let done = device
            .execute(&fixture.target, &command.entry(1, KV), &mut data)
            .await;
        assert_eq!(done, Ok(16), "{way:?}");
        assert_eq!(&data.bytes()[..17], b"told: some value\xee", "{way:?}");
    }
    // Over fabrics data goes one way.
    let command = KvCommand::Execute {
        payload_bytes: 5,
        capacity: 5,
        operation: ECHO,
    };
    let mut data = Data::of(Way::Stream, &headed(b"key", b""));
    assert_eq!(
        fixture.kv(command, &mut data).await,
        Err(Status::INVALID_OPCODE)
    );
}

#[tokio::test]
async fn what_there_is_is_announced() {
    let mut fixture = Fixture::new().await;
    let identified = SubmissionQueueEntry::new(opcode::admin::IDENTIFY, 1, KV)
        .with_cdw(10, u32::from(cns::IO_NAMESPACE))
        .with_cdw(11, 1 << 24);
    let mut device = fixture.device();
    for (host, both_ways) in [(&mut fixture.host, 0), (&mut device, 1)] {
        let told = host.told(&fixture.target, &identified);
        assert_eq!(told.len(), identify::BYTES);
        let vendor = IdentifyKv::decode(&told).unwrap().vendor;
        assert_eq!(vendor.result_bytes_max, RESULT_BYTES_MAX);
        let effects = host.effects(&fixture.target);
        let of = |opcode: u8| effects[1024 + usize::from(opcode) * 4];
        // Supported, and nothing is changed.
        assert_eq!(
            [of(0xc1), of(0xc2), of(0xc6), of(0x83)],
            [1, 1, 1, both_ways]
        );
    }
}

#[tokio::test]
async fn refusals_have_their_statuses() {
    let mut fixture = Fixture::new().await;
    let long = headed(&[1; 256], b"");
    let cut = &headed(b"key", b"")[..4];
    for (payload, operation, capacity, status) in [
        (&headed(b"key", b"")[..], 99, 10, Status::INVALID_OPCODE),
        (
            &headed(b"none", b"")[..],
            ECHO,
            10,
            Status::KV_KEY_DOES_NOT_EXIST,
        ),
        (&headed(b"", b"abc")[..], ECHO, 10, Status::INVALID_KEY_SIZE),
        (&long[..], ECHO, 10, Status::INVALID_KEY_SIZE),
        (cut, ECHO, 10, Status::INVALID_KEY_SIZE),
        (&cut[..2], ECHO, 10, Status::INVALID_KEY_SIZE),
        (&[][..], ECHO, 10, Status::INVALID_KEY_SIZE),
        (
            &headed(b"key", b"")[..],
            ECHO,
            RESULT_BYTES_MAX + 1,
            Status::INVALID_VALUE_SIZE,
        ),
        (&headed(b"key", b"")[..], FAILS, 10, Status::INTERNAL_ERROR),
    ] {
        let refused = fixture.submit(operation, payload, capacity).await;
        assert_eq!(refused, Err(status), "{payload:?} {operation}");
    }
    // More than the buffer holds, and more than anybody says.
    for (said, status) in [
        (6, Status::DATA_SGL_LENGTH_INVALID),
        (2 << 20, Status::INVALID_VALUE_SIZE),
        (u32::MAX, Status::INVALID_VALUE_SIZE),
    ] {
        let command = KvCommand::ExecuteSubmit {
            payload_bytes: said,
            capacity: 10,
            operation: ECHO,
        };
        let mut data = Data::of(Way::Stream, &headed(b"key", b""));
        assert_eq!(fixture.kv(command, &mut data).await, Err(status), "{said}");
    }
    // A buffer shorter than the room that the command speaks of.
    let command = KvCommand::ExecuteInline {
        key: Key::new(b"key").unwrap(),
        argument: 0,
        operation: ECHO,
        buffer_bytes: 100,
    };
    let refused = fixture.kv(command, &mut Data::room(Way::Stream, 99)).await;
    assert_eq!(refused, Err(Status::DATA_SGL_LENGTH_INVALID));
    fixture.is_unharmed().await;
}

#[tokio::test]
async fn functions_that_do_harm_are_stopped_and_others_go_on() {
    let mut fixture = Fixture::new().await;
    let mut short = Fixture::within(Duration::from_secs(3)).await;
    for (operation, what, _, ends) in HOSTILE {
        let fixture = match operation == HOSTILE[0].0 {
            true => &mut short,
            false => &mut fixture,
        };
        let status = match ends {
            Ends::Stopped => Status::ABORT_REQUESTED,
            Ends::Failed => Status::INTERNAL_ERROR,
        };
        let refused = fixture.submit(operation, &headed(b"key", b""), 100).await;
        assert_eq!(refused, Err(status), "it {what}");
        let refused = fixture.inline(operation, 0, 100).await;
        assert_eq!(refused, Err(status), "it {what}");
        fixture.is_unharmed().await;
    }
    assert_eq!(
        fixture.inline(29, 0, 100).await,
        Err(Status::INTERNAL_ERROR)
    );
}

#[tokio::test]
async fn a_module_is_another_tenants_no_more_than_a_value_is() {
    let mut fixture = Fixture::new().await;
    fixture.store(b"mine", b"secret").await.unwrap();
    let mut theirs = Host::of(&fixture.target, "nqn.their-host");
    let command = |operation| KvCommand::ExecuteInline {
        key: Key::new(b"mine").unwrap(),
        argument: 0,
        operation,
        buffer_bytes: 100,
    };
    let mut data = Data::room(Way::Stream, 100);
    for nsid in [KV, 9] {
        let refused = theirs
            .execute(&fixture.target, &command(ECHO).entry(1, nsid), &mut data)
            .await;
        assert_eq!(refused, Err(Status::INVALID_NAMESPACE_OR_FORMAT));
    }
    // Allowed to them elsewhere, or not to them at all: the two look the same.
    for operation in [ECHO, LENGTH, 99] {
        let entry = command(operation).entry(1, OTHERS);
        let refused = theirs.execute(&fixture.target, &entry, &mut data).await;
        assert_eq!(refused, Err(Status::INVALID_OPCODE));
    }
    // Nor is a handle.
    let (_, handle) = fixture
        .submit(ECHO, &headed(b"mine", b""), 100)
        .await
        .unwrap();
    let fetch = KvCommand::ExecuteFetch {
        handle,
        offset: 0,
        buffer_bytes: 100,
    };
    let refused = theirs
        .execute(&fixture.target, &fetch.entry(1, OTHERS), &mut data)
        .await;
    assert_eq!(refused, Err(Status::INVALID_FIELD));
    assert_eq!(
        fixture.fetch(handle, 0, 100).await,
        Ok((6, b"secret".to_vec()))
    );
}

#[tokio::test]
async fn results_that_wait_are_bounded_and_go_with_time_and_reset() {
    let mut fixture = Fixture::new().await;
    let payload = headed(b"key", b"");
    // Room is reserved for what is wanted while it is made, and then for what there is.
    let mut handles = Vec::new();
    for _ in 0..64 {
        handles.push(
            fixture
                .submit(ECHO, &payload, RESULT_BYTES_MAX)
                .await
                .unwrap()
                .1,
        );
    }
    handles.sort_unstable();
    handles.dedup();
    assert_eq!(handles.len(), 64);
    let full = fixture.submit(ECHO, &payload, 100).await;
    assert_eq!(full, Err(Status::CAPACITY_EXCEEDED));
    // Who wants nothing kept is not refused for what others keep.
    fixture.is_unharmed().await;
    fixture.fetch(handles[0], 0, 100).await.unwrap();
    assert!(fixture.submit(ECHO, &payload, 100).await.is_ok());
    fixture.clock.advance(std::time::Duration::from_secs(121));
    assert!(fixture.submit(ECHO, &payload, 100).await.is_ok());
    assert_eq!(
        fixture.fetch(handles[1], 0, 100).await,
        Err(Status::INVALID_FIELD)
    );
    let (_, handle) = fixture.submit(ECHO, &payload, 100).await.unwrap();
    fixture.host.session.reset();
    assert_eq!(
        fixture.fetch(handle, 0, 100).await,
        Err(Status::INVALID_FIELD)
    );
    let before = fixture.pool.usage().in_use;
    let (_, _) = fixture.submit(ECHO, &payload, 100).await.unwrap();
    fixture.host.session.reset();
    assert_eq!(fixture.pool.usage().in_use, before);
}

#[tokio::test]
async fn a_result_is_as_old_as_the_end_of_its_function() {
    let mut fixture = Fixture::new().await;
    // What looks first is what reserves the room for it.
    fixture
        .clock
        .advance_behind_a_look(Duration::from_secs(121));
    let (len, handle) = fixture
        .submit(ECHO, &headed(b"key", b"of "), 100)
        .await
        .unwrap();
    assert_eq!(len, 13);
    fixture.clock.advance(Duration::from_secs(119));
    let fetched = fixture.fetch(handle, 0, 100).await;
    assert_eq!(fetched, Ok((13, b"of some value".to_vec())));
}

#[tokio::test]
async fn arguments_count_as_memory_while_their_function_runs() {
    const BYTES: usize = 1 << 20;
    let mut fixture = Fixture::new().await;
    let (endless, ..) = HOSTILE[0];
    let submit = |payload: &[u8]| KvCommand::ExecuteSubmit {
        payload_bytes: payload.len() as u32,
        capacity: 10,
        operation: endless,
    };
    let before = fixture.pool.usage().in_use;
    let payload = headed(b"key", &[7; BYTES]);
    let entry = submit(&payload).entry(1, KV);
    let command = fixture.host.controller.io(0, 1, &entry).unwrap();
    let mut data = Data::of(Way::Stream, &payload);
    {
        let session = &fixture.host.session;
        let mut running = pin!(fixture.target.execute(session, &command, &mut data));
        // More often than a payload lets others have their turn.
        for _ in 0..100 {
            let polled = poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
            tokio::task::yield_now().await;
        }
        assert!(fixture.pool.usage().in_use >= before + BYTES);
    }
    // One more than there may be.
    let payload = headed(b"key", &[7; BYTES + 1]);
    let mut data = Data::of(Way::Stream, &payload);
    let refused = fixture.kv(submit(&payload), &mut data).await;
    assert_eq!(refused, Err(Status::INVALID_VALUE_SIZE));
    fixture.is_unharmed().await;
}

#[tokio::test]
async fn a_target_that_runs_none_knows_no_such_command() {
    let fixture = Fixture::new().await;
    let config = TargetConfig {
        nqn: SUBSYSTEM.to_owned(),
        result_bytes_max: 0,
        ..TargetConfig::default()
    };
    let store = Arc::new(fixture.store.clone());
    let target = Target::new(
        store,
        fixture.pool.clone(),
        Arc::new(fixture.clock.clone()),
        config,
    );
    target.set_hosts(vec![host("nqn.our-host", "ours")]);
    target.publish(vec![key_value(KV, "values")]);
    let mut host = Host::of(&target, "nqn.our-host");
    let command = KvCommand::ExecuteInline {
        key: Key::new(b"key").unwrap(),
        argument: 0,
        operation: ECHO,
        buffer_bytes: 100,
    };
    let mut data = Data::room(Way::Stream, 100);
    let refused = host
        .execute(&target, &command.entry(1, KV), &mut data)
        .await;
    assert_eq!(refused, Err(Status::INVALID_OPCODE));
    let effects = host.effects(&target);
    assert_eq!(effects[1024 + 0xc6 * 4], 0);
}
