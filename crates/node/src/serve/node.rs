//! A node put together: the stores over its leaf, the doors before them, and what goes on beside both.

use std::convert::Infallible;
use std::sync::Arc;

use forebay_control::rpc::Service;
use forebay_control::{Admin, Identities};
use forebay_fabric::Sessions;
use forebay_mem::Pool;
use forebay_s3::Door;
use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::args::ServeArgs;
use super::cache::metrics::TierMetrics;
use super::cold::ColdSide;
use super::direct::Direct;
use super::ending::Open;
use super::keyring::Keyring;
use super::leaf::Leaf;
use super::listeners::Listeners;
use super::metrics::NodeMetrics;
use super::nvme::Nvme;
use super::nvme::metrics::NvmeMetrics;
use super::shards::{DiskIo, Shards};
use super::stack::{Stack, stack};
use super::tending::Tending;
use super::{UnixClock, admin, cache, console, credentials, exec, limits, live, rpc, s3, socket};
use crate::exit::{Failure, Outcome};

/// What a process serves with.
pub struct Node {
    pub leaf: Leaf,
    pub cold: ColdSide,
    pub store: Arc<Stack>,
    pub shards: Arc<Shards>,
    pub disk_io: DiskIo,
    pub door: Arc<Door<Stack>>,
    direct: Arc<Direct<Stack>>,
    nvme: Arc<Nvme<Stack>>,
    service: Arc<Service<Stack>>,
    admin: Arc<Admin<Stack>>,
    identities: Arc<Identities<Stack>>,
    tending: Arc<Tending>,
    pool: Pool,
    clock: UnixClock,
}

impl Node {
    /// Everything over a leaf, with the doors bound and still closed.
    pub async fn assemble(
        args: &ServeArgs,
        leaf: Leaf,
        pool: Pool,
        clock: UnixClock,
        sessions: Arc<Sessions>,
    ) -> Outcome<(Node, Listeners)> {
        let cold = ColdSide::open(args, &leaf, &pool, &clock).await?;
        let store = stack(&cold.store, args, &pool, &clock).await?;
        let listeners = Listeners::bind(args)?;
        let identities = Arc::new(Identities::open(store.clone(), clock.clone()).await?);
        credentials::prepare(args, &identities, &listeners).await?;
        let keyring = Arc::new(Keyring::default());
        let followed = keyring.clone();
        identities.on_keys_changed(move |keys| followed.replace(keys));
        if let Some(executor) = store.executor() {
            exec::follow(executor, &identities);
        }
        let (shards, disk_io) = Shards::start(
            args.shards.map_or_else(limits::shards, usize::from),
            args.connections,
            !args.no_uring,
        )
        .await
        .map_err(Failure::io("cannot start the shards"))?;
        let shards = Arc::new(shards);
        // What a cache has of the pool is nobody else's.
        let memory_bytes = pool.usage().limit as u64;
        let memory_bytes = memory_bytes.saturating_sub(cache::memory_bytes(&args.before));
        let door = Door::with_direct(
            store.clone(),
            keyring,
            clock.clone(),
            s3::config(args, memory_bytes),
            s3::lenders(args, &listeners, &sessions),
        );
        let config = forebay_direct::Config {
            pool_bytes: usize::try_from(memory_bytes).unwrap_or(usize::MAX),
            ..forebay_direct::Config::default()
        };
        let direct = Arc::new(Direct {
            door: forebay_direct::Door::new(store.clone(), config),
            sessions: sessions.clone(),
        });
        let tending = Arc::new(Tending::new(
            leaf.clone(),
            cold.administered(),
            door.clone(),
            clock.clone(),
            listeners.server(args, &shards, &disk_io),
        ));
        let admin = Admin::new(
            store.clone(),
            identities.clone(),
            tending.clone(),
            sessions.clone(),
        );
        let admin = Arc::new(admin);
        let nvme = Nvme::open(
            args,
            &admin,
            identities.clone(),
            store.clone(),
            pool.clone(),
        )
        .await?;
        let calls = forebay_control::rpc::Config {
            carried: direct.door.shares().clone(),
            ..rpc::config(args, &listeners, &args.dir)
        };
        // Made even when its door stays closed: it ends the sessions of keys that are removed.
        let service = Service::new(
            store.clone(),
            identities.clone(),
            admin.clone(),
            sessions,
            calls,
        );
        let node = Node {
            leaf,
            cold,
            store,
            shards,
            disk_io,
            door,
            direct,
            nvme,
            service,
            admin,
            identities,
            tending,
            pool,
            clock,
        };
        Ok((node, listeners))
    }

    /// Opens the doors that are bound.
    pub fn open(&self, args: &ServeArgs, listeners: &Listeners) -> Outcome<Open> {
        let (stop, stopping) = watch::channel(false);
        let (end, ending) = watch::channel(false);
        let (shards, direct) = (&self.shards, &self.direct);
        let shm = (!args.no_direct).then(|| direct.shm(shards, &stopping));
        let own = socket::bind(&args.dir)?;
        s3::open(listeners, shards, &self.door, &stopping)?;
        direct.open(listeners, shards, &stopping)?;
        self.nvme
            .open_tcp(listeners, &args.dir, shards, &stopping)?;
        self.nvme.open_devices(args, shards, &stopping)?;
        let told_of = live::Doors {
            direct: direct.clone(),
            s3: self.door.clone(),
            rpc: self.service.clone(),
            nvme: self.nvme.clone(),
        };
        let told_of = Arc::new(told_of);
        let requests = socket::open(own, shm, stopping.clone());
        let admin = admin::open(requests, self.admin.clone(), told_of, &stopping);
        let calls = rpc::open(listeners, self.service.clone(), &stopping)?;
        let registry = Arc::new(RwLock::new(self.metrics()));
        console::open(listeners, registry, &stopping, &ending)?;
        Ok(Open {
            stop,
            end,
            admin,
            calls,
        })
    }

    fn metrics(&self) -> Registry {
        let mut registry = Registry::default();
        self.door.metrics().register(&mut registry);
        self.direct.door.metrics().register(&mut registry);
        self.leaf.register(&mut registry);
        self.cold.register(&mut registry);
        if let Some(executor) = self.store.executor() {
            executor.register(&mut registry);
        }
        registry.register_collector(Box::new(TierMetrics(self.store.below().clone())));
        registry.register_collector(Box::new(NodeMetrics {
            store: self.store.clone(),
            pool: self.pool.clone(),
            shards: self.shards.clone(),
            disk_io: self.disk_io.clone(),
            started_s: (self.clock)() / 1000,
        }));
        registry.register_collector(Box::new(NvmeMetrics(self.nvme.clone())));
        self.service.register(&mut registry);
        registry
    }

    /// What goes on beside the requests, for ever.
    pub async fn tend(&self) -> Infallible {
        tokio::select! {
            never = self.tending.tend() => never,
            never = self.identities.follow() => never,
            never = self.direct.expire() => never,
            never = self.nvme.follow() => never,
            never = cache::tend(self.store.below()) => never,
        }
    }
}
