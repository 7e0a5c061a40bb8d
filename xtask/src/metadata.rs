//! The part of `cargo metadata` that the checks read.

use std::collections::BTreeSet;

use anyhow::Result;
use serde::Deserialize;

use crate::tool::{cargo, output};

/// Every package of the dependency graph, for all targets and features.
#[derive(Deserialize)]
pub struct Metadata {
    /// Packages, ours and others'.
    pub packages: Vec<Package>,
    workspace_members: Vec<String>,
}

/// One package.
#[derive(Deserialize)]
pub struct Package {
    /// Opaque identity.
    pub id: String,
    /// Name in the manifest.
    pub name: String,
    /// Version in the manifest.
    pub version: String,
    /// SPDX expression, if any.
    pub license: Option<String>,
    /// Where it comes from; nothing for a path.
    pub source: Option<String>,
    /// What its manifest asks for.
    pub dependencies: Vec<Dependency>,
}

/// One line of a manifest's dependency tables.
#[derive(Deserialize)]
pub struct Dependency {
    /// The package asked for.
    pub name: String,
    /// `dev`, `build`, or nothing for a normal one.
    pub kind: Option<String>,
}

impl Metadata {
    /// Asks cargo; fails when `Cargo.lock` is not up to date.
    pub fn read() -> Result<Self> {
        let text = output(cargo().args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--all-features",
            "--filter-platform=x86_64-unknown-linux-gnu",
        ]))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The packages of this workspace.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
    }

    /// The packages that are really built on our platform. `cargo metadata` also follows features
    /// that only name an optional package without asking for it; `cargo tree` does not.
    pub fn reached(&self) -> Result<Vec<&Package>> {
        let text = output(cargo().args([
            "tree",
            "--locked",
            "--workspace",
            "--all-features",
            "--prefix=none",
            "--format={p}",
        ]))?;
        let named: BTreeSet<(&str, &str)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some((words.next()?, words.next()?.strip_prefix('v')?))
            })
            .collect();
        let found = |package: &&Package| named.contains(&(&package.name[..], &package.version[..]));
        Ok(self.packages.iter().filter(found).collect())
    }
}
