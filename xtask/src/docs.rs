//! Documents and the plain form of sources: links lead somewhere, the API is documented, files
//! stay short, every dependency has its reason written down.

use std::path::Path;

use anyhow::{Result, bail};

use crate::metadata::Metadata;
use crate::tool::{cargo, root, run, sources};

/// Lines before a file's tests from which it is shown, and from which it fails.
const LINES_SHOWN: usize = 600;
const LINES_MAX: usize = 1_000;

/// Markdown, dependency reasons, and the API documentation without a warning.
pub fn check() -> Result<()> {
    let mut offences = links()?;
    offences.extend(reasons()?);
    if !offences.is_empty() {
        bail!("{}", offences.join("\n"));
    }
    run(cargo()
        .args(["doc", "--quiet", "--no-deps", "--workspace", "--locked"])
        .env("RUSTDOCFLAGS", "-D warnings"))
}

/// Length and alphabet of every Rust file that people write.
pub fn check_sources() -> Result<()> {
    let mut offences = Vec::new();
    for path in sources(".rs")? {
        if path.iter().any(|folder| folder == "generated") {
            continue;
        }
        let shown = path.display();
        let text = std::fs::read_to_string(root().join(&path))?;
        let lines = text
            .lines()
            .take_while(|line| !line.trim_start().starts_with("mod tests"))
            .count();
        if lines > LINES_MAX {
            offences.push(format!(
                "{shown}: {lines} lines before its tests, at most {LINES_MAX}"
            ));
        } else if lines > LINES_SHOWN {
            eprintln!("{shown}: {lines} lines before its tests");
        }
        if let Some(at) = text.lines().position(|line| !line.is_ascii()) {
            offences.push(format!("{shown}:{}: not ASCII", at + 1));
        }
    }
    if !offences.is_empty() {
        bail!("{}", offences.join("\n"));
    }
    Ok(())
}

/// Links in markdown to files that do not exist.
fn links() -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for path in sources(".md")? {
        let text = std::fs::read_to_string(root().join(&path))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for target in link_targets(&text) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !root().join(folder).join(file).exists() {
                broken.push(format!("{}: {target} does not exist", path.display()));
            }
        }
    }
    Ok(broken)
}

/// Targets of `[text](target)` outside code, without those that name another host.
fn link_targets(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Odd pieces of a line split at back-quotes are inline code.
        for prose in line.split('`').step_by(2) {
            for (at, _) in prose.match_indices("](") {
                let rest = &prose[at + 2..];
                let target = rest.split([')', ' ']).next().unwrap_or_default();
                if !target.contains("://") && !target.starts_with("mailto:") {
                    found.push(target);
                }
            }
        }
    }
    found
}

/// Direct dependencies that `docs/dependencies.md` gives no reason for.
fn reasons() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root().join("docs/dependencies.md"))?;
    let metadata = Metadata::read()?;
    let mut missing: Vec<String> = metadata
        .members()
        .flat_map(|package| &package.dependencies)
        .map(|dependency| dependency.name.as_str())
        .filter(|name| !name.starts_with("forebay") && !text.contains(&format!("`{name}`")))
        .map(|name| format!("docs/dependencies.md gives no reason for {name}"))
        .collect();
    missing.sort();
    missing.dedup();
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::link_targets;

    #[test]
    fn links_outside_code() {
        let text = "[a](b.md) ![c](d.svg \"t\") [e](x://y) `[f](g)`\n```\n[h](i)\n```\n[j](k#l)";
        assert_eq!(link_targets(text), ["b.md", "d.svg", "k#l"]);
    }
}
