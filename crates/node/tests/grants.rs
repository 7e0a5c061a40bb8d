//! `forebay admin grant` on the binary: what clients lend is shown to whom it belongs, and taken back.

mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_api::REASON_METADATA;
use forebay_api::v1::objects_client::ObjectsClient;
use forebay_api::v1::place::Memory;
use forebay_api::v1::sessions_client::SessionsClient;
use forebay_api::v1::{self, Access as Wire};
use forebay_client::Credentials;
use forebay_fabric::sessions::proof;
use forebay_fabric::{Access, CloseReason, Connection, Fabric, Link, SessionId, Stag, iwarp, shm};
use forebay_mem::{Region, RegionSlice};
use forebay_proto::bearer;
use forebay_proto::token::ort1::{Covered, Direction, Flags, OpenToken, Segments, Transport};
use harness::s3::{self, Answer, ask_with_token};
use harness::{Place, Ran, Server, bytes};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Request, Status};

const OBJECT: &str = "/frames/k";
const OBJECT_BYTES: usize = 50_000;
const NOBODYS: &str = "0f3c5a7e9b1d2f4c6a8e0b2d4f6a8c1e";

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

fn ready() -> (Place, Server, Tenant, Tenant) {
    let place = Place::new();
    let server = place.serve(&[]);
    let vision = Tenant::new(&server, "vision");
    let blue = Tenant::new(&server, "blue");
    let namespace = ["admin", "namespace", "create", "frames"];
    server.ok(&[&namespace[..], &["--tenant", "vision"]].concat());
    (place, server, vision, blue)
}

/// Someone with an access key, and nothing else.
struct Tenant(Credentials);

impl Tenant {
    fn new(server: &Server, name: &str) -> Tenant {
        server.ok(&["admin", "tenant", "create", name]);
        let key = &server.json(&["admin", "key", "create", name])[0];
        let text = |name: &str| key[name].as_str().unwrap().to_owned();
        Tenant(Credentials {
            access_key: text("access_key"),
            secret_key: text("secret_key"),
        })
    }

    /// A command of `admin grant`, over gRPC.
    fn run(&self, server: &Server, arguments: &[&str]) -> Ran {
        let output = harness::forebay()
            .args(["admin", "grant"])
            .args(arguments)
            .args(["--endpoint", &server.rpc()])
            .env("FOREBAY_ACCESS_KEY", &self.0.access_key)
            .env("FOREBAY_SECRET_KEY", &self.0.secret_key)
            .output();
        Ran::new(output.unwrap())
    }

    fn request<T>(&self, asked: T) -> Request<T> {
        let token = bearer::make(&self.0.access_key, &self.0.secret_key, now_s() + 600);
        let mut request = Request::new(asked);
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
        request
    }
}

/// A session with a link, a region, and grants for it.
struct Lender<'a> {
    server: &'a Server,
    tenant: &'a Tenant,
    sessions: SessionsClient<Channel>,
    objects: ObjectsClient<Channel>,
    opened: v1::OpenSessionResponse,
    link: Connection,
    memory: RegionSlice,
    stag: Stag,
    region: u64,
    sequence: AtomicU64,
}

