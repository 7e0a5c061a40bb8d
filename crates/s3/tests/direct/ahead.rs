//! A store that reads ahead, as one does that has a device: what tokens hold of its buffers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_mem::{Buf, Pool};
use forebay_s3::Config;
use forebay_store::*;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::rig::*;
use crate::support::{ALPHA, Ask, BETA};

/// Buffers that a body has read before they are asked for.
const AHEAD: usize = 3;

/// Buffers, and the most bytes of them that were ever in use.
#[derive(Clone)]
struct Buffers {
    pool: Pool,
    most: Arc<AtomicUsize>,
}

/// Values of the in-memory store, whose bytes leave in such buffers.
struct ReadingAhead {
    store: MemoryStore,
    buffers: Buffers,
}

struct AheadBody {
    body: MemoryBody,
    buffers: Buffers,
    ahead: VecDeque<Buf>,
}

impl Body for AheadBody {
    async fn next(&mut self) -> Result<Option<Buf>> {
        while self.ahead.len() < AHEAD
            && let Some(bytes) = self.body.next().await?
        {
            let Buffers { pool, most } = &self.buffers;
            let mut buf = pool.take(bytes.len()).await;
            buf.spare()[..bytes.len()].copy_from_slice(&bytes);
            buf.set_len(bytes.len());
            most.fetch_max(pool.usage().in_use, Relaxed);
            self.ahead.push_back(buf.freeze());
        }
        Ok(self.ahead.pop_front())
    }
}

#[warn(clippy::missing_trait_methods)]
impl Store for ReadingAhead {
    type Upload = MemoryUpload;
    type Body = AheadBody;

    fn caps(&self) -> Caps {
        Caps {
            read_ahead: AHEAD,
            ..self.store.caps()
        }
    }

    async fn retrieve(
        &self,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<AheadBody>> {
        let Object { meta, range, body } = self.store.retrieve(address, version, range).await?;
        let body = AheadBody {
            body,
            buffers: self.buffers.clone(),
            ahead: VecDeque::new(),
        };
        Ok(Object { meta, range, body })
    }

    forebay_store::pass_on! {
        store: retrieve_into, exist, stat, store, compose, amend, delete, away, let_go, take_back, forgotten, settle,
        execute, list, list_versions, create_namespace, delete_namespace, update_namespace, namespace, namespaces,
        usage, set_tenant_quota, tenant_quota, changes
    }
}

/// Clients that take nothing keep the buffers of their tokens, but no more than their tenant's part.
#[tokio::test]
async fn o8_tokens_of_a_tenant_hold_no_more_than_its_part_of_the_buffers() {
    const POOL: usize = 64 << 20;
    const LEN: usize = 16 << 20;
    const PEERS: usize = 12;
    // Three that are read ahead, one that is written, and four that its link has yet to send, of half of all.
    const SERVED: usize = POOL / 2 / (8 << 20);
    let config = Config {
        pool_bytes: POOL as u64,
        ..Config::default()
    };
    let buffers = Buffers {
        pool: Pool::new(POOL),
        most: Arc::default(),
    };
    let wrap = |store| ReadingAhead {
        store,
        buffers: buffers.clone(),
    };
    let rig = Rig::over(config, wrap).await;
    let data = pattern(LEN);
    rig.server.put("/bucket/key", &data).await;
    rig.server.ask(BETA, Ask::new("PUT", "/betas")).await;
    let betas = Ask::new("PUT", "/betas/key").body(&data);
    assert_eq!(rig.server.ask(BETA, betas).await.status, 200);
    let beta = rig.peer_with(BETA, Way::Iwarp, LEN).await;
    let network = Network::new();
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        peers.push(rig.peer_behind_with(ALPHA, &network, LEN).await);
    }
    // All of the object, or its first byte: it is read ahead all the same.
    for (len, status) in [(LEN as u64, 200), (1, 206)] {
        network.keep(true);
        let get = |peer: &Peer| {
            let ask = Ask::new("GET", "/bucket/key");
            let token = peer.token(&ask, rig.server.now_ms(), 0, len);
            rig.server.ask(ALPHA, peer.carry(ask, &token))
        };
        let mut gets: FuturesUnordered<_> = peers.iter().map(get).collect();
        for _ in SERVED..PEERS {
            refused(&gets.next().await.unwrap(), 503, "SlowDown");
        }
        assert!(buffers.most.load(Relaxed) <= POOL / 2);
        // Who has taken nothing yet is served beside them.
        let answer = rig.get(&beta, "/betas/key", 0, LEN as u64).await;
        served(&answer, 200, LEN as u64);
        network.keep(false);
        while let Some(answer) = gets.next().await {
            served(&answer, status, len);
        }
        let held = buffers.most.swap(0, Relaxed);
        assert!(((SERVED * AHEAD) << 20..=POOL / 2 + (8 << 20)).contains(&held));
    }
    assert!(
        peers
            .iter()
            .filter(|peer| peer.bytes(0, LEN) == data)
            .count()
            >= SERVED
    );
    drop((peers, beta));
    rig.finish().await;
    assert_eq!(buffers.pool.usage().in_use, 0);
}
