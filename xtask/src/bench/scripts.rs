//! Peers that are Python packages, each driven by a script in `lab/peers` that prints a sample.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result};

use crate::bench::direct::{MOONCAKE, NIXL};
use crate::bench::measure::Bench;
use crate::bench::peers::{ACCESS_KEY, SECRET_KEY, Server};
use crate::bench::sample::Sample;
use crate::tool::{command, output, root, run};

/// Where NIXL keeps its blocks.
const BUCKET: &str = "nixl";

impl Bench {
    /// An interpreter that finds this module.
    pub fn python(&self, module: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = self
            .search
            .iter()
            .cloned()
            .chain(std::env::split_paths(&path));
        // Not made canonical: an environment's interpreter is a link, and is known by where the link is.
        folders.map(|folder| folder.join("python3")).find(|python| {
            python.is_file()
                && command(python)
                    .args(["-c", &format!("import {module}")])
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|status| status.success())
        })
    }

    /// Blocks of 1 MiB, eight at a time, between two processes.
    pub fn mooncake(&self, op: &str) -> Result<Option<Sample>> {
        self.script(MOONCAKE, "mooncake_tcp.py", &["--op".into(), op.into()])
    }

    /// Blocks of 1 MiB, eight at a time, from and to objects of a server of ours.
    pub fn nixl(&self, server: &Server, op: &str) -> Result<Option<Sample>> {
        if self.python(NIXL).is_none() {
            return Ok(None);
        }
        // Makes the bucket, by putting an object there.
        let mut prepare = self.command(&self.binary);
        prepare.args([
            "bench",
            "s3",
            "--op",
            "put",
            "--size",
            "1KiB",
            "--seconds",
            "0.1",
        ]);
        prepare.args(["--warm-up", "0", "--bucket", BUCKET]);
        run(prepare.args(server.arguments()).stdout(Stdio::null()))?;
        let mut arguments: Vec<String> = ["--op", op, "--endpoint", &server.endpoint]
            .map(str::to_owned)
            .into();
        arguments
            .extend(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY].map(str::to_owned));
        arguments.extend(["--bucket", BUCKET].map(str::to_owned));
        self.script(NIXL, "nixl_obj.py", &arguments)
    }

    fn script(&self, module: &str, name: &str, arguments: &[String]) -> Result<Option<Sample>> {
        let Some(python) = self.python(module) else {
            return Ok(None);
        };
        let text = output(
            self.command(&python)
                .arg(root().join("lab/peers").join(name))
                .args(arguments)
                .args(["--seconds", &self.seconds.to_string()]),
        )?;
        // Its library may have said something before.
        let line = text.lines().last().context("no sample was printed")?;
        let sample = serde_json::from_str(line).with_context(|| format!("not a sample: {line}"))?;
        Ok(Some(sample))
    }
}
