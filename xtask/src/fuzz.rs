//! `cargo xtask fuzz`: every fuzzer for some seconds, from the kept seeds.
//!
//! What a fuzzer adds to its corpus stays under `target/`; what it breaks the code with is left there too, to become a seed
//! and a named test.

use anyhow::{Result, bail};

use crate::steps::unfetched;
use crate::tool::{cargo, installed, output, root, run as run_tool, target};

/// Their workspace.
const MANIFEST: &str = "fuzz/Cargo.toml";

/// Runs every target, or only the one named, and tells which of them broke.
pub fn run(seconds: u32, only: Option<&str>) -> Result<bool> {
    if !installed("cargo-fuzz") {
        bail!("there is no cargo-fuzz; `cargo install cargo-fuzz --locked` installs it");
    }
    let listed = output(cargo().args(["fuzz", "list"]))?;
    let targets: Vec<&str> = listed
        .split_whitespace()
        .filter(|name| only.is_none_or(|only| only == *name))
        .collect();
    if targets.is_empty() {
        bail!("there is no target {only:?}; there are {listed}");
    }
    let mut broken = Vec::new();
    for name in &targets {
        eprintln!("==> {name}");
        if let Err(error) = fuzz(name, seconds) {
            eprintln!("{name}: {error:#}");
            broken.push(*name);
        }
    }
    println!("{} targets, {} broken", targets.len(), broken.len());
    Ok(broken.is_empty())
}

/// Compiles every target, and what the rooms have for fuzzers alone.
///
/// # Errors
/// Why what they take could not be fetched; what does not compile.
pub fn compile() -> Result<()> {
    // What is fuzzed is made of what is shipped.
    std::fs::copy(root().join("Cargo.lock"), root().join("fuzz/Cargo.lock"))?;
    let fetch = ["fetch", "--quiet", "--manifest-path", MANIFEST];
    run_tool(cargo().args(fetch)).map_err(unfetched)?;
    run_tool(
        cargo()
            .args(["check", "--quiet", "--offline", "--manifest-path", MANIFEST])
            .arg("--target-dir")
            .arg(target().join("fuzz").join("check"))
            .env("RUSTFLAGS", "--cfg fuzzing")
            // Nothing is linked: libFuzzer itself, which takes a C++ compiler, need not be there.
            .env("CUSTOM_LIBFUZZER_PATH", "/none/libFuzzer.a"),
    )
}

fn fuzz(name: &str, seconds: u32) -> Result<()> {
    let work = target().join("fuzz");
    let found = work.join("corpus").join(name);
    let artifacts = work.join("artifacts").join(name);
    std::fs::create_dir_all(&found)?;
    std::fs::create_dir_all(&artifacts)?;
    // Without a sanitizer the stable toolchain will do, and what is fuzzed forbids unsafe code.
    run_tool(
        cargo()
            .args(["fuzz", "run", "--sanitizer", "none", "--target-dir"])
            .arg(&work)
            .arg(name)
            .arg(&found)
            .arg(root().join("fuzz/corpus").join(name))
            .args(["--", "-rss_limit_mb=2048", "-timeout=10", "-verbosity=0"])
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display())),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The names in a folder, without the endings of files.
    fn names(folder: &str) -> BTreeSet<String> {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn every_target_is_in_the_manifest_and_has_seeds() {
        let text = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        let manifest: toml::Table = toml::from_str(&text).unwrap();
        let programs = manifest["bin"].as_array().unwrap().iter();
        let listed: BTreeSet<String> = programs
            .map(|program| program["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(names("fuzz/fuzz_targets"), listed);
        assert_eq!(names("fuzz/corpus"), listed);
        for name in listed {
            let seeds = names(&format!("fuzz/corpus/{name}"));
            assert!(seeds.len() >= 5, "{name} has {} seeds", seeds.len());
        }
    }
}
