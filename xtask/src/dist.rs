//! What is shipped: the profile `dist` with functions compiled rather than interpreted, laid out by a profile of what the program does under the loads of the published figures.
//!
//! Three steps: an instrumented program, every load of ours on it once, and the program built with what that counted. What is laid
//! out so does a tenth more where the kernel has little part (small values over shared memory), and as much as before where it has most
//! (small requests over TCP). The counts belong to one compiler and one state of the sources, so they are kept
//! under `target/` and made anew each time.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::bench;
use crate::tool::{cargo, command, installed, output, run, target};

/// Builds it; says where it is.
pub fn run_and_tell() -> Result<bool> {
    println!("{}", build()?.display());
    Ok(true)
}

/// Builds it.
pub fn build() -> Result<PathBuf> {
    let compiler = Compiler::found()?;
    let folder = target().join("guided");
    let counts = folder.join("counts");
    if counts.exists() {
        std::fs::remove_dir_all(&counts)?;
    }
    std::fs::create_dir_all(&counts)?;
    eprintln!("1 of 3: the instrumented program");
    // Counting is done before a program is linked as a whole: the cheaper profile counts the same.
    let flag = format!("-Cprofile-generate={}", counts.display());
    let counting = compiler.program(&folder.join("counting"), "release", &flag)?;
    eprintln!("2 of 3: its loads");
    bench::practise(&counting)?;
    let merged = folder.join("merged.profdata");
    run(command(&compiler.profdata)
        .arg("merge")
        .arg("--output")
        .args([&merged, &counts]))?;
    eprintln!("3 of 3: the program");
    let flag = format!("-Cprofile-use={}", merged.display());
    compiler.program(&folder, "dist", &flag)
}

struct Compiler {
    /// Naming it keeps flags from programs that run while building.
    host: String,
    /// Merges counts; it has to be of the compiler's own version.
    profdata: PathBuf,
}

impl Compiler {
    fn found() -> Result<Compiler> {
        let about = output(command("rustc").arg("-vV"))?;
        let host = about.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.context("rustc does not tell its host")?.to_owned();
        let sysroot = output(command("rustc").args(["--print", "sysroot"]))?;
        let tools = Path::new(sysroot.trim()).join("lib/rustlib").join(&host);
        let profdata = tools.join("bin/llvm-profdata");
        if !profdata.exists() && installed("rustup") {
            run(command("rustup").args(["component", "add", "llvm-tools"]))?;
        }
        if !profdata.exists() {
            bail!("llvm-profdata is missing: rustup component add llvm-tools");
        }
        Ok(Compiler { host, profdata })
    }

    fn program(&self, folder: &Path, profile: &str, flag: &str) -> Result<PathBuf> {
        run(cargo()
            .args(["build", "--locked", "--package", "forebay"])
            .args(["--features", "wasm-jit"])
            .args(["--profile", profile, "--target", &self.host])
            .arg("--target-dir")
            .arg(folder)
            .env("RUSTFLAGS", flag))?;
        Ok(folder.join(&self.host).join(profile).join("forebay"))
    }
}
