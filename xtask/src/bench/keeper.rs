//! What a bench leaves behind when it ends, however it does: no process and no data.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tool::command;

/// Waits until nobody holds the other end of its input any more: a program that is killed cannot. Then it kills all processes of the
/// group `$1` and removes the folder `$2`, in which one that was killed may be at its last write.
const SCRIPT: &str = r#"
read -r end
kill -s KILL -- "-$1"
rm -rf -- "$2" || { sleep 1; rm -rf -- "$2"; }
"#;

/// Ends a group of processes and removes a folder when it is dropped, and when this program ends however it does.
pub struct Keeper {
    folder: PathBuf,
    /// Does nothing. While it is there no other process gets the group's number.
    leader: Child,
    group: i32,
    sh: Child,
}

impl Keeper {
    /// Of this folder, and of no process yet.
    pub fn of(folder: &Path) -> Result<Keeper> {
        // Ctrl-C is for this program, not for who cleans up after it.
        let leader = apart("cat", 0)
            .stdin(Stdio::piped())
            .spawn()
            .context("cat cannot be started")?;
        let group = i32::try_from(leader.id())?;
        let sh = apart("sh", 0)
            .args(["-c", SCRIPT, "keeper", &group.to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .spawn()
            .context("sh cannot be started")?;
        Ok(Keeper {
            folder: folder.to_owned(),
            leader,
            group,
            sh,
        })
    }

    /// A command whose process, and what that starts, is one of the group.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        apart(program, self.group)
    }

    /// Ends the group and removes the folder.
    pub fn end(mut self) -> Result<()> {
        let status = self.close()?;
        ensure!(
            status.success(),
            "{} cannot be removed",
            self.folder.display()
        );
        Ok(())
    }

    fn close(&mut self) -> io::Result<ExitStatus> {
        drop(self.sh.stdin.take());
        let status = self.sh.wait();
        drop(self.leader.stdin.take());
        self.leader.wait()?;
        status
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // What it could not remove it has told.
        let _ = self.close();
    }
}

/// A command in this process group, or with 0 in a new one.
fn apart(program: impl AsRef<std::ffi::OsStr>, group: i32) -> Command {
    let mut command = command(program);
    command.process_group(group);
    command
}
