//! Python environments for the client tests, made under `target/` and kept until their pinned
//! requirements change, or their place or interpreter does.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::runners::last_lines;
use crate::steps::unfetched;
use crate::tool::{command, installed, is_root, output, root, target};

/// Tells which interpreter there is, itself and its version, whatever environment it is called from.
const INTERPRETER: &str = "import os, sys; print(os.path.realpath(sys.executable), sys.version)";

/// Makes the environment of `interop/requirements/NAME.txt`, or finds it made. The list is complete
/// and pinned, so pip resolves nothing; progress and complaints go to `log`.
pub fn prepare(name: &str, log: &Path) -> Result<PathBuf> {
    let requirements = root()
        .join("interop/requirements")
        .join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&requirements)?;
    let setup = root()
        .join("interop/requirements")
        .join(format!("{name}.py"));
    let setup_text = std::fs::read_to_string(&setup).ok();
    let folder = target().join("interop").join("venv").join(name);
    let interpreter = output(command("python3").args(["-c", INTERPRETER]))?;
    let mut hasher = DefaultHasher::new();
    (&text, &setup_text, &folder, &interpreter).hash(&mut hasher);
    let wanted = format!("{:016x}", hasher.finish());

    let python = folder.join("bin/python");
    let stamp = folder.join("requirements.hash");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    can_make(log).map_err(unfetched)?;
    quietly(command("python3").args(["-m", "venv"]).arg(&folder), log)?;
    quietly(
        command(&python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args(["--no-cache-dir", "--no-deps", "--requirement"])
            .arg(&requirements),
        log,
    )
    .map_err(unfetched)?;
    if setup_text.is_some() {
        quietly(command(&python).arg(&setup), log)?;
    }
    std::fs::write(&stamp, wanted)?;
    Ok(python)
}

/// Makes sure that the interpreter can make environments: Debian has what it takes in a package of its own.
fn can_make(log: &Path) -> Result<()> {
    let mut look = command("python3");
    look.args(["-c", "import ensurepip"]);
    match look.stderr(Stdio::null()).status()?.success() {
        true => Ok(()),
        false => install(&["python3-venv"], log),
    }
}

/// Debian's own clients, by the names of their programs. The error says why they cannot be had.
pub fn debian(packages: &[&str], log: &Path) -> Result<()> {
    let missing = packages.iter().copied().filter(|name| !installed(name));
    let missing: Vec<&str> = missing.collect();
    match missing.is_empty() {
        true => Ok(()),
        false => install(&missing, log),
    }
}

fn install(missing: &[&str], log: &Path) -> Result<()> {
    if !installed("apt-get") {
        bail!("{missing:?} are not installed and there is no apt-get");
    }
    if !is_root()? {
        bail!("{missing:?} are not installed and only root can install them");
    }
    quietly(command("apt-get").args(["update", "-qq"]), log)?;
    quietly(
        command("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(missing)
            .env("DEBIAN_FRONTEND", "noninteractive"),
        log,
    )
}

/// Runs with its output appended to `log`.
pub fn quietly(command: &mut Command, log: &Path) -> Result<()> {
    let shown = format!("{command:?}");
    let status = logged(command, log)?
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}\n{}", tail(log, 15));
    }
    Ok(())
}

/// The same command, with its output appended to `log`.
pub fn logged<'a>(command: &'a mut Command, log: &Path) -> Result<&'a mut Command> {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)?;
    Ok(command
        .stdout(Stdio::from(file.try_clone()?))
        .stderr(Stdio::from(file)))
}

/// The last lines of a log.
pub fn tail(log: &Path, lines: usize) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    last_lines(&String::from_utf8_lossy(&bytes), lines)
}
