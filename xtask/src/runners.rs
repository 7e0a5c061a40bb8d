//! Test runners: how they end, and that they do. One that says nothing for long hangs, and is ended with all that it started.

use std::process::{Child, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::steps::Counts;
use crate::tool::command;

/// How long a runner of Rust tests may say nothing: it tells of every test, and of what it compiles for them.
pub const SILENCE: Duration = Duration::from_secs(15 * 60);
/// The same of pytest, which ends a test by itself that takes too long: some are given three hours.
pub const SILENCE_OF_PYTEST: Duration = Duration::from_secs(4 * 3600);

/// Between two looks at whether a runner has ended.
const LOOK: Duration = Duration::from_millis(100);
/// How much is told again of what a runner said that hung.
const LAST_LINES: usize = 30;

/// Waits for a runner's end; `said` tells how much it has said so far. When that does not grow for so long, the runner is killed with
/// every process below it, and there is no status. (It has no process group of its own: Ctrl-C is for it, too.)
pub fn wait(
    runner: &mut Child,
    silence: Duration,
    said: impl Fn() -> u64,
) -> Result<Option<ExitStatus>> {
    let (mut heard, mut since) = (said(), Instant::now());
    loop {
        if let Some(status) = runner.try_wait()? {
            return Ok(Some(status));
        }
        let now = said();
        if now != heard {
            (heard, since) = (now, Instant::now());
        } else if since.elapsed() >= silence {
            kill_tree(runner)?;
            return Ok(None);
        }
        sleep(LOOK);
    }
}

/// What a runner counted. Its end must agree with that: one that counts nothing has failed, and so has one that was killed.
pub fn tally(text: &str, status: Option<ExitStatus>, counts: fn(&str) -> Counts) -> Counts {
    let mut counts = counts(text);
    let well = status.is_some_and(|status| status.success());
    if status.is_none() || !well && counts.failed == 0 || counts == Counts::default() {
        counts.failed += 1;
    }
    if status.is_none() {
        let last = last_lines(text, LAST_LINES);
        eprintln!("what said nothing more for too long was ended; the last that it said:\n{last}");
    }
    counts
}

/// The last lines of a text.
pub fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Kills a process, those that it started, those that they started, and so on.
fn kill_tree(root: &mut Child) -> Result<()> {
    let processes = processes()?;
    let mut tree = vec![root.id()];
    let mut at = 0;
    while let Some(parent) = tree.get(at).copied() {
        let children = processes.iter().filter(|(_, of)| *of == parent);
        tree.extend(children.map(|(pid, _)| pid));
        at += 1;
    }
    // The shell's own `kill`: the program is not everywhere. Some may have ended by now, of which it complains.
    command("sh")
        .args(["-c", r#"kill -s KILL "$@""#, "kill"])
        .args(tree.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status()?;
    root.wait()?;
    Ok(())
}

/// All processes, and whose children they are.
fn processes() -> Result<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some((_, parent)) = stat(pid) {
            found.push((pid, parent));
        }
    }
    Ok(found)
}

/// State and parent of a process; nothing of one that is gone.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name, in parentheses, may hold anything.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let state = words.next()?.chars().next()?;
    Some((state, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn who_says_nothing_is_ended_with_all_that_it_started() {
        let mut runner = command("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut started = String::new();
        BufReader::new(runner.stdout.take().unwrap())
            .read_line(&mut started)
            .unwrap();
        assert!(wait(&mut runner, LOOK, || 0).unwrap().is_none());
        let started = started.trim().parse().unwrap();
        while stat(started).is_some_and(|(state, _)| state != 'Z') {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_goes_on_is_waited_for() {
        let mut runner = command("sleep").arg("0.3").spawn().unwrap();
        let said = Cell::new(0);
        let more = || {
            said.set(said.get() + 1);
            said.get()
        };
        let status = wait(&mut runner, Duration::ZERO, more).unwrap();
        assert!(status.is_some_and(|status| status.success()));
    }
}
