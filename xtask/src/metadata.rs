//! The part of `cargo metadata` that the checks read.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::Result;
use serde::Deserialize;

use crate::tool::{cargo, output};

/// A workspace of this repository.
pub struct Workspace {
    /// Its manifest, from the root.
    pub manifest: &'static str,
    /// What it is built for.
    pub platform: &'static str,
}

/// What is linked into the binary, and what tests that.
pub const MAIN: Workspace = Workspace {
    manifest: "Cargo.toml",
    platform: "x86_64-unknown-linux-gnu",
};

/// The functions that are shipped as source.
pub const MODULES: Workspace = Workspace {
    manifest: "modules/Cargo.toml",
    platform: "wasm32-unknown-unknown",
};

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

impl Workspace {
    /// `cargo tree` of all its packages with all their features, a line for each: its name and its version first.
    pub fn tree(&self) -> Command {
        let mut tree = cargo();
        tree.args(["tree", "--locked", "--workspace", "--all-features"])
            .args(["--manifest-path", self.manifest])
            .args(["--target", self.platform])
            .args(["--prefix=none", "--format={p}"]);
        tree
    }
}

impl Metadata {
    /// Of the workspace that is the binary's.
    pub fn read() -> Result<Self> {
        Metadata::of(&MAIN)
    }

    /// Asks cargo; fails when `Cargo.lock` is not up to date.
    pub fn of(workspace: &Workspace) -> Result<Self> {
        let all = [
            "metadata",
            "--format-version=1",
            "--locked",
            "--all-features",
        ];
        let text = output(
            cargo()
                .args(all)
                .args(["--manifest-path", workspace.manifest])
                .args(["--filter-platform", workspace.platform]),
        )?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The packages of this workspace.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
    }

    /// The packages that are really built for the workspace's platform. `cargo metadata` also follows features
    /// that only name an optional package without asking for it; `cargo tree` does not.
    pub fn reached(&self, workspace: &Workspace) -> Result<Vec<&Package>> {
        let text = output(&mut workspace.tree())?;
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
