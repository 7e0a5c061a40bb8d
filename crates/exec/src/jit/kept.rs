//! Compiled modules on disk, so that the next process need not compile them again.
//!
//! A file is machine code that this process will run: it is as trusted as the program itself. So the directory and every file in it
//! belong to whoever runs the server, as the data does, and are not used when others may write to them or own them, nor through
//! symbolic links; a checksum finds what was damaged, and wasmtime refuses what another version of it made, or for another machine.
//! Whoever removes the directory costs the next calls some time.
#![expect(
    unsafe_code,
    reason = "code that was compiled before is run as if it had been compiled now"
)]

use std::fs::{self, DirBuilder, DirEntry, File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay_store::ModuleDigest;
use wasmtime::{Engine, Module};

use crate::bulk::crc64nvme;

/// Format, digest, length of the module, checksum of the code.
const MAGIC: &[u8; 8] = b"fbexec1\n";
const HEAD_BYTES: usize = 8 + 32 + 8 + 8;
/// Of more files than this the oldest go.
const FILES_MAX: usize = 1024;
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// It belongs to the user whose rights this process has, or to root when that is to be hidden.
const THIS_PROCESS: &str = "/proc/self";

/// A directory of compiled modules.
pub(super) struct Kept {
    folder: PathBuf,
    /// Whose directory and files are trusted.
    user: u32,
    /// Tells engines apart whose code differs.
    engine: u64,
}

impl Kept {
    /// The directory, made when it is missing; nothing when it cannot be used.
    pub fn open(folder: PathBuf, engine: &Engine) -> Option<Kept> {
        let user = match fs::metadata(THIS_PROCESS) {
            Ok(found) => found.uid(),
            Err(error) => {
                tracing::warn!(%error, "compiled modules are not kept: nothing says who runs this");
                return None;
            }
        };
        Kept::of(folder, engine, user)
    }

    /// The same, for a user.
    fn of(folder: PathBuf, engine: &Engine, user: u32) -> Option<Kept> {
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let kept = Kept {
            folder,
            user,
            engine: hasher.finish(),
        };
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&kept.folder);
        match made.and_then(|()| kept.check_folder()) {
            Ok(()) => Some(kept),
            Err(error) => {
                tracing::warn!(folder = %kept.folder.display(), %error, "compiled modules are not kept");
                None
            }
        }
    }

    /// Fails when another user could have put something into the directory.
    fn check_folder(&self) -> Result<()> {
        let found = fs::symlink_metadata(&self.folder)?;
        match found.is_dir() && self.owns(&found) {
            true => Ok(()),
            false => Err(not_ours()),
        }
    }

    /// Whether nobody else may change it.
    fn owns(&self, found: &Metadata) -> bool {
        found.uid() == self.user && found.mode() & WRITABLE_BY_OTHERS == 0
    }

    /// All of a file that nobody else can have written.
    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        self.check_folder()?;
        let named = fs::symlink_metadata(path)?;
        // Opening what is no file may take forever.
        if !named.is_file() {
            return Err(not_ours());
        }
        let mut file = File::open(path)?;
        let opened = file.metadata()?;
        // Another one now is one that a link leads to.
        let same = (named.dev(), named.ino()) == (opened.dev(), opened.ino());
        if !same || !self.owns(&opened) {
            return Err(not_ours());
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn path(&self, digest: &ModuleDigest) -> PathBuf {
        self.folder.join(format!("{digest}-{:016x}", self.engine))
    }

    /// The module of this digest, and how long it was, if it is here and whole.
    pub fn load(&self, engine: &Engine, digest: &ModuleDigest) -> Option<(Module, u64)> {
        let path = self.path(digest);
        let file = match self.read(&path) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "a compiled module is not used");
                }
                return None;
            }
        };
        let loaded = parse(&file, digest).and_then(|(code, bytes)| {
            // SAFETY: the code was written by `save`, from a module that wasmtime compiled: the directory and the file belong to
            // whoever runs this program and are writable by nobody else, and the checksum says that the bytes are still those.
            // wasmtime checks that they are for this engine.
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
    ) -> Result<()> {
        self.check_folder()?;
        self.make_room()?;
        let code = module.serialize().map_err(Error::other)?;
        let unfinished = path.with_extension("new");
        let mut file = create(&unfinished)?;
        file.write_all(MAGIC)?;
        file.write_all(&digest.0)?;
        file.write_all(&bytes.to_le_bytes())?;
        file.write_all(&crc64nvme(0, &code).to_le_bytes())?;
        file.write_all(&code)?;
        fs::rename(unfinished, path)
    }

    /// Removes the oldest files until there may be one more.
    fn make_room(&self) -> Result<()> {
        let files: Vec<DirEntry> = fs::read_dir(&self.folder)?.collect::<Result<_>>()?;
        let Some(surplus) = (files.len() + 1).checked_sub(FILES_MAX) else {
            return Ok(());
        };
        let mut files: Vec<(SystemTime, PathBuf)> = files
            .iter()
            .map(|file| Ok((file.metadata()?.modified()?, file.path())))
            .collect::<Result<_>>()?;
        files.sort_unstable();
        files
            .iter()
            .take(surplus)
            .try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// A new file that nobody else may look into; what a process left there when it ended early goes.
fn create(path: &Path) -> Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

fn not_ours() -> Error {
    let words = "it is no plain file or directory of this user, or others may write to it";
    Error::new(ErrorKind::PermissionDenied, words)
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
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Duration;

    use super::*;

    const DIGEST: ModuleDigest = ModuleDigest([7; 32]);

    fn compiled(engine: &Engine) -> (Module, usize) {
        let wasm = wat::parse_str(r#"(module (func (export "run") (result i32) (i32.const 0)))"#);
        let wasm = wasm.unwrap();
        (Module::new(engine, &wasm).unwrap(), wasm.len())
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn whatever_is_damaged_is_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let kept = Kept::open(folder.path().join("kept"), &engine).unwrap();
        let (module, len) = compiled(&engine);
        let digest = DIGEST;
        assert!(kept.load(&engine, &digest).is_none());
        kept.save(&digest, &module, len);
        let (_, bytes) = kept.load(&engine, &digest).unwrap();
        assert_eq!(bytes, len as u64);

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
    fn a_directory_of_others_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let own = folder.path().join("own");
        let kept = Kept::open(own.clone(), &engine).unwrap();
        assert!(Kept::of(own.clone(), &engine, kept.user + 1).is_none());
        let link = folder.path().join("link");
        symlink(&own, &link).unwrap();
        assert!(Kept::open(link, &engine).is_none());
        // What is opened up later is not used from then on.
        let (module, len) = compiled(&engine);
        kept.save(&DIGEST, &module, len);
        assert!(kept.load(&engine, &DIGEST).is_some());
        set_mode(&own, 0o777);
        assert!(kept.load(&engine, &DIGEST).is_none());
        assert!(Kept::open(own, &engine).is_none());
    }

    #[test]
    fn a_file_of_others_is_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let kept = Kept::open(folder.path().join("kept"), &engine).unwrap();
        let (module, len) = compiled(&engine);
        kept.save(&DIGEST, &module, len);
        let path = kept.path(&DIGEST);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        for (mode, used) in [(0o620, false), (0o602, false), (0o644, true)] {
            set_mode(&path, mode);
            assert_eq!(kept.load(&engine, &DIGEST).is_some(), used, "{mode:o}");
        }
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(kept.load(&engine, &DIGEST).is_none());
        kept.save(&DIGEST, &module, len);
        assert!(kept.load(&engine, &DIGEST).is_some());
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn a_full_directory_loses_its_oldest_file() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let kept = Kept::open(folder.path().join("kept"), &engine).unwrap();
        let file = |number: usize| kept.folder.join(format!("{number}"));
        for number in 0..FILES_MAX {
            let old = SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64 + 1);
            File::create(file(number))
                .unwrap()
                .set_modified(old)
                .unwrap();
        }
        let (module, len) = compiled(&engine);
        kept.save(&DIGEST, &module, len);
        assert!(kept.load(&engine, &DIGEST).is_some());
        assert!(!file(0).exists() && file(1).exists());
        let there = fs::read_dir(&kept.folder).unwrap().count();
        assert_eq!(there, FILES_MAX);
    }

    #[test]
    fn a_directory_that_others_write_to_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o777);
        assert!(Kept::open(folder.path().to_owned(), &Engine::default()).is_none());
    }
}
