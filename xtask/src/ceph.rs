//! A throwaway Ceph of `lab/`, for tests and figures; it goes when this is dropped.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tool::{command, root};

/// The pool that is there from the beginning.
pub const POOL: &str = "forebay";

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

/// A cluster on loopback.
pub struct Ceph {
    name: String,
    assigned: Vec<(String, String)>,
}

impl Ceph {
    /// Starts one, with these arguments of `lab/ceph-up.sh`. The error says why there is none.
    pub fn up(arguments: &[&str]) -> Result<Ceph> {
        let name = format!("fb{}", std::process::id());
        let mut up = command(root().join("lab/ceph-up.sh"));
        up.args(["--name", &name, "--pool", POOL]).args(arguments);
        let done = up.output().context("lab/ceph-up.sh cannot be started")?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            bail!("{}", said.trim().lines().last().unwrap_or("no reason told"));
        }
        // From here on it is taken down again, whatever it printed.
        let mut ceph = Ceph {
            name,
            assigned: Vec::new(),
        };
        for line in String::from_utf8(done.stdout)?.lines() {
            let (variable, value) = line
                .strip_prefix("export ")
                .and_then(|line| line.split_once('='))
                .with_context(|| format!("no assignment: {line}"))?;
            ceph.assigned.push((variable.to_owned(), value.to_owned()));
        }
        Ok(ceph)
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
        // It says what it could not end; there is nobody to pass that on to.
        let _ = command(root().join("lab/ceph-down.sh"))
            .args(["--name", &self.name])
            .status();
    }
}
