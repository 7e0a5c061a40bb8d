//! What host and target say to each other.

use bytes::Bytes;
use forebay_mem::{Pool, Region};
use forebay_nvme::initiator::{
    Address, Controller, Error, HostIdentity, NamespaceContent, Options, Secret, Sink,
    StoreOptions, discover,
};
use forebay_nvme::target::Host;
use forebay_proto::nvme::{Status, auth};

use super::support::{BLOCK, KV, Kept, NQN, Running, TENANT, options, pattern, place, simulated};

const BYTES: u64 = 32 << 20;

fn ways() -> Vec<Options> {
    [(false, false), (true, false), (false, true), (true, true)]
        .map(|(header_digest, data_digest)| Options {
            header_digest,
            data_digest,
            ..options()
        })
        .into()
}

#[tokio::test]
async fn namespaces_are_discovered_and_described() {
    let kept = std::thread::spawn(|| Kept::new(simulated(BYTES).1))
        .join()
        .unwrap();
    let target = Running::start(&kept, None);
    let found = discover(place(target.address), options()).await.unwrap();
    let subsystem = found.iter().find(|one| one.subnqn == NQN).unwrap();
    assert_eq!(Address::of(subsystem), Some(place(target.address)));
    let controller = target.connect(options()).await;
    assert_eq!(controller.namespaces().await.unwrap(), [KV, BLOCK]);
    let block = controller.namespace(BLOCK).await.unwrap();
    assert_eq!(block.uuid, Some([2; 16]));
    let NamespaceContent::Block(block) = block.kind else {
        panic!("{block:?}");
    };
    assert_eq!((block.block_bytes, block.blocks), (4096, BYTES / 4096));
    let values = controller.namespace(KV).await.unwrap();
    let NamespaceContent::KeyValue(values) = values.kind else {
        panic!("{values:?}");
    };
    assert!(values.vendor.extended_keys && values.vendor.ttl);
    assert_eq!(values.value_bytes_max, 64 << 20);
    controller.close().await;
    target.kill();
}

#[tokio::test]
async fn blocks_come_back_as_they_were_written() {
    let kept = std::thread::spawn(|| Kept::new(simulated(BYTES).1))
        .join()
        .unwrap();
    let target = Running::start(&kept, None);
    for options in ways() {
        let controller = target.connect(options).await;
        let blocks = controller.block(BLOCK).await.unwrap();
        let pool = Pool::new(8 << 20);
        for (turn, count) in [1usize, 2, 3, 33, 512].into_iter().enumerate() {
            let bytes = pattern(count * 4096, turn as u64);
            let first = turn as u64 * 1024;
            let source = Bytes::from(bytes.clone());
            blocks.write(first, source, turn == 1).await.unwrap();
            let region = Region::anonymous(bytes.len()).unwrap();
            let memory = region.slice(0..bytes.len()).unwrap();
            let (done, _) = blocks.read(first, Sink::from(memory.clone())).await;
            done.unwrap();
            let mut seen = vec![0; bytes.len()];
            assert!(memory.read(0, &mut seen) && seen == bytes);
            if bytes.len() <= 1 << 20 {
                let buf = pool.take(bytes.len()).await;
                let (done, sink) = blocks.read(first, Sink::Buf(buf, bytes.len())).await;
                done.unwrap();
                assert!(matches!(sink, Sink::Buf(buf, _) if buf[..] == bytes[..]));
            }
            assert!(blocks.compare(first, memory.clone()).await.unwrap());
            blocks.write_zeroes(first, 1, false).await.unwrap();
            assert!(!blocks.compare(first, memory).await.unwrap());
        }
        blocks.flush().await.unwrap();
        blocks.deallocate(&[(0, 4), (1024, 2)]).await.unwrap();
        let past = blocks.read(BYTES / 4096, Sink::Bytes(vec![0; 4096])).await;
        assert!(matches!(past.0, Err(Error::Invalid(_))));
        controller.close().await;
    }
    target.kill();
}

