//! Passes over namespaces: what their rules send away, and what else is done from time to time.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use forebay_store::{
    Address, After, ErrorKind, ListOptions, Meta, NamespaceInfo, Result, Space, Store, VersionId,
    VersionItem,
};
use futures_util::{StreamExt, TryStreamExt};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::bucket::COPY_BYTES_MAX;
use super::counters::add;
use super::mover::Mover;
use super::reads::{Reads, spot};
use super::rules::Rules;
use super::sweep::Swept;

/// Values on their way out at the same time; each holds one part in memory.
const MOVES_MAX: usize = 4;
/// Copies that are deleted, or marked, at the same time.
pub(super) const DELETES_MAX: usize = 8;
/// How soon a copy goes after its value.
const TIDY: Duration = Duration::from_secs(5);
/// How often rules are applied.
pub(super) const PASS: Duration = Duration::from_secs(600);
/// How often the bucket is compared with the store: once what a sweep has marked, at its end too, is a day old.
const SWEEP: Duration = Duration::from_secs(25 * 3600);

/// What a pass over a namespace came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed {
    /// When it ended, in milliseconds since 1970.
    pub at: u64,
    /// Values whose bytes went.
    pub moved: u64,
    /// Those bytes.
    pub moved_bytes: u64,
    /// Values that the rules take, or any where there are no rules, and whose bytes are cold, with those.
    pub cold: u64,
    /// Their bytes.
    pub cold_bytes: u64,
    /// Values that should have gone, but did not; the next pass tries again.
    pub failed: u64,
    /// Whether it was given up: the far side could not be reached, or it became another process's turn.
    pub gave_up: bool,
}

/// What is done from time to time in a pass: reads are shared and kept, and the turn is kept.
struct Between {
    ticks: Interval,
    /// Whether it goes on only as long as it is this process's turn.
    in_turn: bool,
}

/// Some versions of values of a namespace.
pub(super) struct Values {
    pub values: Vec<(Bytes, Meta)>,
    /// After which more follow.
    pub last: Option<(Bytes, VersionId)>,
    /// Whether there may be others between them.
    pub passed_over: bool,
}

impl<S: Store> Mover<S> {
    /// Every version of every value of a namespace, a page at a time.
    pub(super) async fn page(
        &self,
        namespace: &str,
        prefix: &[u8],
        last: &Option<(Bytes, VersionId)>,
    ) -> Result<Values> {
        let options = ListOptions {
            prefix,
            after: After::last(last),
            ..ListOptions::of(namespace, Space::Objects)
        };
        let page = self.hot.list_versions(options).await?;
        let last = page.last();
        let values = page.items.into_iter().filter_map(|item| match item {
            VersionItem::Value { key, meta, .. } => Some((key, meta)),
            VersionItem::Marker { .. } | VersionItem::Prefix(_) => None,
        });
        Ok(Values {
            values: values.collect(),
            last,
            passed_over: !page.passed_over.is_empty(),
        })
    }

    /// Applies the rules of one namespace now, whoever's turn it is. Without any nothing moves, and what is cold is counted.
    ///
    /// # Errors
    /// Of the store; what the bucket refuses is counted.
    pub async fn run(&self, namespace: &str) -> Result<Passed> {
        self.share_reads().await;
        self.apply(namespace, false).await
    }

    /// `in_turn`: as long as it is this process's turn.
    async fn apply(&self, namespace: &str, in_turn: bool) -> Result<Passed> {
        let mut between = Between {
            ticks: every(PASS, PASS),
            in_turn,
        };
        let info = self.hot.namespace(namespace)?;
        let mut passed = Passed::default();
        let rules = Rules::of(&info);
        self.begin_reads(&rules);
        let prefixes = match rules.is_empty() {
            true => vec![""],
            false => rules.prefixes(),
        };
        for prefix in prefixes {
            let mut last = None;
            while !passed.gave_up {
                let page = self.page(namespace, prefix.as_bytes(), &last).await?;
                self.move_some(&info, &rules, page.values, &mut passed, &mut between)
                    .await;
                last = page.last;
                if last.is_none() {
                    break;
                }
            }
        }
        passed.at = self.now();
        self.passed.lock().insert(info.id, passed);
        Ok(passed)
    }

