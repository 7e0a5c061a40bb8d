//! `layers.toml` against the manifests and the sources: which room uses which, where a package
//! from outside may appear, and which modules may contain `unsafe`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::metadata::{Metadata, Package};
use crate::tool::{root, sources};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    rooms: BTreeMap<String, Room>,
    external: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Room {
    may: Vec<String>,
    r#unsafe: Unsafe,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Unsafe {
    Never(String),
    Only(BTreeSet<String>),
}

/// Fails with every offence at once.
pub fn check() -> Result<()> {
    let text = std::fs::read_to_string(root().join("layers.toml"))?;
    let table: Table = toml::from_str(&text).context("layers.toml")?;
    let metadata = Metadata::read()?;
    let rooms: BTreeMap<String, &Package> = metadata.members().map(|p| (room(p), p)).collect();

    let mut offences = Vec::new();
    for name in table.rooms.keys().filter(|name| !rooms.contains_key(*name)) {
        offences.push(format!("layers.toml names {name}, which is no room"));
    }
    for (name, package) in &rooms {
        match table.rooms.get(name) {
            Some(rules) => {
                offences.extend(edges(name, package, rules, &table, &rooms));
                offences.extend(unsafe_modules(name, rules)?);
            }
            None => offences.push(format!("room {name} is missing from layers.toml")),
        }
    }
    offences.extend(cycle(&table));
    if !offences.is_empty() {
        bail!("{}", offences.join("\n"));
    }
    Ok(())
}

/// A room is called by its folder: the binary's package has a name of its own.
fn room(package: &Package) -> String {
    match package.name.as_str() {
        "forebay" => "node".into(),
        name => name.trim_start_matches("forebay-").into(),
    }
}

fn edges(
    name: &str,
    package: &Package,
    rules: &Room,
    table: &Table,
    rooms: &BTreeMap<String, &Package>,
) -> Vec<String> {
    let mut offences = Vec::new();
    let mut unused: BTreeSet<&str> = rules.may.iter().map(String::as_str).collect();
    unused.remove("*");
    for dependency in package
        .dependencies
        .iter()
        .filter(|d| d.kind.as_deref() != Some("dev"))
    {
        let ours = rooms
            .iter()
            .find(|(_, other)| other.name == dependency.name);
        if let Some((used, _)) = ours {
            unused.remove(used.as_str());
            if !granted(&rules.may, used) {
                offences.push(format!("{name} may not use {used}"));
            }
        } else {
            match table.external.get(&dependency.name) {
                Some(holders) if granted(holders, name) => {}
                Some(_) => offences.push(format!("{name} may not use {}", dependency.name)),
                None => offences.push(format!(
                    "{name} uses {}, which layers.toml does not know",
                    dependency.name
                )),
            }
        }
    }
    if !unused.is_empty() {
        eprintln!("{name} does not use {unused:?}, which it may");
    }
    offences
}

fn granted(list: &[String], name: &str) -> bool {
    list.iter().any(|one| one == "*" || one == name)
}

/// The modules that expect `unsafe_code` are exactly those of the table.
fn unsafe_modules(name: &str, rules: &Room) -> Result<Vec<String>> {
    let folder = if name == "xtask" {
        "xtask/src".into()
    } else {
        format!("crates/{name}/src")
    };
    let folder = Path::new(&folder);
    let mut found = BTreeSet::new();
    let mut forbids = false;
    for path in sources(".rs")? {
        let Ok(inner) = path.strip_prefix(folder) else {
            continue;
        };
        let text = std::fs::read_to_string(root().join(&path))?;
        forbids |= text.lines().any(|line| line == "#![forbid(unsafe_code)]");
        let code = text
            .split("#[cfg(test)]\nmod tests")
            .next()
            .unwrap_or_default();
        if attribute_allows_unsafe(code) {
            let module = inner.with_extension("");
            let module = module.to_string_lossy();
            found.insert(module.strip_suffix("/mod").unwrap_or(&module).to_owned());
        }
    }
    let (expected, never) = match &rules.r#unsafe {
        Unsafe::Only(modules) => (modules.clone(), false),
        Unsafe::Never(word) if word == "never" => (BTreeSet::new(), true),
        Unsafe::Never(word) => bail!("{name}: unsafe = {word:?} is neither \"never\" nor a list"),
    };
    let mut offences = Vec::new();
    for module in found.symmetric_difference(&expected) {
        offences.push(format!(
            "{name}: unsafe in {module} is in only one of source and table"
        ));
    }
    if never && !forbids {
        offences.push(format!("{name} lacks #![forbid(unsafe_code)]"));
    }
    Ok(offences)
}

/// Whether an `expect` or `allow` attribute names `unsafe_code`, on one line or over several.
fn attribute_allows_unsafe(text: &str) -> bool {
    ["expect(", "allow("].iter().any(|word| {
        text.match_indices(word).any(|(at, _)| {
            text[..at].ends_with('[')
                && text[at + word.len()..]
                    .split(']')
                    .next()
                    .is_some_and(|list| list.contains("unsafe_code"))
        })
    })
}

/// Some room that can reach itself through `may`.
fn cycle(table: &Table) -> Option<String> {
    let concrete = |name: &str| -> Vec<&String> {
        table
            .rooms
            .get(name)
            .map_or(Vec::new(), |r| r.may.iter().filter(|m| *m != "*").collect())
    };
    table.rooms.keys().find_map(|start| {
        let mut todo = concrete(start);
        let mut seen = BTreeSet::new();
        while let Some(next) = todo.pop() {
            if next == start {
                return Some(format!("layers.toml lets {start} reach itself"));
            }
            if seen.insert(next) {
                todo.extend(concrete(next));
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes() {
        for yes in [
            "#![expect(unsafe_code, reason = \"r\")]",
            "#![expect(\n    unsafe_code,\n    reason = \"r\"\n)]",
            "#[allow(dead_code, unsafe_code)]",
        ] {
            assert!(attribute_allows_unsafe(yes), "{yes}");
        }
        for no in [
            "#![forbid(unsafe_code)]",
            "#[expect(dead_code)] // unsafe_code",
            "expect(unsafe_code)",
        ] {
            assert!(!attribute_allows_unsafe(no), "{no}");
        }
    }

    #[test]
    fn cycles() {
        let table = |text: &str| -> Table { toml::from_str(text).expect("a table") };
        let good =
            "[rooms]\na={may=[],unsafe=\"never\"}\nb={may=[\"a\"],unsafe=\"never\"}\n[external]";
        let bad = "[rooms]\na={may=[\"b\"],unsafe=\"never\"}\nb={may=[\"a\"],unsafe=\"never\"}\n[external]";
        assert!(cycle(&table(good)).is_none());
        assert!(cycle(&table(bad)).is_some());
    }
}
