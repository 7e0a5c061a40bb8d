//! Licences, banned packages and sources of what is shipped, as `deny.toml` says. The file is in cargo-deny's own
//! format: where that tool is installed it has the last word, and nobody has to build it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::metadata::{MAIN, MODULES, Metadata, Package, Workspace};
use crate::tool::{cargo, installed, output, root, run};

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    package: String,
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    package: String,
    /// Packages that may use it all the same.
    #[serde(default)]
    wrappers: Vec<String>,
    reason: String,
}

/// Fails with every offence of a workspace at once.
pub fn check() -> Result<()> {
    let text = std::fs::read_to_string(root().join("deny.toml"))?;
    let deny: Deny = toml::from_str(&text).context("deny.toml")?;
    for workspace in [&MAIN, &MODULES] {
        check_workspace(workspace, &deny).context(workspace.manifest)?;
    }
    Ok(())
}

fn check_workspace(workspace: &Workspace, deny: &Deny) -> Result<()> {
    let metadata = Metadata::of(workspace)?;
    let packages = metadata.reached(workspace)?;
    let mut offences: Vec<String> = packages
        .iter()
        .flat_map(|package| unlicensed(package, deny))
        .chain(sources(&packages))
        .collect();
    for banned in &deny.bans.deny {
        if packages
            .iter()
            .any(|package| package.name == banned.package)
        {
            offences.extend(users(workspace, banned)?);
        }
    }
    if !offences.is_empty() {
        bail!("{}", offences.join("\n"));
    }
    report_duplicates(&packages);
    if installed("cargo-deny") {
        let what = ["licenses", "bans", "sources"];
        run(cargo()
            .args(["deny", "--log-level=error"])
            .args(["--manifest-path", workspace.manifest])
            .args(["--target", workspace.platform])
            .args(["check", "--config"])
            .arg(root().join("deny.toml"))
            .args(what))?;
    }
    Ok(())
}

fn unlicensed(package: &Package, deny: &Deny) -> Option<String> {
    let mut allowed = deny.licenses.allow.clone();
    for exception in deny
        .licenses
        .exceptions
        .iter()
        .filter(|e| e.package == package.name)
    {
        allowed.extend(exception.allow.iter().cloned());
    }
    match package.license.as_deref() {
        Some(expression) if crate::spdx::accepted(expression, &allowed) => None,
        licence => Some(format!(
            "{} {}: licence {licence:?} is not accepted",
            package.name, package.version
        )),
    }
}

/// Who uses a banned package and may not.
fn users(workspace: &Workspace, banned: &Banned) -> Result<Vec<String>> {
    let mut tree = workspace.tree();
    let tree = output(tree.args(["--depth=1", "--invert", &banned.package]))?;
    Ok(tree
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
        .filter(|user| !user.is_empty() && !banned.wrappers.iter().any(|name| name == user))
        .map(|user| {
            format!(
                "{} is banned, and {user} uses it: {}",
                banned.package, banned.reason
            )
        })
        .collect())
}

/// Everything that is not ours comes from one registry: no git, no second registry.
fn sources(packages: &[&Package]) -> Option<String> {
    let sources: BTreeSet<&str> = packages
        .iter()
        .filter_map(|p| p.source.as_deref())
        .collect();
    let one = sources.len() <= 1 && sources.iter().all(|source| source.starts_with("registry+"));
    (!one).then(|| format!("packages come from {sources:?}"))
}

/// Two versions of one package cost build time, no more: they are shown, not refused.
fn report_duplicates(packages: &[&Package]) {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions
            .entry(&package.name)
            .or_default()
            .push(&package.version);
    }
    let twice: Vec<String> = versions
        .into_iter()
        .filter(|(_, versions)| versions.len() > 1)
        .map(|(name, versions)| format!("{name} {}", versions.join("+")))
        .collect();
    eprintln!(
        "{} packages; in several versions: {}",
        packages.len(),
        twice.join(", ")
    );
}