    /// What the last pass over a namespace came to, if there was one since the process began.
    pub fn passed(&self, namespace: &NamespaceInfo) -> Option<Passed> {
        self.passed.lock().get(&namespace.id).copied()
    }

    async fn move_some(
        &self,
        info: &NamespaceInfo,
        rules: &Rules,
        values: Vec<(Bytes, Meta)>,
        passed: &mut Passed,
        between: &mut Between,
    ) {
        let mut going = Vec::new();
        for (key, meta) in values {
            let is_due = self.is_due(info, rules, &key, &meta);
            if !is_due && !rules.is_empty() {
                continue;
            }
            let address = Address::object(&info.name, &key);
            match self.hot.away(address, Some(meta.version)).await {
                Ok(Some(_)) => {
                    passed.cold += 1;
                    passed.cold_bytes += meta.size;
                }
                Ok(None) if is_due && (1..=COPY_BYTES_MAX).contains(&meta.size) => {
                    going.push((key, meta));
                }
                // It ended meanwhile, or there is nothing to move, or more than any bucket takes.
                Ok(None) | Err(_) => {}
            }
        }
        let gave_up = AtomicBool::new(false);
        let moves = going.into_iter().map(|(key, meta)| {
            let gave_up = &gave_up;
            async move {
                // Those before it may have taken hours.
                if gave_up.load(Relaxed) || !self.is_still_due(info, &key, &meta) {
                    return (meta.size, Ok(false));
                }
                let address = Address::object(&info.name, &key);
                let moved = self.move_out(address, &meta).await;
                if moved
                    .as_ref()
                    .is_err_and(|error| error.kind() == ErrorKind::Busy)
                {
                    gave_up.store(true, Relaxed);
                }
                (meta.size, moved.map(|()| true))
            }
        });
        let mut moves = futures_util::stream::iter(moves).buffer_unordered(MOVES_MAX);
        loop {
            let (size, moved) = tokio::select! {
                moved = moves.next() => match moved {
                    Some(moved) => moved,
                    None => break,
                },
                _ = between.ticks.tick() => {
                    self.share_reads().await;
                    self.save_beside().await;
                    if between.in_turn && !self.has_turn().await {
                        gave_up.store(true, Relaxed);
                    }
                    continue;
                }
            };
            match moved {
                Ok(true) => {
                    passed.moved += 1;
                    passed.moved_bytes += size;
                    passed.cold += 1;
                    passed.cold_bytes += size;
                }
                Ok(false) => {}
                Err(error) if error.kind().is_overtaken() => {}
                Err(_) => passed.failed += 1,
            }
        }
        drop(moves);
        passed.gave_up |= gave_up.load(Relaxed);
    }

    /// Whether a rule takes a value now.
    fn is_due(&self, info: &NamespaceInfo, rules: &Rules, key: &[u8], meta: &Meta) -> bool {
        let spot = spot(info.id, key);
        rules.take(key, meta, self.now(), self.last_read(spot)) && !self.is_resting(spot)
    }

    /// Whether the rules that there are by now still take it.
    fn is_still_due(&self, info: &NamespaceInfo, key: &[u8], meta: &Meta) -> bool {
        let info = self
            .hot
            .namespace(&info.name)
            .ok()
            .filter(|now| now.id == info.id);
        info.is_some_and(|info| {
            let rules = Rules::of(&info);
            self.begin_reads(&rules);
            self.is_due(&info, &rules, key, meta)
        })
    }

    /// Applies the rules of every namespace, if it is this process's turn.
    pub async fn run_all(&self) {
        let governed = self.begin_all_reads();
        self.share_reads().await;
        for info in governed {
            if !self.has_turn().await {
                return;
            }
            match self.apply(&info.name, true).await {
                Ok(passed) if passed.gave_up => return,
                Ok(passed) if passed.moved > 0 => {
                    tracing::info!(namespace = info.name, ?passed, "moved to the cold tier");
                }
                Ok(_) => {}
                Err(error) if error.kind().is_overtaken() => {}
                Err(error) => {
                    tracing::warn!(namespace = info.name, %error, "the tier rules were not applied");
                }
            }
        }
    }

