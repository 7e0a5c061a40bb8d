//! `cargo xtask check`: each check by itself, all of them run even when one fails.

use anyhow::{Result, bail, ensure};

use crate::steps::Steps;
use crate::tool::{cargo, command, run as run_tool};
use crate::{deps, docs, generate, layers};

type Check = fn() -> Result<()>;

/// Runs the checks, or only the one named.
pub fn run(only: Option<&str>) -> Result<bool> {
    let checks: [(&str, Check); 8] = [
        ("fmt", fmt),
        ("lock", lock),
        ("layers", layers::check),
        ("deps", deps::check),
        ("tidy", docs::check_sources),
        ("generated", generate::check),
        ("docs", docs::check),
        ("clippy", clippy),
    ];
    if let Some(name) = only {
        ensure!(
            checks.iter().any(|(known, _)| *known == name),
            "there is no check {name:?}"
        );
    }
    let mut steps = Steps::new();
    for (name, check) in checks {
        if only.is_none_or(|only| only == name) {
            steps.run(name, check);
        }
    }
    let total = steps.total();
    eprintln!("check: {total}");
    Ok(total.failed == 0)
}

/// The Rust clients under `interop/` are a workspace of their own, and so are the modules and the fuzzers.
fn fmt() -> Result<()> {
    run_tool(cargo().args(["fmt", "--all", "--check"]))?;
    for manifest in ["interop/rust/Cargo.toml", "modules/Cargo.toml"] {
        let all = ["fmt", "--all", "--check", "--manifest-path", manifest];
        run_tool(cargo().args(all))?;
    }
    // Without `--all`, which would have cargo look for what they depend on.
    let fuzzers = ["fmt", "--check", "--manifest-path", "fuzz/Cargo.toml"];
    run_tool(cargo().args(fuzzers))
}

fn clippy() -> Result<()> {
    run_tool(cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))
}

/// `Cargo.lock` is part of what is reviewed: present, committed, and what cargo would write.
fn lock() -> Result<()> {
    let known = command("git")
        .args(["ls-files", "--error-unmatch", "Cargo.lock"])
        .output()?;
    if !known.status.success() {
        bail!("Cargo.lock is not committed");
    }
    crate::metadata::Metadata::read().map(|_| ())
}
