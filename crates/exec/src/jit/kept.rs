//! Compiled modules on disk, and back: wasmtime refuses what another version of it made, or for another machine.
#![expect(
    unsafe_code,
    reason = "code that was compiled before is run as if it had been compiled now"
)]

use forebay_store::ModuleDigest;
use wasmtime::{Engine, Module};

use crate::executor::Keeping;
use crate::kept::{About, Folder};

/// A directory of compiled modules.
pub(super) struct Kept(Folder);

impl Kept {
    /// The directory, made when it is missing; nothing when it cannot be used.
    pub fn open(keeping: Keeping, engine: &Engine) -> Option<Kept> {
        Folder::open(keeping, &engine.precompile_compatibility_hash()).map(Kept)
    }

    /// The module of this digest, and what is known of it, if it is here and whole.
    pub fn load(&self, engine: &Engine, digest: &ModuleDigest) -> Option<(Module, About)> {
        let kept = self.0.load(digest)?;
        // SAFETY: the code was written by `save`, from a module that wasmtime compiled: the directory and the file belong to
        // whoever runs this program and are writable by nobody else, and the checksum says that the bytes are still those.
        // wasmtime checks that they are for this engine.
        let module = unsafe { Module::deserialize(engine, kept.code()) };
        match module {
            Ok(module) => Some((module, kept.about)),
            Err(error) => {
                tracing::warn!(%digest, %error, "a compiled module is for no such engine and is made again");
                None
            }
        }
    }

    /// Keeps a module; when that fails, the next process compiles again.
    pub fn save(&self, digest: &ModuleDigest, module: &Module, about: About) {
        match module.serialize() {
            Ok(code) => self.0.save(digest, &code, about),
            Err(error) => tracing::warn!(%digest, %error, "a compiled module is not kept"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_back_to_an_engine_like_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let keeping = Keeping {
            folder: folder.path().join("kept"),
            spare_bytes: 0,
        };
        let wasm = wat::parse_str(r#"(module (func (export "run") (result i32) (i32.const 0)))"#);
        let wasm = wasm.unwrap();
        let digest = ModuleDigest([7; 32]);
        let engine = Engine::default();
        let kept = Kept::open(keeping.clone(), &engine).unwrap();
        assert!(kept.load(&engine, &digest).is_none());
        let about = About {
            bytes: wasm.len() as u64,
            longest: 4,
        };
        kept.save(&digest, &Module::new(&engine, &wasm).unwrap(), about);
        let (module, found) = kept.load(&engine, &digest).unwrap();
        assert_eq!(found, about);
        assert!(module.get_export("run").is_some());
        // What has its name and checksum, and is no code.
        kept.0.save(&digest, b"no code", about);
        assert!(kept.load(&engine, &digest).is_none());
    }
}
