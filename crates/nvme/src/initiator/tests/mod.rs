//! The host against a target in this process that does as it is told, right or wrong.

mod disk;
mod fake;
mod hostile;
mod loss;
mod namespaces;

use std::time::Duration;

use bytes::Bytes;
use forebay_mem::{Buf, Pool};

use super::{Address, BlockNamespace, Controller, KeyValueNamespace, Options, Sink};
use fake::{Fake, Manner, SUBNQN};

fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(10),
        command_timeout: Duration::from_secs(60),
        pause: Duration::from_millis(1),
        pause_max: Duration::from_millis(20),
        keep_alive: Duration::ZERO,
        ..Options::default()
    }
}

fn address(fake: &Fake) -> Address {
    fake.address.to_string().parse().unwrap()
}

async fn connect(fake: &Fake, options: Options) -> Controller {
    Controller::connect(address(fake), SUBNQN, options)
        .await
        .unwrap()
}

async fn blocks(manner: Manner, options: Options) -> (Fake, BlockNamespace) {
    let fake = Fake::start(manner).await;
    let controller = connect(&fake, options).await;
    let namespace = controller.block(1).await.unwrap();
    (fake, namespace)
}

async fn values(manner: Manner, options: Options) -> (Fake, KeyValueNamespace) {
    let fake = Fake::start(manner).await;
    let controller = connect(&fake, options).await;
    let namespace = controller.key_value(2).await.unwrap();
    (fake, namespace)
}

/// Bytes that differ from place to place.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        bytes.extend_from_slice(&(state >> 16).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn source(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn room(len: usize) -> Sink {
    Sink::Bytes(vec![0; len])
}

fn received(sink: Sink) -> Vec<u8> {
    match sink {
        Sink::Bytes(bytes) => bytes,
        Sink::Buf(buf, _) => buf.to_vec(),
        Sink::Bufs(bufs) => bufs.iter().flat_map(|buf| buf.to_vec()).collect(),
        Sink::Region(memory, _) => {
            let mut bytes = vec![0; memory.len()];
            assert!(memory.read(0, &mut bytes));
            bytes
        }
    }
}

async fn buf(pool: &Pool, bytes: &[u8]) -> Buf {
    let mut buf = pool.take(bytes.len()).await;
    buf.set_len(bytes.len());
    buf.copy_from_slice(bytes);
    buf.freeze()
}

/// Polls a future once.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}
