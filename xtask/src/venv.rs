//! Python environments for the client tests, made under `target/` and kept until their pinned
//! requirements change, or their place or interpreter does.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, bail};

use crate::runners::last_lines;
use crate::steps::{Unavailable, unfetched};
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
    can_make(log)?;
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

/// Whether it was the network that kept pip from a package, and not that the index has none which this machine can use.
pub fn was_cut_off(error: &Error) -> bool {
    let said = format!("{error:#}");
    let by_network = ["Retrying (Retry(", "HTTP error", "urllib3.exceptions"];
    by_network.iter().any(|words| said.contains(words))
}

/// Makes sure that the interpreter can make environments: Debian has what it takes in a package of its own.
fn can_make(log: &Path) -> Result<()> {
    let mut look = command("python3");
    look.args(["-c", "import ensurepip"]);
    match look.stderr(Stdio::null()).status()?.success() {
        true => Ok(()),
        // Without it there are no clients at all, which continuous integration is told whatever the reason.
        false => install(&["python3-venv"], log)
            .map_err(|error| unfetched(Error::msg(format!("{error:#}")))),
    }
}

/// Debian's own clients, by the names of their programs.
///
/// # Errors
/// [`Unavailable`] where nothing can be installed, and where Debian has no such package; else why they could not be fetched.
pub fn debian(packages: &[&str], log: &Path) -> Result<()> {
    let missing = packages.iter().copied().filter(|name| !installed(name));
    let missing: Vec<&str> = missing.collect();
    match missing.is_empty() {
        true => Ok(()),
        false => install(&missing, log),
    }
}

fn install(missing: &[&str], log: &Path) -> Result<()> {
    let not_here = |why: &str| {
        let why = format!("{missing:?} are not installed and {why}");
        Err(Unavailable(why).into())
    };
    if !installed("apt-get") {
        return not_here("there is no apt-get");
    }
    if !is_root()? {
        return not_here("only root can install them");
    }
    let apt = |words: &[&str]| {
        let mut apt = command("apt-get");
        apt.args(["-qq", "-o", "Acquire::Retries=3"])
            .args(["-o", "DPkg::Lock::Timeout=600"])
            .args(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C");
        quietly(&mut apt, log)
    };
    let install = [&["install", "-y", "--no-install-recommends"][..], missing].concat();
    if apt(&install).is_ok() {
        return Ok(());
    }
    // Old lists are the usual reason. Where some of them cannot be had, the packages may be in others.
    let updated = apt(&["update"]);
    apt(&install).map_err(|error| match updated.is_ok() && is_unknown(&error) {
        true => Unavailable(format!("{error:#}")).into(),
        false => unfetched(error),
    })
}

/// Whether apt has all lists, and a package is in none of them.
fn is_unknown(error: &Error) -> bool {
    let said = format!("{error:#}");
    let unknown = ["Unable to locate package", "has no installation candidate"];
    unknown.iter().any(|words| said.contains(words)) && !said.contains("Failed to fetch")
}

/// Runs with its output appended to `log`.
pub fn quietly(command: &mut Command, log: &Path) -> Result<()> {
    let shown = format!("{command:?}");
    let before = std::fs::metadata(log).map_or(0, |before| before.len());
    let status = logged(command, log)?
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        // Not of what came before it: the reason is looked for in these words.
        let bytes = std::fs::read(log).unwrap_or_default();
        let said = bytes.get(before as usize..).unwrap_or_default();
        bail!(
            "{shown}: {status}\n{}",
            last_lines(&String::from_utf8_lossy(said), 15)
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_network_withheld_is_told_from_what_nobody_has() {
        let cut_off = [
            "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError': /simple/x/\n\
             ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)",
            "ERROR: HTTP error 503 while getting https://index/x-1-py3-none-any.whl",
            "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='index', port=443): Read timed out.",
        ];
        assert!(cut_off.iter().all(|said| was_cut_off(&Error::msg(*said))));
        let none = "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)\n\
                    ERROR: No matching distribution found for x==1";
        assert!(!was_cut_off(&Error::msg(none)));

        let unknown = "E: Unable to locate package x";
        assert!(is_unknown(&Error::msg(unknown)));
        let no_lists =
            format!("W: Failed to fetch http://mirror/InRelease  Could not connect\n{unknown}");
        assert!(!is_unknown(&Error::msg(no_lists)));
        assert!(!is_unknown(&Error::msg(
            "E: Failed to fetch http://mirror/x.deb  Connection timed out"
        )));
    }
}
