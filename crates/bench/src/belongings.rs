//! What measurements have outside this process: folders, and servers. Each goes with its owner here, or with all others when the program
//! is told to end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::Error;

/// How long a server may take to end.
const END: Duration = Duration::from_secs(20);
/// How often a folder is looked through whose last files may have been made meanwhile.
const LOOKS: usize = 5;

/// Whatever is made or removed is made or removed with this locked, so that nothing is ever unknown here.
static BELONGINGS: Mutex<Belongings> = Mutex::new(Belongings {
    servers: Vec::new(),
    folders: Vec::new(),
});

struct Belongings {
    servers: Vec<Child>,
    folders: Vec<TempDir>,
}

/// Ends every server and removes every folder that measurements have made; none makes another from now on. For a program that is about to
/// end while it measures.
pub fn abandon() {
    let mut all = BELONGINGS.lock();
    for server in all.servers.drain(..) {
        end(server);
    }
    for folder in all.folders.drain(..) {
        remove(folder);
    }
    // Whoever still measures waits here until the program is gone.
    MutexGuard::leak(all);
}

/// A new folder; it goes when this is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes one in `parent`, or in the system's folder for temporary files.
    pub(crate) fn new(parent: Option<&Path>) -> Result<Folder, Error> {
        let mut name = tempfile::Builder::new();
        name.prefix("forebay-bench-");
        let mut all = BELONGINGS.lock();
        let made = match parent {
            Some(parent) => name.tempdir_in(parent),
            None => name.tempdir(),
        };
        let made = made.map_err(Error::io("make a temporary directory"))?;
        let path = made.path().to_owned();
        all.folders.push(made);
        Ok(Folder(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let mut all = BELONGINGS.lock();
        all.folders.retain(|folder| folder.path() != self.0);
    }
}

/// A process that serves; it is told to end, and waited for, when this is dropped.
pub(crate) struct Server {
    pid: u32,
}

impl Server {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> Result<Server, Error> {
        let mut all = BELONGINGS.lock();
        let child = command.spawn().map_err(Error::io("start a server"))?;
        let pid = child.id();
        all.servers.push(child);
        Ok(Server { pid })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended by itself, if it did.
    pub(crate) fn ended(&self) -> io::Result<Option<ExitStatus>> {
        let mut all = BELONGINGS.lock();
        let server = all.servers.iter_mut().find(|one| one.id() == self.pid);
        server.map_or(Ok(None), Child::try_wait)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut all = BELONGINGS.lock();
        for server in all.servers.extract_if(.., |one| one.id() == self.pid) {
            end(server);
        }
    }
}

/// Tells a server to end, and waits until it has.
fn end(mut server: Child) {
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
    let start = Instant::now();
    let mut told = false;
    while matches!(server.try_wait(), Ok(None)) {
        if let Some(pid) = pid.filter(|_| !told) {
            // Should it end right now, there is nobody to tell.
            let _ = kill_process(pid, Signal::TERM);
            told = true;
        }
        if start.elapsed() > END {
            let _ = server.kill();
            let _ = server.wait();
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Removes a folder that threads of this process may still make files in.
fn remove(folder: TempDir) {
    let known = folder.keep();
    // By another name nobody finds it.
    let hidden = known.with_extension("gone");
    let path = fs::rename(&known, &hidden).map_or(known, |()| hidden);
    // What was just being made by the old name may come in between: then it is not empty yet.
    let _ = (0..LOOKS).any(|_| fs::remove_dir_all(&path).is_ok());
}