#[tokio::test]
async fn values_come_back_as_they_were_stored() {
    let kept = std::thread::spawn(|| Kept::new(simulated(4096).1))
        .join()
        .unwrap();
    let target = Running::start(&kept, None);
    for options in ways() {
        let controller = target.connect(options).await;
        let values = controller.key_value(KV).await.unwrap();
        for len in [0usize, 1, 4096, 8193, 1 << 20, 5_000_001] {
            let value = pattern(len, len as u64);
            for key in [&b"k"[..], b"\0 of 16 bytes /..", &[0xff; 17], &[b'x'; 255]] {
                let source = Bytes::from(value.clone());
                values
                    .store(key, source, StoreOptions::default())
                    .await
                    .unwrap();
                let region = Region::anonymous(len + 4096).unwrap();
                let memory = region.slice(0..len + 4096).unwrap();
                let found = values
                    .retrieve(key, Sink::from(memory.clone()))
                    .await
                    .unwrap();
                assert_eq!(
                    (found.value_bytes, found.received),
                    (len as u64, len as u64)
                );
                let mut seen = vec![0; len];
                assert!(memory.read(0, &mut seen) && seen == value);
                let half = Sink::Bytes(vec![0; (len / 2).max(1)]);
                let found = values.retrieve(key, half).await.unwrap();
                assert_eq!(found.value_bytes, len as u64);
                let tail = Sink::Bytes(vec![0; 100]);
                let from = len.saturating_sub(50);
                let found = values.retrieve_range(key, from as u64, tail).await.unwrap();
                assert!(matches!(found.into, Sink::Bytes(bytes) if bytes == value[from..]));
            }
        }
        let mut told = Vec::new();
        loop {
            let page = values.list(told.last().map(Vec::as_slice)).await.unwrap();
            if page.is_empty() {
                break;
            }
            told.extend(page);
        }
        assert_eq!(told.len(), 4);
        for key in told {
            assert!(values.exist(&key).await.unwrap());
            values.delete(&key).await.unwrap();
            assert!(values.delete(&key).await.unwrap_err().is_absent());
            assert!(!values.exist(&key).await.unwrap());
        }
        let expiring = StoreOptions {
            ttl_s: Some(1000),
            if_absent: true,
            ..StoreOptions::default()
        };
        values
            .store(b"t", Bytes::from_static(b"1"), expiring)
            .await
            .unwrap();
        let again = values.store(b"t", Bytes::from_static(b"1"), expiring).await;
        assert!(matches!(again, Err(Error::Status(_))), "{again:?}");
        values.delete(b"t").await.unwrap();
        controller.close().await;
    }
    target.kill();
}

const HOST_SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER_SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

fn with_secrets(host: &HostIdentity) -> Host {
    Host {
        nqn: host.nqn.clone(),
        tenant: TENANT.to_owned(),
        secret: Some(auth::Secret::parse(HOST_SECRET).unwrap()),
        tls_key: None,
        subsystem_secret: Some(auth::Secret::parse(OTHER_SECRET).unwrap()),
    }
}

/// It is not told that it succeeded, nor that its secret is wrong, but that it may try again.
#[tokio::test]
async fn a_host_that_proves_itself_and_has_all_that_it_may_have_is_told_so() {
    let host = options().host;
    let mut kept = std::thread::spawn(|| Kept::new(simulated(4096).1))
        .join()
        .unwrap();
    kept.hosts = vec![with_secrets(&host)];
    kept.controllers_max = 16;
    let target = Running::start(&kept, None);
    let options = Options {
        secret: Some(Secret(HOST_SECRET.to_owned())),
        ..options()
    };
    let connect = || Controller::connect(place(target.address), NQN, options.clone());
    // Each has two connections, and the host a quarter of sixteen.
    let admitted = [connect().await.unwrap(), connect().await.unwrap()];
    match connect().await {
        Err(Error::Status(status)) => {
            assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
        }
        other => panic!("{other:?}"),
    }
    for controller in admitted {
        controller.close().await;
    }
    target.kill();
}

#[tokio::test]
async fn hosts_and_controllers_prove_who_they_are() {
    let host = HostIdentity {
        nqn: "nqn.2026-01.org.example:host".to_owned(),
        id: [3; 16],
    };
    let (ours, theirs) = (HOST_SECRET, OTHER_SECRET);
    let mut kept = std::thread::spawn(|| Kept::new(simulated(4096).1))
        .join()
        .unwrap();
    kept.hosts = vec![with_secrets(&host)];
    let target = Running::start(&kept, None);
    let connect = |host: &HostIdentity, secret: Option<&str>, controller: Option<&str>| {
        let options = Options {
            host: host.clone(),
            secret: secret.map(|secret| Secret(secret.to_owned())),
            controller_secret: controller.map(|secret| Secret(secret.to_owned())),
            queues: 2,
            ..options()
        };
        Controller::connect(place(target.address), NQN, options)
    };
    for controller in [None, Some(theirs)] {
        let admitted = connect(&host, Some(ours), controller).await.unwrap();
        assert_eq!(admitted.namespaces().await.unwrap(), [KV, BLOCK]);
        let values = admitted.key_value(KV).await.unwrap();
        assert!(!values.exist(b"nothing").await.unwrap());
        admitted.close().await;
    }
    let stranger = HostIdentity {
        nqn: "nqn.2026-01.org.example:stranger".to_owned(),
        id: [4; 16],
    };
    for (who, secret, controller) in [
        (&host, Some(theirs), None),
        (&host, None, None),
        (&host, Some(ours), Some(ours)),
        (&host, None, Some(theirs)),
        (&stranger, Some(ours), None),
    ] {
        let refused = connect(who, secret, controller).await;
        assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
    }
    target.kill();
}