    /// Notes reads from now on, where a rule asks for them.
    fn begin_reads(&self, rules: &Rules) {
        if rules.ask_for_reads() {
            self.reads.begin(self.now());
        }
    }

    /// The same for all rules; the namespaces that have some.
    fn begin_all_reads(&self) -> Vec<Arc<NamespaceInfo>> {
        let mut governed = self.hot.namespaces();
        governed.retain(|info| {
            let rules = Rules::of(info);
            self.begin_reads(&rules);
            !rules.is_empty()
        });
        governed
    }

    /// Deletes copies whose values ended or came back, as far as nobody reads them; `false` when the far side could not be reached.
    pub async fn tidy(&self) -> bool {
        self.pins.doom(self.hot.forgotten());
        let due = futures_util::stream::iter(self.pins.due()).map(Ok);
        let deleted = due.try_for_each_concurrent(DELETES_MAX, async |away| {
            self.bucket.delete(away).await?;
            self.pins.gone(away);
            add(&self.counters.deleted, 1);
            Ok(())
        });
        deleted.await.inspect_err(|error| self.note(error)).is_ok()
    }

    /// The last tidying of a process: the next one would find by a sweep alone what is left. Tells as [`tidy`](Mover::tidy) does.
    pub async fn close(&self) -> bool {
        // Before anything that waits for the far side: that may not be there.
        self.share_reads().await;
        self.give_turn_back().await;
        // What ended counts once its end is durable.
        if let Err(error) = self.hot.settle().await {
            tracing::warn!(%error, "some cold copies are left to a sweep");
        }
        self.tidy().await
    }

    /// Does what is due, for ever.
    pub async fn tend(self: &Arc<Self>) -> Infallible {
        self.begin_all_reads();
        self.share_reads().await;
        // Side by side: a pass may take hours, in which copies of values that are gone are to go all the same, and so may a sweep.
        tokio::select! {
            never = self.keep_tidy() => never,
            never = self.keep_passing() => never,
            never = self.keep_sweeping() => never,
        }
    }

    async fn keep_tidy(&self) -> Infallible {
        let mut tidy = every(TIDY, TIDY);
        loop {
            tidy.tick().await;
            self.tidy().await;
        }
    }

    async fn keep_passing(&self) -> Infallible {
        let mut pass = every(PASS, PASS);
        loop {
            pass.tick().await;
            self.run_all().await;
            self.save_beside().await;
        }
    }

    async fn keep_sweeping(&self) -> Infallible {
        let mut sweep = every(SWEEP, PASS);
        loop {
            sweep.tick().await;
            self.sweep_in_turn().await;
        }
    }

    async fn sweep_in_turn(&self) {
        if !self.has_turn().await {
            return;
        }
        match self.sweep().await {
            Ok(Swept { deleted: 0, .. }) => {}
            Ok(Swept { deleted, waiting }) => {
                tracing::info!(
                    deleted,
                    waiting,
                    "cold copies that nothing refers to were deleted"
                );
            }
            Err(error) => tracing::warn!(%error, "the cold tier was not swept"),
        }
    }

    /// Keeps when values were read last. Blocks for a file of 8 MiB.
    pub fn save(&self) {
        if let Some(path) = &self.config.reads {
            save(&self.reads, path);
        }
    }

    /// The same on a thread that may block.
    async fn save_beside(&self) {
        if let Some(path) = self.config.reads.clone() {
            let reads = self.reads.clone();
            let saving = tokio::task::spawn_blocking(move || save(&reads, &path));
            if let Err(error) = saving.await {
                tracing::warn!(%error, "when values were read last was not kept");
            }
        }
    }
}

fn save(reads: &Reads, path: &Path) {
    if let Err(error) = reads.save(path) {
        tracing::warn!(path = %path.display(), %error, "when values were read last was not kept");
    }
}

fn every(period: Duration, first: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + first, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
