//! Finding and running other programs from the root of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What runs unit tests best, where it is installed.
pub const NEXTEST: &str = "cargo-nextest";

/// The workspace's root, known from where this crate stands.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask stands in the workspace")
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// A command that runs in the root and reads nothing.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// The cargo that runs this.
pub fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs to a successful end, output on the terminal.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs to a successful end and gives back what it printed.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let done = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    if !done.status.success() {
        bail!("{shown}: {}", done.status);
    }
    String::from_utf8(done.stdout).with_context(|| format!("{shown} printed no UTF-8"))
}

/// Whether this is root, who may install what is missing.
pub fn is_root() -> Result<bool> {
    Ok(output(command("id").arg("-u"))?.trim() == "0")
}

/// Whether a program of this name is on the PATH.
pub fn installed(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else {
        return false;
    };
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The files git knows or would add, with the given ending, relative to the root.
pub fn sources(ending: &str) -> Result<Vec<PathBuf>> {
    let listed = output(command("git").args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        &format!("*{ending}"),
    ]))?;
    Ok(listed
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|path| root().join(path).is_file())
        .collect())
}