impl Lender<'_> {
    async fn open<'a>(server: &'a Server, tenant: &'a Tenant, fabric: Fabric) -> Lender<'a> {
        let channel = Channel::from_shared(server.rpc()).unwrap();
        let channel = channel.connect().await.unwrap();
        let mut sessions = SessionsClient::new(channel.clone());
        let asked = v1::OpenSessionRequest { lease_ms: 600_000 };
        let opened = sessions.open(tenant.request(asked)).await.unwrap();
        let opened = opened.into_inner();
        let id = SessionId(opened.session.as_ref().try_into().unwrap());
        let proof = proof(id, opened.key.as_ref().try_into().unwrap());
        let link = match fabric {
            Fabric::Shm => {
                let stream = UnixStream::connect(&server.doors["shm"]).await.unwrap();
                Connection::Shm(Arc::new(shm::connect(stream, &proof).await.unwrap()))
            }
            Fabric::Iwarp => {
                let stream = TcpStream::connect(&server.doors["direct"]).await.unwrap();
                let link = iwarp::connect(stream, &proof, iwarp::Options::default()).await;
                Connection::Iwarp(Arc::new(link.unwrap()))
            }
        };
        let memory = Region::memfd(OBJECT_BYTES).unwrap();
        let memory = memory.slice(0..OBJECT_BYTES).unwrap();
        let exposed = link.expose(memory.clone(), Access::ReadWrite).await;
        let exposed = exposed.unwrap();
        let asked = v1::RegisterRegionRequest {
            session: opened.session.clone(),
            stag: exposed.stag.0,
            base: exposed.base,
            length: exposed.len,
            access: Wire::ReadWrite.into(),
            ..Default::default()
        };
        let region = sessions.register_region(tenant.request(asked)).await;
        Lender {
            server,
            tenant,
            sessions,
            objects: ObjectsClient::new(channel),
            opened,
            link,
            memory,
            stag: exposed.stag,
            region: region.unwrap().into_inner().region,
            sequence: AtomicU64::new(0),
        }
    }

    async fn grant(&mut self) -> v1::GrantResponse {
        let asked = v1::GrantRequest {
            session: self.opened.session.clone(),
            region: self.region,
            offset: 100,
            length: 40_000,
            access: Wire::Write.into(),
            lifetime_ms: 600_000,
        };
        let granted = self.sessions.grant(self.tenant.request(asked)).await;
        granted.unwrap().into_inner()
    }

    /// What comes of an object call that names memory: why it was refused.
    async fn retrieve(&mut self, memory: Memory) -> Result<u64, String> {
        let session = match &memory {
            Memory::Region(_) => self.opened.session.clone(),
            Memory::Grant(_) => Default::default(),
        };
        let asked = v1::RetrieveRequest {
            namespace: "frames".to_owned(),
            key: "k".into(),
            session,
            place: Some(v1::Place {
                memory: Some(memory),
                offset: 0,
                length: 30_000,
            }),
            range: Some(v1::Range {
                offset: 0,
                length: 30_000,
            }),
            ..Default::default()
        };
        let answer = self.objects.retrieve(self.tenant.request(asked)).await;
        let why = |status: Status| {
            let reason = status.metadata().get(REASON_METADATA).unwrap();
            format!("{}: {}", reason.to_str().unwrap(), status.message())
        };
        Ok(answer.map_err(why)?.into_inner().length)
    }

    /// A GET by S3 with a token for the memory.
    fn get(&self) -> Answer {
        let token = OpenToken {
            transport: match self.link.fabric() {
                Fabric::Shm => Transport::Shm,
                Fabric::Iwarp => Transport::Iwarp,
            },
            direction: Direction::Write,
            flags: Flags::OFFSET,
            session: self.opened.session.as_ref().try_into().unwrap(),
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            expiry_s: u32::try_from(now_s() + 60).unwrap(),
            lease_ms: 5000,
            address: 0,
            length: OBJECT_BYTES as u64,
            remote_key: self.stag.0,
            dc: None,
            segments: Segments::default(),
            promise: None,
            memory: None,
            rail: None,
            slot: None,
        };
        let covered = Covered {
            method: "GET",
            path: OBJECT,
            query: "",
            range: "",
        };
        let key = self.opened.key.as_ref().try_into().unwrap();
        let token = token.seal(key, &covered).unwrap();
        ask_with_token(self.server, &self.tenant.0, "GET", OBJECT, &token)
    }

    fn holds(&self, value: &[u8]) -> bool {
        let mut read = vec![0; OBJECT_BYTES];
        assert!(self.memory.read(0, &mut read));
        assert!(self.memory.write(0, &[0; OBJECT_BYTES]));
        read == value
    }

    fn id(&self) -> String {
        hex(&self.opened.session)
    }

    fn numbered(&self, number: u64) -> String {
        format!("{}-{number}", self.id())
    }
}

fn hex(bytes: &[u8]) -> String {
    forebay_proto::hex::encode(bytes)
}

/// An error of S3 but for what names the request.
fn code(answer: &Answer) -> (u16, String) {
    let text = answer.text();
    let (_, code) = text.split_once("<Code>").unwrap_or_default();
    (answer.status, code.split('<').next().unwrap().to_owned())
}

