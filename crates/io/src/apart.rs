//! Work that may take as long as somebody else likes, as mapping a file of a file system that a client serves: on a thread that may wait, in
//! its turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long work waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Does `work` when it has one of its `own` turns, if it has any, and one of all: who has used up its own takes none of the others'. `None`
/// when these do not come in time.
pub async fn in_turn<T: Send + 'static>(
    own: Option<Arc<Semaphore>>,
    all: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let turns = async {
        let own = match own {
            Some(own) => Some(own.acquire_owned().await?),
            None => None,
        };
        Ok::<_, AcquireError>((own, all.acquire().await?))
    };
    let Ok(Ok(turns)) = timeout(TURN_TIMEOUT, turns).await else {
        return None;
    };
    let done = spawn_blocking(move || {
        let done = work();
        // Also when nobody waits for that any more.
        drop(turns);
        done
    });
    done.await.ok()
}
