//! The code and descriptors made from the published `.proto` files. They are committed, so that no build needs a compiler of
//! that language, and a check makes them again and compares.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::tool::{root, target};

const SOURCES: &str = "crates/api/proto";
const PACKAGE: &str = "forebay/v1";
const OUTPUT: &str = "crates/api/src/generated";
const DESCRIPTORS: &str = "descriptors.bin";

/// Writes them.
pub fn run() -> Result<bool> {
    let folder = root().join(OUTPUT);
    std::fs::create_dir_all(&folder)?;
    for (name, bytes) in make()? {
        std::fs::write(folder.join(&name), bytes)?;
        println!("{OUTPUT}/{name}");
    }
    Ok(true)
}

/// Fails when what is committed is not what would be written.
pub fn check() -> Result<()> {
    for (name, bytes) in make()? {
        let path = root().join(OUTPUT).join(&name);
        let there = std::fs::read(&path).with_context(|| path.display().to_string())?;
        if there != bytes {
            bail!("{OUTPUT}/{name} is not what the .proto files make: run `cargo xtask generate`");
        }
    }
    Ok(())
}

/// File names and contents.
fn make() -> Result<Vec<(String, Vec<u8>)>> {
    let sources = root().join(SOURCES);
    let mut files: Vec<PathBuf> = std::fs::read_dir(sources.join(PACKAGE))?
        .map(|entry| entry.map(|entry| Path::new(PACKAGE).join(entry.file_name())))
        .collect::<std::io::Result<_>>()?;
    files.sort();

    let mut compiler = protox::Compiler::new([sources])?;
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(&files)?;
    let scratch = target().join("generated");
    std::fs::create_dir_all(&scratch)?;
    tonic_prost_build::configure()
        .out_dir(&scratch)
        .bytes(".")
        .btree_map(".")
        .codec_path("crate::Codec")
        .compile_fds(compiler.file_descriptor_set())?;
    let name = format!("{}.rs", PACKAGE.replace('/', "."));
    let code = std::fs::read(scratch.join(&name))?;
    ensure!(!code.is_empty(), "{name} is empty");
    // Reflection has no use for comments.
    let descriptors = compiler
        .include_source_info(false)
        .encode_file_descriptor_set();
    Ok(vec![(name, code), (DESCRIPTORS.to_owned(), descriptors)])
}
