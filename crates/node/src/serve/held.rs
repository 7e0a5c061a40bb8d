//! A directory of this process alone, and what may take long before there is one.

use std::io;
use std::time::{Duration, Instant};

use forebay_io::Disk;
use forebay_io::files::Directory;

use super::args::ServeArgs;
use super::listeners::forget_ready_file;
use crate::exit::{Exit, Failure, Outcome};

/// A server that was killed holds its directory until the system has taken its memory back, and its data until its last writes have ended.
const PATIENCE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(50);

/// Keeps other servers out of DIR until it is dropped.
pub type Held = Box<dyn Send + Sync>;

/// Takes DIR.
pub async fn hold(disk: &Directory, args: &ServeArgs) -> Outcome<Held> {
    let disk = disk.clone();
    let is_held = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    let locked = aside(move || patiently(|| disk.lock(), is_held)).await?;
    let held = locked.map_err(Failure::io(args.dir.display()))?;
    // Whoever waits for a server must not find the last one's doors; those of one that runs stay.
    forget_ready_file(args);
    Ok(held)
}

/// Opens what another process may hold, once who was killed has let it go; blocking.
pub fn patiently<T, E>(
    open: impl Fn() -> Result<T, E>,
    is_held: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(error) if is_held(&error) && begun.elapsed() < PATIENCE => {
                tracing::debug!("the directory is held by another process");
                std::thread::sleep(RETRY);
            }
            opened => return opened,
        }
    }
}

/// Does what blocks where it keeps nobody from seeing that the server is told to end.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::new(Exit::Failed, error))
}
