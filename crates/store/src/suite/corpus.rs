//! Seeds of fuzzers, made by the encoders themselves and kept under `fuzz/corpus`.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Where the seeds of a fuzz target are.
pub fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target)
}

/// Holds a seed to its file, so that a change of an encoding shows as a changed file. `FOREBAY_BLESS=1` writes it anew.
///
/// # Panics
/// When the file holds something else, or cannot be written.
pub fn check_seed(target: &str, name: &str, seed: &[u8]) {
    let folder = corpus(target);
    let file = folder.join(name);
    if env::var_os("FOREBAY_BLESS").is_some() {
        fs::create_dir_all(&folder).expect("a folder for seeds");
        fs::write(&file, seed).expect("a file for the seed");
    }
    let kept = fs::read(&file).unwrap_or_default();
    assert!(kept == seed, "{target}/{name} is not what is encoded today");
}
