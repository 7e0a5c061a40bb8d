//! Compiled modules on disk, so that the next process need not compile them again.
//!
//! A file is machine code that this process will run: it is as trusted as the program itself. So the directory belongs to whoever
//! runs the server, as the data does, and is not used when others may write to it; a checksum finds what was damaged, and wasmtime
//! refuses what another version of it made, or for another machine. Whoever removes the directory costs the next calls some time.
#![expect(
    unsafe_code,
    reason = "code that was compiled before is run as if it had been compiled now"
)]

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_store::ModuleDigest;
use wasmtime::{Engine, Module};

use crate::bulk::crc64nvme;

/// Format, digest, length of the module, checksum of the code.
const MAGIC: &[u8; 8] = b"fbexec1\n";
const HEAD_BYTES: usize = 8 + 32 + 8 + 8;
/// More files than this are not kept.
const FILES_MAX: usize = 1024;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A directory of compiled modules.
pub(super) struct Kept {
    folder: PathBuf,
    /// Tells engines apart whose code differs.
    engine: u64,
}

impl Kept {
    /// The directory, made when it is missing; nothing when it cannot be used.
    pub fn open(folder: PathBuf, engine: &Engine) -> Option<Kept> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder);
        let usable = made
            .and_then(|()| fs::metadata(&folder))
            .map(|found| found.mode() & WRITABLE_BY_OTHERS == 0);
        if !matches!(usable, Ok(true)) {
            tracing::warn!(folder = %folder.display(), "compiled modules are not kept: others may write there");
            return None;
        }
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Some(Kept {
            folder,
            engine: hasher.finish(),
        })
    }

    fn path(&self, digest: &ModuleDigest) -> PathBuf {
        self.folder.join(format!("{digest}-{:016x}", self.engine))
    }

    /// The module of this digest, and how long it was, if it is here and whole.
    pub fn load(&self, engine: &Engine, digest: &ModuleDigest) -> Option<(Module, u64)> {
        let path = self.path(digest);
        let file = fs::read(&path).ok()?;
        let loaded = parse(&file, digest).and_then(|(code, bytes)| {
            // SAFETY: the code was written by `save`, from a module that wasmtime compiled: the directory is writable by nobody but
            // whoever runs this program, and the checksum says that the bytes are still those. wasmtime checks that they are for
            // this engine.
            let module = unsafe { Module::deserialize(engine, code) };
            Some((module.ok()?, bytes))
        });
        if loaded.is_none() {
            tracing::warn!(path = %path.display(), "a compiled module is damaged and is made again");
        }
        loaded
    }

    /// Keeps a module; when that fails, the next process compiles again.
    pub fn save(&self, digest: &ModuleDigest, module: &Module, bytes: usize) {
        let path = self.path(digest);
        if let Err(error) = self.try_save(&path, digest, module, bytes as u64) {
            tracing::warn!(path = %path.display(), %error, "a compiled module is not kept");
        }
    }

    fn try_save(
        &self,
        path: &Path,
        digest: &ModuleDigest,
        module: &Module,
        bytes: u64,
    ) -> std::io::Result<()> {
        if fs::read_dir(&self.folder)?.count() >= FILES_MAX {
            return Err(std::io::Error::other("there are too many"));
        }
        let code = module.serialize().map_err(std::io::Error::other)?;
        let unfinished = path.with_extension("new");
        let mut file = fs::File::create(&unfinished)?;
        file.write_all(MAGIC)?;
        file.write_all(&digest.0)?;
        file.write_all(&bytes.to_le_bytes())?;
        file.write_all(&crc64nvme(0, &code).to_le_bytes())?;
        file.write_all(&code)?;
        fs::rename(unfinished, path)
    }
}

/// The code in a file, and how long its module was; `None` when it is damaged or another's.
fn parse<'f>(file: &'f [u8], digest: &ModuleDigest) -> Option<(&'f [u8], u64)> {
    let (head, code) = file.split_at_checked(HEAD_BYTES)?;
    let head = head.strip_prefix(MAGIC)?.strip_prefix(&digest.0)?;
    let (bytes, sum) = head.split_first_chunk()?;
    let sum = u64::from_le_bytes(*sum.first_chunk()?);
    (crc64nvme(0, code) == sum).then(|| (code, u64::from_le_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_damaged_is_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let kept = Kept::open(folder.path().join("kept"), &engine).unwrap();
        let wasm = wat::parse_str(r#"(module (func (export "run") (result i32) (i32.const 0)))"#);
        let wasm = wasm.unwrap();
        let module = Module::new(&engine, &wasm).unwrap();
        let digest = ModuleDigest([7; 32]);
        assert!(kept.load(&engine, &digest).is_none());
        kept.save(&digest, &module, wasm.len());
        let (_, bytes) = kept.load(&engine, &digest).unwrap();
        assert_eq!(bytes, wasm.len() as u64);

        let whole = fs::read(kept.path(&digest)).unwrap();
        for at in (0..whole.len())
            .step_by(whole.len() / 97 + 1)
            .chain([0, 8, 40, 48, 56])
        {
            if (40..48).contains(&at) {
                // How long the module was, which decides nothing but when it is forgotten.
                continue;
            }
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(kept.path(&digest), &damaged).unwrap();
            assert!(kept.load(&engine, &digest).is_none(), "byte {at}");
        }
        for len in [0, 7, 55, 56, whole.len() - 1] {
            fs::write(kept.path(&digest), &whole[..len]).unwrap();
            assert!(kept.load(&engine, &digest).is_none(), "{len} bytes");
        }
        let other = ModuleDigest([8; 32]);
        fs::write(kept.path(&other), &whole).unwrap();
        assert!(kept.load(&engine, &other).is_none());
    }

    #[test]
    fn a_directory_that_others_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Kept::open(folder.path().to_owned(), &Engine::default()).is_none());
    }
}
