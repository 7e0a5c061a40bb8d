//! Functions sent to the data: what the door makes of a call, and where the output goes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_api::v1::condition::Rule;
use forebay_api::v1::execute_request::{Module as Named, Output as Asked};
use forebay_api::v1::execute_response::Part;
use forebay_api::v1::place::Memory;
use forebay_api::v1::{self, Access as Wire, ExecuteRequest, Executed};
use forebay_control::rpc::Config;
use forebay_fabric::Fabric;
use forebay_mem::Buf;
use forebay_store::{
    Effort, ErrorKind, Execute, MemoryStore, Module, Output, ProgramFault, Result, Store,
    StoreError, Upload, Versioning,
};
use tonic::{Code, Status, Streaming};

use crate::harness::{Choice, Client, Door, refused};
use crate::memory::{Shared, noise, place};
use crate::objects::{read, stored};

/// Stands for the layer that executes. `echo` writes its inputs, then its arguments; `zeros` as many zeros as its arguments say;
/// `fails` logs its arguments. All others are not allowed. Output in buffers has a clone of `outputs`.
pub async fn run(
    store: &MemoryStore,
    call: Execute<'_>,
    outputs: &Arc<()>,
) -> Result<forebay_store::Executed> {
    let mut output = Vec::new();
    for input in call.inputs {
        let found = store.retrieve(input.address, input.version, input.range);
        output.extend(found.await?.bytes().await?);
    }
    let read = output.len() as u64;
    let output = match call.module {
        Module::Name("zeros") => {
            let words = std::str::from_utf8(&call.arguments).unwrap();
            Bytes::from(vec![0; words.parse().unwrap()])
        }
        Module::Name("fails") => {
            let logs = call.arguments;
            let fault = ProgramFault { code: None, logs };
            let error = StoreError::new(ErrorKind::ProgramFailed, "the function failed");
            return Err(error.with_source(fault));
        }
        Module::Name("echo") | Module::Number(7) => {
            output.extend(&call.arguments);
            Bytes::from(output)
        }
        _ => return Err(StoreError::new(ErrorKind::Denied, "not allowed")),
    };
    let len = output.len();
    let (mut bytes, mut became) = (Vec::new(), None);
    match call.output {
        Output::Inline { capacity } => {
            let buf = Buf::from(output.slice(..len.min(capacity)));
            bytes.push(buf.keeping(outputs.clone()));
        }
        Output::Into(memory) => assert!(memory.write(0, &output[..len.min(memory.len())])),
        Output::Store {
            address,
            options,
            seal,
        } => {
            let mut upload = store.store(address, options).await?;
            upload.write(Buf::from(output)).await?;
            became = Some(upload.commit(seal).await?);
        }
    }
    Ok(forebay_store::Executed {
        len: len as u64,
        bytes,
        stored: became,
        logs: format!("{} {:?} {:?}", call.tenant, call.function, call.deadline).into(),
        effort: Effort {
            read,
            ..Effort::default()
        },
    })
}

pub fn call(name: &str, output: Option<Asked>) -> ExecuteRequest {
    ExecuteRequest {
        module: Some(Named::Name(name.to_owned())),
        inputs: vec![input("in")],
        arguments: Bytes::from_static(b"!"),
        output,
        ..ExecuteRequest::default()
    }
}

fn input(key: &str) -> v1::ExecuteInput {
    v1::ExecuteInput {
        namespace: "data".into(),
        key: key.to_owned().into(),
        ..v1::ExecuteInput::default()
    }
}

pub async fn all(
    client: &mut Client,
    asked: ExecuteRequest,
) -> std::result::Result<(Vec<u8>, Executed), Status> {
    let mut answers = client.execution.execute(asked).await?.into_inner();
    let mut output = Vec::new();
    while let Some(answer) = answers.message().await? {
        match answer.part.unwrap() {
            Part::Data(data) => output.extend_from_slice(&data),
            Part::Executed(executed) => {
                assert!(answers.message().await?.is_none(), "nothing follows");
                return Ok((output, executed));
            }
        }
    }
    panic!("no end");
}

/// A door with a namespace of red's, `data`, in which `in` is noise.
pub async fn door() -> (Door, Client, Vec<u8>) {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    red.namespace("data").await;
    let value = noise(3_000_000);
    stored(&door.store, "data", b"in", &value).await;
    (door, red, value)
}

