//! Python environments for the client tests, made under `target/` and kept until their pinned
//! requirements change.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::tool::{command, root, target};

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
    let mut hasher = DefaultHasher::new();
    (&text, &setup_text).hash(&mut hasher);
    let wanted = format!("{:016x}", hasher.finish());

    let folder = target().join("interop").join("venv").join(name);
    let python = folder.join("bin/python");
    let stamp = folder.join("requirements.hash");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
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
    )?;
    if setup_text.is_some() {
        quietly(command(&python).arg(&setup), log)?;
    }
    std::fs::write(&stamp, wanted)?;
    Ok(python)
}

/// Debian's own clients. The error says why they cannot be had.
pub fn debian(packages: &[&str], log: &Path) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|name| !crate::tool::installed(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !crate::tool::installed("apt-get") {
        bail!("{missing:?} are not installed and there is no apt-get");
    }
    let user = crate::tool::output(command("id").arg("-u"))?;
    if user.trim() != "0" {
        bail!("{missing:?} are not installed and only root can install them");
    }
    quietly(command("apt-get").args(["update", "-qq"]), log)?;
    quietly(
        command("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(&missing)
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
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