/// Why a link has ended, which it does soon.
async fn ended(link: &Connection) -> CloseReason {
    let closed = timeout(Duration::from_secs(30), link.closed()).await;
    closed.expect("the link ends")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lent_is_shown_and_taken_back() {
    let (_place, server, vision, blue) = ready();
    let value = bytes(3, OBJECT_BYTES);
    let put = s3::ask(&server, &vision.0, "PUT", OBJECT, &value);
    assert_eq!(put.status, 200);
    for (fabric, here) in [(Fabric::Shm, true), (Fabric::Iwarp, false)] {
        let mut lender = Lender::open(&server, &vision, fabric).await;
        let granted = lender.grant().await;
        let (session, region) = (lender.id(), lender.numbered(lender.region));
        let grant = lender.numbered(granted.id);

        // Who administers the server sees all of it.
        let listed = server.ok(&["admin", "grant", "list", "--json"]);
        let lines: Vec<serde_json::Value> = listed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let ids: Vec<&str> = lines
            .iter()
            .map(|line| line["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, [&session, &region, &grant], "{listed}");
        for (line, kind) in lines.iter().zip(["session", "region", "grant"]) {
            assert_eq!(line["kind"], kind);
            assert_eq!(line["tenant"], "vision");
            assert_eq!(line["access_key"], vision.0.access_key.as_str());
            assert_eq!(line["fabrics"], serde_json::json!([fabric.name()]));
            let since = line["since"].as_u64().unwrap() / 1000;
            assert!((now_s() - 60..=now_s()).contains(&since), "{listed}");
        }
        assert_eq!(lines[2]["until"], granted.expires_ms);
        assert!(lines[1]["until"].is_null() && lines[0]["until"].as_u64().is_some());
        assert!(lines[0]["memory"].is_null());
        let memory = serde_json::json!({
            "region": lender.region, "offset": 100, "length": 40_000, "access": "write",
        });
        assert_eq!(lines[2]["memory"], memory);
        for told in [&listed, &server.ok(&["admin", "grant", "list"])] {
            assert!(told.contains(&grant) && told.contains("vision"), "{told}");
            for secret in [&lender.opened.key, &granted.grant] {
                assert!(!told.contains(&hex(secret)), "{told}");
            }
        }
        // So does whom it belongs to, from anywhere, and nobody else.
        let own = vision.run(&server, &["list", "--json"]).expect(0);
        assert_eq!(own.out, listed);
        let of_vision = ["admin", "grant", "list", "--tenant", "vision", "--json"];
        assert_eq!(server.ok(&of_vision), listed);
        assert_eq!(blue.run(&server, &["list", "--json"]).expect(0).out, "");
        let of = |name| blue.run(&server, &["list", "--tenant", name]).expect(3).err;
        assert_eq!(of("vision").replace("vision", "nobody"), of("nobody"));

        // Another's is as one that is not there, for whatever is not one's own.
        for (id, unknown) in [
            (&session, NOBODYS.to_owned()),
            (&region, format!("{NOBODYS}-2")),
            (&grant, lender.numbered(999)),
        ] {
            let refused = |id: &str| blue.run(&server, &["rm", id]).expect(3).err;
            let words = refused(id);
            assert_eq!(words.replace(id, &unknown), refused(&unknown));
            assert_eq!(words.lines().count(), 1, "{words}");
            let here = server
                .run(&["admin", "grant", "rm", &unknown])
                .expect(3)
                .err;
            assert_eq!(here, refused(&unknown));
        }
        let all = blue.run(&server, &["rm", "--tenant", "vision"]).expect(3);
        assert!(all.err.contains("there is no tenant"), "{}", all.err);

        // All of that changed nothing; and an id is no grant and no token.
        let by_grant = Memory::Grant(granted.grant.clone());
        assert_eq!(lender.retrieve(by_grant.clone()).await, Ok(30_000));
        assert_eq!(lender.get().status, 200);
        assert!(lender.holds(&value));
        for id in [&session, &region, &grant] {
            let used = lender.retrieve(Memory::Grant(id.clone().into())).await;
            assert!(used.unwrap_err().starts_with("REASON_NO_SUCH_GRANT"));
            let used = ask_with_token(&server, &vision.0, "GET", OBJECT, id);
            assert_eq!(used.status, 501);
        }

        // A grant that is taken back is as one that its session revoked.
        let revoked = lender.grant().await;
        let revoke = v1::RevokeRequest {
            session: lender.opened.session.clone(),
            id: revoked.id,
        };
        let revoke = vision.request(revoke);
        lender.sessions.revoke(revoke).await.unwrap();
        let remove = |id: &str| match here {
            true => server.run(&["admin", "grant", "rm", id]),
            false => vision.run(&server, &["rm", id]),
        };
        assert_eq!(remove(&grant).expect(0).out, format!("removed {grant}\n"));
        let refused = lender.retrieve(by_grant).await.unwrap_err();
        let by_revoked = lender.retrieve(Memory::Grant(revoked.grant)).await;
        assert_eq!(refused, by_revoked.unwrap_err());
        remove(&grant).expect(3);

        // A region takes its grants along.
        let granted = lender.grant().await;
        let by_region = Memory::Region(lender.region);
        assert_eq!(lender.retrieve(by_region.clone()).await, Ok(30_000));
        remove(&region).expect(0);
        let refused = lender.retrieve(by_region).await.unwrap_err();
        assert!(refused.starts_with("REASON_NO_SUCH_REGION"), "{refused}");
        let by_grant = Memory::Grant(granted.grant);
        assert!(lender.retrieve(by_grant).await.is_err());
        // Tokens name what the client exposes, and are good as long as the session.
        assert_eq!(lender.get().status, 200);
        assert!(lender.holds(&value));

        // A session that is taken back is as one that its client closed.
        remove(&session).expect(0);
        assert_eq!(ended(&lender.link).await, CloseReason::SessionEnded);
        let mut closed = Lender::open(&server, &vision, fabric).await;
        assert_eq!(closed.get().status, 200);
        let close = vision.request(v1::CloseSessionRequest {
            session: closed.opened.session.clone(),
        });
        closed.sessions.close(close).await.unwrap();
        assert_eq!(code(&lender.get()), code(&closed.get()));
        assert_eq!(code(&lender.get()), (403, "AccessDenied".to_owned()));
        assert!(lender.holds(&[0; OBJECT_BYTES]));
        remove(&session).expect(3);
        assert_eq!(server.ok(&["admin", "grant", "list", "--json"]), "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_are_taken_back_at_once() {
    let (_place, server, vision, blue) = ready();
    let mut first = Lender::open(&server, &vision, Fabric::Shm).await;
    let second = Lender::open(&server, &vision, Fabric::Iwarp).await;
    let other = Lender::open(&server, &blue, Fabric::Shm).await;
    let grants = [first.grant().await.id, first.grant().await.id].map(|id| first.numbered(id));
    // What is not there keeps nothing else, and is said in one line.
    let ids = [&grants[0], NOBODYS, &grants[1], NOBODYS];
    let ran = vision.run(&server, &[&["rm", "--json"][..], &ids].concat());
    let ran = ran.expect(3);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.contains(NOBODYS), "{}", ran.err);
    let removed: Vec<serde_json::Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let expected = grants.map(|id| serde_json::json!({"id": id, "removed": true}));
    assert_eq!(removed, expected);

    let removed = server.run(&["admin", "grant", "rm", "--tenant", "vision", "--json"]);
    assert_eq!(removed.expect(0).out, "{\"sessions\":2}\n");
    for lender in [&first, &second] {
        assert_eq!(ended(&lender.link).await, CloseReason::SessionEnded);
    }
    let left = server.json(&["admin", "grant", "list"]);
    let kinds: Vec<&str> = left
        .iter()
        .map(|line| line["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["session", "region"]);
    assert_eq!(left[0]["id"], other.id().as_str());
    for wrong in [
        &["rm"][..],
        &["rm", "nonsense"],
        &["rm", NOBODYS, "--tenant", "vision"],
        // One id has one spelling, and none leads elsewhere.
        &["rm", "0F3C5A7E9B1D2F4C6A8E0B2D4F6A8C1E"],
        &["rm", "0f3c5a7e9b1d2f4c6a8e0b2d4f6a8c1e-07"],
        &["rm", "../keys/x"],
    ] {
        vision.run(&server, wrong).expect(2);
    }
}
