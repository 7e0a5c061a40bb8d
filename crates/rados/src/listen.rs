//! Hearing what other gateways say, and telling them what this one changed.

use std::sync::Arc;

use forebay_store::Notice;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::core::Core;
use crate::keeper::{REFRESH, Task};
use crate::names::{CHANGES, NAMESPACES};
use crate::sys::{Errno, Heard, Watching};

/// How long a gateway that was told of changes may take to say so.
const HEARING_MS: u64 = 2000;

/// Listens to what other gateways say, until `ended`.
pub(crate) async fn listen(core: Arc<Core>, mut ended: oneshot::Receiver<()>) {
    let mut watching = Vec::new();
    watch(&core, &mut watching).await;
    // What was changed since this gateway has read it, and before it listened.
    core.task(Task::Reload(None));
    loop {
        tokio::select! {
            () = sleep(REFRESH) => {}
            _ = &mut ended => break,
        }
        if watching.is_empty() || !watching.iter().all(Watching::is_whole) {
            watch(&core, &mut watching).await;
            core.notices.tell(Notice::Lost);
            core.task(Task::Reload(None));
        }
    }
    let _ = spawn_blocking(move || drop(watching)).await;
}

/// Begins to listen, in place of `watching`.
async fn watch(core: &Arc<Core>, watching: &mut Vec<Watching>) {
    let (registry, old) = (core.registry.clone(), std::mem::take(watching));
    let (tasks, weak, own) = (core.tasks.clone(), Arc::downgrade(core), core.gateway);
    let again = core.tasks.clone();
    let hear_names = move |heard: Heard<'_>| {
        let answer = match heard {
            Heard::Words(words, _) if words == own.to_le_bytes() => return,
            Heard::Words(_, answer) => Some(answer),
            Heard::Broken => None,
        };
        let _ = tasks.send(Task::Reload(answer));
    };
    let hear_changes = move |heard: Heard<'_>| {
        let Some(core) = weak.upgrade() else {
            return;
        };
        match heard {
            Heard::Words(words, _) => core.notices.heard(words, core.gateway),
            Heard::Broken => {
                core.notices.tell(Notice::Lost);
                let _ = again.send(Task::Reload(None));
            }
        }
    };
    let begun = spawn_blocking(move || {
        drop(old);
        let names = Watching::begin(&registry, NAMESPACES, hear_names)?;
        let changes = Watching::begin(&registry, CHANGES, hear_changes)?;
        Ok::<_, Errno>(vec![names, changes])
    });
    match begun.await {
        Ok(Ok(begun)) => *watching = begun,
        Ok(Err(errno)) => tracing::warn!(%errno, "other gateways are not heard"),
        Err(error) => tracing::warn!(%error, "other gateways are not heard"),
    }
}

/// Tells other gateways of changes, one notification at a time.
pub(crate) async fn tell(core: Arc<Core>) {
    loop {
        core.notices.something.notified().await;
        while let Some(words) = core.notices.words(core.gateway) {
            let told = Watching::tell(&core.registry, CHANGES, &words, HEARING_MS);
            if let Err(errno) = core.access.in_time(told).await {
                tracing::debug!(%errno, "a gateway did not hear of a change");
            }
        }
    }
}
