//! `cargo xtask modules`: the WebAssembly modules of `modules/`, built; none of them is committed.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Result, anyhow};

use crate::steps::{Unavailable, unfetched};
use crate::tool::{cargo, command, installed, output, target};

/// What they are built for: no system, no imports but the host's.
const TRIPLE: &str = "wasm32-unknown-unknown";
/// Their workspace.
const MANIFEST: &str = "modules/Cargo.toml";

/// Builds them and tells where and how long they are.
pub fn run() -> Result<bool> {
    prepare()?;
    let folder = build()?;
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "wasm") {
            println!("{:>9}  {}", std::fs::metadata(&path)?.len(), path.display());
        }
    }
    Ok(true)
}

/// Builds them; the folder in which they lie.
pub fn build() -> Result<PathBuf> {
    crate::tool::run(
        cargo()
            .args([
                "build",
                "--quiet",
                "--release",
                "--locked",
                "--target",
                TRIPLE,
            ])
            .args(["--manifest-path", MANIFEST, "--target-dir"])
            .arg(target()),
    )?;
    Ok(folder())
}

/// Where they lie once they are built.
pub fn folder() -> PathBuf {
    target().join(TRIPLE).join("release")
}

/// Makes sure that the compiler has what it needs, and fetches what they are made of.
///
/// # Errors
/// [`Unavailable`] where the compiler cannot be given what it needs; why something could not be fetched.
pub fn prepare() -> Result<()> {
    prepare_compiler()?;
    let fetch = ["fetch", "--quiet", "--locked", "--target", TRIPLE];
    crate::tool::run(cargo().args(fetch).args(["--manifest-path", MANIFEST])).map_err(unfetched)
}

fn prepare_compiler() -> Result<()> {
    let sysroot = output(command("rustc").args(["--print", "sysroot"]))?;
    let library = PathBuf::from(sysroot.trim())
        .join("lib/rustlib")
        .join(TRIPLE);
    if library.is_dir() {
        return Ok(());
    }
    if !installed("rustup") {
        let why = format!("the compiler has no {TRIPLE}, and there is no rustup to add it");
        return Err(Unavailable(why).into());
    }
    let added = command("rustup")
        .args(["target", "add", TRIPLE])
        .stdout(Stdio::null())
        .status()?;
    match added.success() {
        true => Ok(()),
        false => Err(unfetched(anyhow!(
            "`rustup target add {TRIPLE}` failed: {added}"
        ))),
    }
}
