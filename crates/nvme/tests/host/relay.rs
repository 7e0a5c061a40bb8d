//! A relay between host and target that cuts connections, under load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bytes::Bytes;
use forebay_nvme::initiator::{Controller, Options, Sink, StoreOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::support::{BLOCK, KV, Kept, NQN, Running, options, pattern, place, simulated};

/// Passes bytes on until its value changes.
async fn relay(to: SocketAddr, cut: watch::Receiver<u64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (near, _) = listener.accept().await.unwrap();
            let mut cut = cut.clone();
            let now = *cut.borrow();
            tokio::spawn(async move {
                let Ok(far) = TcpStream::connect(to).await else {
                    return;
                };
                let (mut near_in, mut near_out) = near.into_split();
                let (mut far_in, mut far_out) = far.into_split();
                tokio::select! {
                    _ = copy(&mut near_in, &mut far_out) => {}
                    _ = copy(&mut far_in, &mut near_out) => {}
                    _ = cut.wait_for(|value| *value != now) => {}
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_mixed_up_when_connections_are_cut_under_load() {
    let kept = std::thread::spawn(|| Kept::new(simulated(64 << 20).1))
        .join()
        .unwrap();
    let target = Running::start(&kept, None);
    let (cut, cuts) = watch::channel(0);
    let through = relay(target.address, cuts).await;
    for data_digest in [false, true] {
        let options = Options {
            queues: 2,
            data_digest,
            patience: None,
            ..options()
        };
        let controller = Controller::connect(place(through), NQN, options)
            .await
            .unwrap();
        let blocks = controller.block(BLOCK).await.unwrap();
        let values = controller.key_value(KV).await.unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for task in 0..8u64 {
            let (blocks, values, over) = (blocks.clone(), values.clone(), over.clone());
            tasks.spawn(async move {
                let mut turn = 0;
                while !over.load(SeqCst) || turn < 10 {
                    turn += 1;
                    let len = 4096 * (1 + (turn * 7 + task as usize) % 64);
                    let bytes = pattern(len, task << 32 | turn as u64);
                    let source = Bytes::from(bytes.clone());
                    if task % 2 == 0 {
                        let first = task * 64;
                        blocks.write(first, source, false).await.unwrap();
                        let (done, sink) = blocks.read(first, Sink::Bytes(vec![0; len])).await;
                        done.unwrap();
                        assert!(matches!(sink, Sink::Bytes(seen) if seen == bytes));
                    } else {
                        let key = task.to_le_bytes();
                        values
                            .store(&key, source, StoreOptions::default())
                            .await
                            .unwrap();
                        let found = values.retrieve(&key, Sink::Bytes(vec![0; len])).await;
                        let found = found.unwrap();
                        assert_eq!(found.value_bytes, len as u64);
                        assert!(matches!(found.into, Sink::Bytes(seen) if seen == bytes));
                    }
                }
            });
        }
        for _ in 0..8 {
            controller.connected().await.unwrap();
            for _ in 0..20 {
                blocks.flush().await.unwrap();
            }
            cut.send_modify(|value| *value += 1);
        }
        over.store(true, SeqCst);
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        controller.close().await;
    }
    target.kill();
}

#[tokio::test]
async fn a_relay_that_swallows_everything_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut sink = [0; 4096];
        while stream.read(&mut sink).await.unwrap_or(0) > 0 {}
        let _ = stream.shutdown().await;
    });
    let impatient = Options {
        connect_timeout: std::time::Duration::from_millis(200),
        ..options()
    };
    assert!(
        Controller::connect(place(address), NQN, impatient)
            .await
            .is_err()
    );
}
