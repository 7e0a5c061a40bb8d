//! A throwaway Ceph of `lab/`, for tests and figures; it goes when this is dropped, and when this program ends however it does.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow};

use crate::steps::Unavailable;
use crate::tool::{command, is_root};

/// The pool that is there from the beginning.
pub const POOL: &str = "forebay";

/// Starts a cluster of the name `$1` and with all the arguments, says so, and takes it down when nobody holds the other end of its input
/// any more: a program that is killed cannot. Should it be killed while the cluster comes up, that is taken down when it is up.
const KEEPER: &str = r#"
said=$(lab/ceph-up.sh --name "$@" 2>&1)
ended=$?
printf '%s\n' "$said"
[ $ended = 0 ] || exit $ended
echo up
cat
exec lab/ceph-down.sh --name "$1"
"#;

/// `cargo xtask ceph`: runs a command beside a cluster of its own. False when the command fails.
pub fn run(osds: u32, store: &str, wanted: &[String]) -> Result<bool> {
    let (program, arguments) = wanted.split_first().context("no command")?;
    let ceph = Ceph::up(&["--osds", &osds.to_string(), "--store", store])?;
    let mut child = command(program);
    let status = ceph.known_to(child.args(arguments)).status();
    Ok(status
        .with_context(|| format!("cannot start {program}"))?
        .success())
}

/// The exit code by which `lab/` tells so.
const UNAVAILABLE: i32 = 77;

/// A cluster on loopback.
pub struct Ceph {
    name: String,
    keeper: Child,
    assigned: Vec<(String, String)>,
}

impl Ceph {
    /// Starts one, with these arguments of `lab/ceph-up.sh`.
    ///
    /// # Errors
    /// [`Unavailable`], or what broke.
    pub fn up(arguments: &[&str]) -> Result<Ceph> {
        let name = format!("fb{}", std::process::id());
        // What is missing could not be installed.
        let no_install = (!is_root()?).then_some("--no-install");
        let keeper = command("sh")
            .args(["-c", KEEPER, "keeper", &name, "--pool", POOL])
            .args(arguments)
            .args(no_install)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for this program, not for who cleans up after it.
            .process_group(0)
            .spawn()
            .context("lab/ceph-up.sh cannot be started")?;
        let mut ceph = Ceph {
            name,
            keeper,
            assigned: Vec::new(),
        };
        let mut last = "no reason told".to_owned();
        for line in ceph
            .keeper
            .stdout
            .take()
            .map(BufReader::new)
            .into_iter()
            .flat_map(BufRead::lines)
        {
            let line = line?;
            if line == "up" {
                return Ok(ceph);
            }
            let assigned = line
                .strip_prefix("export ")
                .and_then(|line| line.split_once('='));
            if let Some((variable, value)) = assigned {
                ceph.assigned.push((variable.to_owned(), value.to_owned()));
            }
            last = line;
        }
        Err(match ceph.keeper.wait()?.code() {
            Some(UNAVAILABLE) => anyhow::Error::new(Unavailable(last)),
            _ => anyhow!("no cluster: {last}"),
        })
    }

    /// What `lab/` calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it said of itself: `CEPH_CONF`, and with an S3 gateway `S3_ENDPOINT` and keys.
    pub fn variable(&self, name: &str) -> Result<&str> {
        self.assigned
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .with_context(|| format!("lab/ceph-up.sh told no {name}"))
    }

    /// The process of a daemon, `mon`, `osd.0` or `rgw`.
    pub fn pid(&self, daemon: &str) -> Result<u32> {
        let conf = Path::new(self.variable("CEPH_CONF")?);
        let noted = std::fs::read_to_string(conf.with_file_name("pid").join(daemon))?;
        let pid = noted
            .split_whitespace()
            .next()
            .context("no process noted")?;
        Ok(pid.parse()?)
    }

    /// Has a command find the cluster: as Ceph's own tools look for it, and as the tests of the leaf `rados` do.
    pub fn known_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, value) in &self.assigned {
            command.env(name, value);
            if name == "CEPH_CONF" {
                command.env("FOREBAY_CEPH_CONF", value);
            }
        }
        command.env("FOREBAY_CEPH_POOL", POOL)
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // It says what it could not end; there is nobody to pass that on to.
        let _ = self.keeper.wait();
    }
}