#[tokio::test]
async fn output_comes_in_the_answer_and_is_cut() {
    let (_door, mut red, value) = door().await;
    let asked = call("echo", Some(Asked::Capacity(10 << 20)));
    let (output, executed) = all(&mut red, asked).await.unwrap();
    assert!(output == [&value[..], b"!"].concat());
    assert_eq!((executed.length, executed.read), (3_000_001, 3_000_000));
    assert_eq!(executed.path, "grpc");
    assert_eq!(executed.logs, "red None None");

    let (output, executed) = all(&mut red, call("echo", Some(Asked::Capacity(1000))))
        .await
        .unwrap();
    assert!(output == value[..1000]);
    assert_eq!(executed.length, 3_000_001);
    let (output, executed) = all(&mut red, call("echo", None)).await.unwrap();
    assert_eq!((output.len(), executed.length), (0, 3_000_001));
}

#[tokio::test]
async fn a_call_names_number_function_version_range_and_deadline() {
    let (door, mut red, _) = door().await;
    let mut config = door.store.namespace("data").unwrap().config.clone();
    config.versioning = Versioning::Enabled;
    let update = door.store.update_namespace("data", None, config);
    update.await.unwrap();
    stored(&door.store, "data", b"of", b"0123456789").await;
    let address = forebay_store::Address::object("data", b"of");
    let version = door.store.stat(address, None).await.unwrap().version;
    stored(&door.store, "data", b"of", b"another").await;
    let asked = ExecuteRequest {
        module: Some(Named::Number(7)),
        function: "other".into(),
        inputs: vec![v1::ExecuteInput {
            version: Some(version.0),
            range: Some(v1::Range {
                offset: 3,
                length: 4,
            }),
            ..input("of")
        }],
        deadline_ms: 70,
        ..call("", Some(Asked::Capacity(100)))
    };
    let (output, executed) = all(&mut red, asked).await.unwrap();
    assert_eq!(output, b"3456!");
    assert_eq!(executed.logs, "red Some(\"other\") Some(70ms)");

    let none = ExecuteRequest {
        module: None,
        ..call("", None)
    };
    refused(all(&mut red, none).await, Code::InvalidArgument, "INVALID");
    let short = ExecuteRequest {
        module: Some(Named::Sha256(Bytes::from_static(b"short"))),
        ..call("", None)
    };
    refused(all(&mut red, short).await, Code::InvalidArgument, "INVALID");
    let denied = all(&mut red, call("unknown", None)).await;
    refused(denied, Code::PermissionDenied, "DENIED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_goes_into_the_callers_memory() {
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let (door, mut red, value) = door().await;
        let expected = [&value[..], b"!"].concat();
        let shared = Shared::open(&door, &mut red, fabric, 4 << 20).await;
        let into = |place: Option<v1::Place>| ExecuteRequest {
            session: shared.session.clone().into(),
            ..call("echo", place.map(Asked::Place))
        };
        // All of it, somewhere in the region, and not a byte besides.
        shared.set(0, &vec![0xee; 4 << 20]);
        let asked = into(shared.place(100, 4_000_000));
        let (output, executed) = all(&mut red, asked).await.unwrap();
        assert!(output.is_empty());
        assert_eq!(executed.length, 3_000_001);
        assert_eq!(executed.path, fabric.name());
        assert_eq!(shared.bytes(0, 100), [0xee; 100]);
        assert!(shared.bytes(100, 3_000_001) == expected);
        let behind = shared.bytes(3_000_101, 4096);
        assert_eq!(behind, [0xee; 4096]);
        let line = format!(
            "forebay_rpc_sent_bytes_total{{path=\"{}\"}} 3000001\n",
            fabric.name()
        );
        assert!(door.metrics().contains(&line), "{}", door.metrics());

        // Cut at the end of the place.
        shared.set(0, &vec![0xee; 4 << 20]);
        let asked = into(shared.place(7, 1000));
        let (_, executed) = all(&mut red, asked).await.unwrap();
        assert_eq!(executed.length, 3_000_001);
        assert!(shared.bytes(7, 1000) == expected[..1000]);
        assert_eq!(shared.bytes(1007, 100), [0xee; 100]);

        // By a grant, which needs no session and no region of the caller's.
        let grant = shared.grant(&mut red, 5000, 2000, Wire::Write).await;
        let by_grant = |grant: &v1::GrantResponse, len| {
            let place = place(Memory::Grant(grant.grant.clone()), 10, len);
            call("echo", place.map(Asked::Place))
        };
        shared.set(0, &vec![0xee; 8000]);
        all(&mut red, by_grant(&grant, 1500)).await.unwrap();
        assert_eq!(shared.bytes(5000, 10), [0xee; 10]);
        assert!(shared.bytes(5010, 1500) == expected[..1500]);
        assert_eq!(shared.bytes(6510, 100), [0xee; 100]);

        // What may not be written is not.
        shared.set(0, &vec![0xee; 8000]);
        let readable = shared.grant(&mut red, 5000, 2000, Wire::Read).await;
        let beyond = by_grant(&grant, 1991);
        for asked in [by_grant(&readable, 1500), beyond] {
            let answer = all(&mut red, asked).await;
            refused(answer, Code::NotFound, "NO_SUCH_GRANT");
        }
        let mut blue = door.tenant("blue").await;
        let other = all(&mut blue, by_grant(&grant, 1500)).await;
        refused(other, Code::NotFound, "NO_SUCH_GRANT");
        let other = all(&mut blue, into(shared.place(0, 1000))).await;
        refused(other, Code::NotFound, "NO_SUCH_SESSION");
        let mut strange = into(shared.place(0, 1000));
        strange.session = vec![7; 16].into();
        let strange = all(&mut red, strange).await;
        refused(strange, Code::NotFound, "NO_SUCH_SESSION");
        let beyond = all(&mut red, into(shared.place(4 << 20, 1))).await;
        refused(beyond, Code::NotFound, "NO_SUCH_REGION");
        let nowhere = all(&mut red, into(Some(v1::Place::default()))).await;
        refused(nowhere, Code::InvalidArgument, "INVALID");
        assert_eq!(shared.bytes(0, 8000), [0xee; 8000]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_cannot_be_filled_is_refused() {
    const LEN: u64 = 65 << 20;
    for fabric in [Fabric::Shm, Fabric::Iwarp] {
        let (door, mut red, _) = door().await;
        let shared = Shared::open(&door, &mut red, fabric, LEN as usize).await;
        shared.set(0, &vec![0xee; LEN as usize]);
        let into = |len: u64| ExecuteRequest {
            session: shared.session.clone().into(),
            arguments: LEN.to_string().into(),
            ..call("zeros", shared.place(0, len).map(Asked::Place))
        };
        let answer = all(&mut red, into(LEN)).await;
        let filled = match fabric {
            // The output does not pass through the server's buffers.
            Fabric::Shm => {
                assert_eq!(answer.unwrap().1.length, LEN);
                LEN
            }
            _ => {
                refused(answer, Code::InvalidArgument, "INVALID");
                assert!(shared.bytes(0, 4096) == [0xee; 4096]);
                let (_, executed) = all(&mut red, into(64 << 20)).await.unwrap();
                assert_eq!(executed.length, LEN);
                64 << 20
            }
        };
        let (filled, len) = (filled as usize, LEN as usize);
        assert!(shared.bytes(0, filled) == vec![0; filled]);
        assert!(shared.bytes(filled, len - filled) == vec![0xee; len - filled]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_back_while_a_function_runs_is_not_written() {
    const LEN: usize = 8192;
    let (door, mut red, _) = door().await;
    let shared = Shared::open(&door, &mut red, Fabric::Iwarp, LEN).await;
    shared.set(0, &[0xee; LEN]);
    let into = |place: Option<v1::Place>| ExecuteRequest {
        session: shared.session.clone().into(),
        ..call("echo", place.map(Asked::Place))
    };
    let grant = shared.grant(&mut red, 0, 4096, Wire::Write).await;
    let mut sessions = red.sessions.clone();
    let revoke = v1::RevokeRequest {
        session: shared.session.clone().into(),
        id: grant.id,
    };
    door.beside
        .executed
        .once(async move { drop(sessions.revoke(revoke).await.unwrap()) });
    let asked = into(place(Memory::Grant(grant.grant), 0, 4096));
    refused(all(&mut red, asked).await, Code::NotFound, "NO_SUCH_GRANT");

    let mut sessions = red.sessions.clone();
    let deregister = v1::DeregisterRegionRequest {
        session: shared.session.clone().into(),
        region: shared.region,
    };
    let deregistering = async move { drop(sessions.deregister_region(deregister).await.unwrap()) };
    door.beside.executed.once(deregistering);
    let asked = into(shared.place(0, 4096));
    refused(all(&mut red, asked).await, Code::NotFound, "NO_SUCH_REGION");
    assert_eq!(shared.bytes(0, LEN), [0xee; LEN]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_goes_while_a_function_runs_hears_nothing_of_it() {
    for inline in [true, false] {
        let (door, mut red, _) = door().await;
        let shared = Shared::open(&door, &mut red, Fabric::Iwarp, 4096).await;
        let asked = ExecuteRequest {
            session: shared.session.clone().into(),
            output: match inline {
                true => Some(Asked::Capacity(4096)),
                false => shared.place(0, 4096).map(Asked::Place),
            },
            ..call("echo", None)
        };
        let (identities, key) = (door.identities.clone(), red.access_key.clone());
        let removing = async move { identities.remove_key(&key).await.unwrap() };
        door.beside.executed.once(removing);
        let answer = all(&mut red, asked).await;
        refused(answer, Code::Unauthenticated, "UNAUTHENTICATED");
        assert_eq!(shared.bytes(0, 4096), [0; 4096]);
    }
}

#[tokio::test]
async fn output_becomes_a_value_under_conditions() {
    let (door, mut red, value) = door().await;
    let expected = [&value[..], b"!"].concat();
    let into = |rule| {
        let target = v1::ExecuteTarget {
            namespace: "data".into(),
            key: Bytes::from_static(b"out"),
            condition: Some(v1::Condition { rule: Some(rule) }),
            attributes: Some(v1::Attributes {
                content_type: "text/plain".into(),
                ..v1::Attributes::default()
            }),
            ..v1::ExecuteTarget::default()
        };
        call("echo", Some(Asked::Target(target)))
    };
    let missing = all(&mut red, into(Rule::IfPresent(true))).await;
    refused(missing, Code::FailedPrecondition, "CONDITION");
    assert!(read(&door.store, "data", b"out").await.is_none());
    let (output, executed) = all(&mut red, into(Rule::IfAbsent(true))).await.unwrap();
    assert!(output.is_empty());
    let object = executed.object.unwrap();
    assert_eq!((object.size, executed.replaced), (3_000_001, false));
    let address = forebay_store::Address::object("data", b"out");
    let attributes = door.store.stat(address, None).await.unwrap().attributes;
    assert_eq!(attributes.get_str("content-type"), Some("text/plain"));
    assert!(read(&door.store, "data", b"out").await.unwrap() == expected);
    let there = all(&mut red, into(Rule::IfAbsent(true))).await;
    refused(there, Code::FailedPrecondition, "CONDITION");
    let (_, executed) = all(&mut red, into(Rule::IfPresent(true))).await.unwrap();
    assert!(executed.replaced);
}

#[tokio::test]
async fn logs_of_a_failure_are_its_last() {
    let (_door, mut red, _) = door().await;
    for len in [0, 100, 4096, 60_000] {
        let logs = noise(len);
        let asked = ExecuteRequest {
            arguments: logs.clone().into(),
            ..call("fails", None)
        };
        let failed = all(&mut red, asked).await.unwrap_err();
        let told = failed.metadata().get_bin("forebay-logs-bin");
        match len {
            0 => assert!(told.is_none()),
            _ => {
                let told = told.unwrap().to_bytes().unwrap();
                assert!(told[..] == logs[len.saturating_sub(4096)..]);
            }
        }
        refused(Err::<(), _>(failed), Code::Aborted, "PROGRAM");
    }
}

/// As many zeros as an answer may have.
fn long() -> ExecuteRequest {
    ExecuteRequest {
        inputs: Vec::new(),
        arguments: (64 << 20).to_string().into(),
        ..call("zeros", Some(Asked::Capacity(u64::MAX)))
    }
}

/// Returns when so many outputs are kept for whoever asked for them.
async fn kept(door: &Door, outputs: usize) {
    let settled = async {
        // The store has one, and so has the test.
        while Arc::strong_count(&door.beside.outputs) != 2 + outputs {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(60), settled).await;
    settled.expect("the others are let go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_goes_with_who_asked_for_it() {
    let (door, red, _) = door().await;
    let mut slow = door.slow_tenant("red").await;
    drop(red);
    let mut waiting: Vec<Streaming<_>> = Vec::new();
    for _ in 0..2 {
        let answers = slow.execution.execute(long()).await.unwrap();
        waiting.push(answers.into_inner());
    }
    kept(&door, 2).await;
    waiting.pop();
    kept(&door, 1).await;
    drop((waiting, slow));
    kept(&door, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_does_not_move_is_given_up() {
    let door = Door::choose(Choice {
        config: Config {
            patience: Duration::from_secs(2),
            ..Config::default()
        },
        ..Choice::default()
    })
    .await;
    let mut slow = door.tenant("red").await;
    slow.namespace("data").await;
    let mut slow = door.slow_tenant("red").await;
    let answers = slow.execution.execute(long()).await.unwrap();
    let mut answers = answers.into_inner();
    kept(&door, 0).await;
    let ended = loop {
        match answers.message().await {
            Ok(Some(_)) => {}
            ended => break ended,
        }
    };
    refused(ended, Code::DeadlineExceeded, "STOPPED");
}
