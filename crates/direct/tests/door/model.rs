//! The same operations through the door and straight on a store come to the same.

use forebay_fabric::Access;
use forebay_proto::direct::{
    self, Body, Condition, Delete, Deleted, List, ListAfter, Operation, Range, Retrieve, Stat,
    Status, Target,
};
use forebay_store::{
    Address, After, ByteRange, DeleteOptions, ErrorKind, Etag, Item, ListOptions, MemoryStore,
    NamespaceConfig, Quota, Result as StoreResult, Seal, Space, Store, StoreOptions, Upload,
    VersionId, Versioning,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::any::{WAYS, Way};
use crate::support::*;

const KEYS: [&[u8]; 6] = [b"a", b"a/", b"a/1", b"b", b"\xff\0", b"zz"];
/// The tenant's own, with versions, with little room; the other tenant's; none.
const NAMESPACES: [&str; 5] = [NAMESPACE, "kept", "small", FOREIGN, "nowhere"];

#[derive(Debug, Clone)]
enum Op {
    Put {
        at: (usize, usize),
        len: usize,
        inline: bool,
        when: u8,
        crc: Option<bool>,
    },
    Get {
        at: (usize, usize),
        range: (u8, u64, u64),
        inline: bool,
        checksum: bool,
        version: Option<usize>,
    },
    Exist(usize, Vec<usize>),
    Prefix(usize, Vec<usize>),
    Stat((usize, usize), Option<usize>),
    Delete {
        at: (usize, usize),
        when: u8,
        version: Option<usize>,
    },
    List {
        namespace: usize,
        prefix: usize,
        folded: bool,
        after: (u8, usize),
        limit: u32,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let at = || (0..NAMESPACES.len(), 0..KEYS.len());
    let version = || option::weighted(0.2, 0usize..6);
    let keys = || vec(0..KEYS.len(), 0..5);
    let lens = prop_oneof![0usize..20, 4000usize..9000, Just(70_000usize)];
    prop_oneof![
        4 => (at(), lens, any::<bool>(), 0u8..4, option::of(any::<bool>())).prop_map(
            |(at, len, inline, when, crc)| Op::Put { at, len, inline, when, crc }
        ),
        4 => (at(), (0u8..4, 0u64..9000, 0u64..9000), any::<bool>(), any::<bool>(), version())
            .prop_map(|(at, range, inline, checksum, version)| Op::Get {
                at, range, inline, checksum, version
            }),
        1 => (0..NAMESPACES.len(), keys()).prop_map(|(namespace, keys)| Op::Exist(namespace, keys)),
        1 => (0..NAMESPACES.len(), keys()).prop_map(|(namespace, keys)| Op::Prefix(namespace, keys)),
        1 => (at(), version()).prop_map(|(at, version)| Op::Stat(at, version)),
        2 => (at(), 0u8..4, version()).prop_map(|(at, when, version)| Op::Delete { at, when, version }),
        1 => (0..NAMESPACES.len(), 0..KEYS.len(), any::<bool>(), (0u8..3, 0..KEYS.len()), 0u32..5)
            .prop_map(|(namespace, prefix, folded, after, limit)| Op::List {
                namespace, prefix, folded, after, limit
            }),
    ]
}

/// A store like the server's, asked directly.
struct Straight {
    store: MemoryStore,
    /// Versions seen in answers.
    versions: Vec<u64>,
}

/// What the door's answers are compared by: the times differ, and so do words.
#[derive(Debug, PartialEq)]
enum Came {
    Failed(Status),
    Value {
        size: u64,
        first: u64,
        version: u64,
        crc: u64,
        replaced: bool,
        etag: String,
        bytes: Vec<u8>,
    },
    Other(Said),
    Lines(Vec<Said>, bool),
}

fn status(kind: ErrorKind) -> Status {
    match kind {
        ErrorKind::NotFound => Status::NotFound,
        ErrorKind::NoSuchVersion => Status::NoSuchVersion,
        ErrorKind::IsDeleteMarker => Status::IsDeleteMarker,
        ErrorKind::NoSuchNamespace => Status::NoSuchNamespace,
        ErrorKind::PreconditionFailed => Status::PreconditionFailed,
        ErrorKind::RangeNotSatisfiable => Status::RangeNotSatisfiable,
        ErrorKind::QuotaExceeded => Status::QuotaExceeded,
        other => panic!("{other:?} was not foreseen"),
    }
}

fn condition(when: u8) -> (Condition<'static>, forebay_store::Condition) {
    match when {
        0 => (Condition::None, forebay_store::Condition::None),
        1 => (Condition::IfAbsent, forebay_store::Condition::IfAbsent),
        2 => (Condition::IfPresent, forebay_store::Condition::IfPresent),
        _ => {
            let tag = Etag::new("no-such-tag").unwrap();
            let there = forebay_store::Condition::IfMatch(tag);
            (Condition::IfMatch("no-such-tag"), there)
        }
    }
}

fn ranges((kind, first, second): (u8, u64, u64)) -> (Range, ByteRange) {
    match kind {
        0 => (Range::Full, ByteRange::Full),
        1 => (Range::From(first), ByteRange::From(first)),
        2 => (
            Range::Inclusive(first, second),
            ByteRange::Inclusive(first, second),
        ),
        _ => (Range::Suffix(first), ByteRange::Suffix(first)),
    }
}

async fn namespaces(store: &MemoryStore) {
    for (name, versioning, bytes) in [
        ("kept", Versioning::Enabled, None),
        ("small", Versioning::Off, Some(10_000)),
    ] {
        let config = NamespaceConfig {
            tenant: TENANT.to_owned(),
            versioning,
            quota: Quota {
                bytes,
                objects: None,
            },
            ..NamespaceConfig::default()
        };
        store.create_namespace(name, config).await.unwrap();
    }
}

impl Straight {
    async fn new() -> Straight {
        let server = Server::new().await;
        let store = (*server.store).clone();
        namespaces(&store).await;
        // The two stores name their versions alike.
        server.set(FOREIGN, b"a", b"secret").await;
        Straight {
            store,
            versions: vec![0],
        }
    }

    fn version(&self, pick: Option<usize>) -> Option<u64> {
        pick.map(|at| self.versions[at % self.versions.len()])
    }

    /// What the door must come to.
    async fn run(&mut self, op: &Op, payload: &[u8]) -> Came {
        let namespace = match op {
            Op::Put { at, .. } | Op::Get { at, .. } | Op::Stat(at, _) | Op::Delete { at, .. } => {
                at.0
            }
            Op::Exist(namespace, _) | Op::Prefix(namespace, _) | Op::List { namespace, .. } => {
                *namespace
            }
        };
        if NAMESPACES[namespace] == FOREIGN {
            return Came::Failed(Status::NoSuchNamespace);
        }
        match self.try_run(op, payload).await {
            Ok(came) => came,
            Err(error) => Came::Failed(status(error.kind())),
        }
    }

    async fn try_run(&mut self, op: &Op, payload: &[u8]) -> StoreResult<Came> {
        let store = &self.store;
        let place =
            |(namespace, key): (usize, usize)| Address::object(NAMESPACES[namespace], KEYS[key]);
        Ok(match op {
            Op::Put {
                at,
                when,
                crc: wrong,
                ..
            } => {
                let options = StoreOptions {
                    size: Some(payload.len() as u64),
                    condition: condition(*when).1,
                };
                let mut upload = store.store(place(*at), options).await?;
                for piece in payload.chunks(4096) {
                    upload.write(piece.to_vec().into()).await?;
                }
                if *wrong == Some(false) {
                    return Ok(Came::Failed(Status::Corrupt));
                }
                let stored = upload.commit(Seal::default()).await?;
                self.versions.push(stored.meta.version.0);
                Came::Value {
                    size: stored.meta.size,
                    first: 0,
                    version: stored.meta.version.0,
                    crc: stored.meta.crc64nvme,
                    replaced: stored.replaced,
                    etag: stored.meta.etag.as_str().to_owned(),
                    bytes: Vec::new(),
                }
            }
            Op::Get {
                at,
                range,
                inline,
                checksum,
                version,
            } => {
                let version = self.version(*version).map(VersionId);
                let object = store
                    .retrieve(place(*at), version, ranges(*range).1)
                    .await?;
                let (meta, range) = (object.meta, object.range);
                let mut body = object.body;
                let mut bytes = Vec::new();
                while let Some(buf) = forebay_store::Body::next(&mut body).await? {
                    bytes.extend_from_slice(&buf);
                }
                if *inline && bytes.len() > direct::INLINE_BYTES_MAX {
                    return Ok(Came::Failed(Status::TooShort));
                }
                let part = *checksum && range != (0..meta.size);
                Came::Value {
                    size: meta.size,
                    first: range.start,
                    version: meta.version.0,
                    crc: if part { crc(&bytes) } else { meta.crc64nvme },
                    replaced: false,
                    etag: meta.etag.as_str().to_owned(),
                    bytes,
                }
            }
            Op::Exist(namespace, keys) => {
                Came::Other(Said::Sizes(self.sizes(*namespace, keys).await?))
            }
            Op::Prefix(namespace, keys) => {
                let sizes = self.sizes(*namespace, keys).await?;
                let count = sizes.iter().take_while(|size| size.is_some()).count();
                Came::Other(Said::Prefix(count as u64))
            }
            Op::Stat(at, version) => {
                let version = self.version(*version).map(VersionId);
                let meta = store.stat(place(*at), version).await?;
                Came::Value {
                    size: meta.size,
                    first: 0,
                    version: meta.version.0,
                    crc: meta.crc64nvme,
                    replaced: false,
                    etag: meta.etag.as_str().to_owned(),
                    bytes: Vec::new(),
                }
            }
            Op::Delete { at, when, version } => {
                let options = DeleteOptions {
                    version: self.version(*version).map(VersionId),
                    condition: condition(*when).1,
                };
                let deleted = store.delete(place(*at), options).await?;
                if let Some(version) = deleted.version {
                    self.versions.push(version.0);
                }
                Came::Other(Said::Deleted(Deleted {
                    existed: deleted.existed,
                    version: deleted.version.map(|version| version.0),
                    marker: deleted.marker,
                }))
            }
            Op::List {
                namespace,
                prefix,
                folded,
                after,
                limit,
            } => {
                let options = ListOptions {
                    namespace: NAMESPACES[*namespace],
                    space: Space::Objects,
                    prefix: &KEYS[*prefix][..1],
                    delimiter: folded.then_some(b"/"),
                    after: match after {
                        (0, _) => After::Start,
                        (1, key) => After::Key(KEYS[*key]),
                        (_, key) => After::Prefix(KEYS[*key]),
                    },
                    limit: *limit as usize,
                };
                let page = store.list(options).await?;
                let lines = page.items.iter().map(|item| match item {
                    Item::Value(key, meta) => Said::Line(key.to_vec(), meta.size),
                    Item::Prefix(prefix) => Said::Common(prefix.to_vec()),
                });
                Came::Lines(lines.collect(), page.more)
            }
        })
    }

    async fn sizes(&self, namespace: usize, keys: &[usize]) -> StoreResult<Vec<Option<u64>>> {
        let namespace = NAMESPACES[namespace];
        // An empty batch names no namespace, but the door is asked for one.
        self.store.namespace(namespace)?;
        let addresses: Vec<_> = keys
            .iter()
            .map(|key| Address::object(namespace, KEYS[*key]))
            .collect();
        let found = self.store.exist(&addresses).await?;
        Ok(found
            .into_iter()
            .map(|meta| meta.map(|meta| meta.size))
            .collect())
    }
}

/// The same through the door.
async fn ask(
    caller: &Caller,
    memory: &Memory,
    straight: &Straight,
    op: &Op,
    payload: &[u8],
) -> Came {
    let said = match op {
        Op::Put {
            at,
            inline,
            when,
            crc: promise,
            ..
        } => {
            memory.set(0, payload);
            let inline = *inline && payload.len() <= direct::INLINE_BYTES_MAX;
            let body = match inline {
                true => Body::Message(payload),
                false => Body::Window(memory.window(0, payload.len() as u64)),
            };
            caller
                .one(Operation::Store, NAMESPACES[at.0], |writer| {
                    let element = direct::Store {
                        condition: condition(*when).0,
                        crc64nvme: promise.map(|right| crc(payload) ^ u64::from(!right)),
                        ..plain(KEYS[at.1], body)
                    };
                    writer.store(&element).unwrap();
                })
                .await
        }
        Op::Get {
            at,
            range,
            inline,
            checksum,
            version,
        } => {
            memory.set(0, &[0xaa; 1 << 17]);
            let target = match inline {
                true => Target::Message,
                false => Target::Window(memory.window(0, 1 << 17)),
            };
            caller
                .one(Operation::Retrieve, NAMESPACES[at.0], |writer| {
                    let element = Retrieve {
                        key: KEYS[at.1],
                        version: straight.version(*version),
                        range: ranges(*range).0,
                        target,
                        checksum: *checksum,
                    };
                    writer.retrieve(&element).unwrap();
                })
                .await
        }
        Op::Exist(namespace, keys) | Op::Prefix(namespace, keys) => {
            let operation = match op {
                Op::Exist(..) => Operation::Exist,
                _ => Operation::LongestPrefix,
            };
            caller
                .one(operation, NAMESPACES[*namespace], |writer| {
                    keys.iter().for_each(|key| writer.key(KEYS[*key]).unwrap());
                })
                .await
        }
        Op::Stat(at, version) => {
            caller
                .one(Operation::Stat, NAMESPACES[at.0], |writer| {
                    let version = straight.version(*version);
                    writer
                        .stat(&Stat {
                            key: KEYS[at.1],
                            version,
                        })
                        .unwrap();
                })
                .await
        }
        Op::Delete { at, when, version } => {
            caller
                .one(Operation::Delete, NAMESPACES[at.0], |writer| {
                    let element = Delete {
                        key: KEYS[at.1],
                        version: straight.version(*version),
                        condition: condition(*when).0,
                    };
                    writer.delete(&element).unwrap();
                })
                .await
        }
        Op::List {
            namespace,
            prefix,
            folded,
            after,
            limit,
        } => {
            let answer = caller
                .call(Operation::List, NAMESPACES[*namespace], |writer| {
                    let element = List {
                        prefix: &KEYS[*prefix][..1],
                        delimiter: if *folded { b"/" } else { b"" },
                        after: match after {
                            (0, _) => ListAfter::Start,
                            (1, key) => ListAfter::Key(KEYS[*key]),
                            (_, key) => ListAfter::Prefix(KEYS[*key]),
                        },
                        limit: *limit,
                    };
                    writer.list(&element).unwrap();
                })
                .await;
            return match answer.results.as_slice() {
                [Said::Failed(status, ..)] => Came::Failed(*status),
                _ => Came::Lines(answer.results, answer.more),
            };
        }
    };
    match said {
        Said::Failed(status, ..) => Came::Failed(status),
        Said::Value {
            size,
            moved,
            first,
            version,
            crc64nvme,
            part_crc64nvme,
            replaced,
            etag,
            bytes,
        } => {
            let bytes = match (op, bytes) {
                (_, Some(bytes)) => bytes,
                (Op::Get { .. }, None) => {
                    let after = memory.bytes(moved as usize, 16);
                    assert_eq!(after, [0xaa; 16], "bytes after those asked for");
                    memory.bytes(0, moved as usize)
                }
                (_, None) => Vec::new(),
            };
            Came::Value {
                size,
                first,
                version,
                crc: part_crc64nvme.or(crc64nvme).unwrap(),
                replaced,
                etag,
                bytes,
            }
        }
        said => Came::Other(said),
    }
}

async fn compare(way: Way, script: &[Op]) {
    let server = Server::new().await;
    namespaces(&server.store).await;
    server.set(FOREIGN, b"a", b"secret").await;
    let mut straight = Straight::new().await;
    let caller = server.connect(TENANT, way).await;
    let memory = caller.memory((1 << 17) + 16, Access::ReadWrite).await;
    memory.set(1 << 17, &[0xaa; 16]);
    for (number, op) in script.iter().enumerate() {
        let payload = match op {
            Op::Put { len, .. } => noise(number as u64 + 1, *len),
            _ => Vec::new(),
        };
        let came = ask(&caller, &memory, &straight, op, &payload).await;
        let expected = straight.run(op, &payload).await;
        assert_eq!(came, expected, "operation {number}: {op:?}");
    }
    assert_eq!(server.value(FOREIGN, b"a").await, Some(b"secret".to_vec()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_door_and_the_store_agree(script in vec(op(), 1..40), way in prop::sample::select(&WAYS[..])) {
        let runtime = local();
        runtime.block_on(compare(way, &script));
    }
}
