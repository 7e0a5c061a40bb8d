//! A directory of compiled modules, so that the next process need not compile them again.
//!
//! A file is machine code that this process will run: it is as trusted as the program itself. So the directory and every file in it
//! belong to whoever runs the server, as the data does, and are not used when others may write to them or own them, nor through
//! symbolic links; a checksum finds what was damaged. Whoever removes the directory costs the next calls some time.
//!
//! The file system may be that of a store, which needs room there even for deletes: a module is not kept when that would leave less than
//! was said, and what could not be written whole goes at once.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_io::Disk;
use forebay_io::files::Directory;
use forebay_store::ModuleDigest;
use parking_lot::Mutex;

use crate::bulk::crc64nvme;
use crate::executor::Keeping;

/// Format, digest, length of the module and of its longest function, checksum of the code.
const MAGIC: &[u8; 8] = b"fbexec2\n";
const HEAD_BYTES: usize = 8 + 32 + 8 + 8 + 8;
/// Of more files than this the oldest go, and of more bytes.
const FILES_MAX: usize = 1024;
const BYTES_MAX: u64 = 1 << 30;
/// The name of a file: its digest, a hyphen, its engine; and behind that, as long as it is not whole, an extension.
const DIGEST_CHARS: usize = 64;
const ENGINE_CHARS: usize = 16;
const UNFINISHED: &str = "new";
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// It belongs to the user whose rights this process has, or to root when that is to be hidden.
const THIS_PROCESS: &str = "/proc/self";

/// The directory.
pub(crate) struct Folder {
    path: PathBuf,
    /// Whose directory and files are trusted.
    user: u32,
    /// Tells engines apart whose code differs, and formats.
    engine: u64,
    /// What is left free.
    spare_bytes: u64,
    /// Held by whoever puts a file there: any other that is not whole was left behind.
    saving: Mutex<()>,
}

/// What is known of a module that was compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct About {
    /// How long it is.
    pub bytes: u64,
    /// How many bytes of code the longest of its functions has.
    pub longest: u64,
}

/// What was kept of a module.
pub(crate) struct Kept {
    file: Vec<u8>,
    pub about: About,
}

impl Kept {
    /// What it was compiled to.
    pub fn code(&self) -> &[u8] {
        self.file.get(HEAD_BYTES..).unwrap_or_default()
    }

    /// What is in a file; `None` when it is damaged or another's.
    fn parse(file: Vec<u8>, digest: &ModuleDigest) -> Option<Kept> {
        let (head, code) = file.split_at_checked(HEAD_BYTES)?;
        let head = head.strip_prefix(MAGIC)?.strip_prefix(&digest.0)?;
        let (bytes, head) = head.split_first_chunk()?;
        let (longest, sum) = head.split_first_chunk()?;
        let about = About {
            bytes: u64::from_le_bytes(*bytes),
            longest: u64::from_le_bytes(*longest),
        };
        let sum = u64::from_le_bytes(*sum.first_chunk()?);
        (crc64nvme(0, code) == sum).then_some(Kept { file, about })
    }
}

impl Folder {
    /// The directory, made when it is missing; nothing when it cannot be used. Code for another `engine` is of no use to this one.
    pub fn open(keeping: Keeping, engine: &impl Hash) -> Option<Folder> {
        let user = match fs::metadata(THIS_PROCESS) {
            Ok(found) => found.uid(),
            Err(error) => {
                tracing::warn!(%error, "compiled modules are not kept: nothing says who runs this");
                return None;
            }
        };
        Folder::of(keeping, engine, user)
    }

    /// The same, for a user.
    fn of(keeping: Keeping, engine: &impl Hash, user: u32) -> Option<Folder> {
        let mut hasher = DefaultHasher::new();
        MAGIC.hash(&mut hasher);
        engine.hash(&mut hasher);
        let folder = Folder {
            path: keeping.folder,
            user,
            engine: hasher.finish(),
            spare_bytes: keeping.spare_bytes,
            saving: Mutex::default(),
        };
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder.path);
        match made.and_then(|()| folder.check()) {
            Ok(()) => Some(folder),
            Err(error) => {
                tracing::warn!(folder = %folder.path.display(), %error, "compiled modules are not kept");
                None
            }
        }
    }

    /// Fails when another user could have put something into the directory.
    fn check(&self) -> Result<()> {
        let found = fs::symlink_metadata(&self.path)?;
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
        self.check()?;
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

    /// What the name of a file of this engine's ends in.
    fn suffix(&self) -> String {
        format!("-{:016x}", self.engine)
    }

    fn place(&self, digest: &ModuleDigest) -> PathBuf {
        self.path.join(format!("{digest}{}", self.suffix()))
    }

    /// What is kept of this digest, if it is here and whole: [`save`](Folder::save) wrote it, on behalf of whoever runs this program.
    pub fn load(&self, digest: &ModuleDigest) -> Option<Kept> {
        let path = self.place(digest);
        let file = match self.read(&path) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "a compiled module is not used");
                }
                return None;
            }
        };
        let kept = Kept::parse(file, digest);
        if kept.is_none() {
            tracing::warn!(path = %path.display(), "a compiled module is damaged and is made again");
        }
        kept
    }

    /// Keeps what a module was compiled to; when that fails, the next process compiles again.
    pub fn save(&self, digest: &ModuleDigest, code: &[u8], about: About) {
        let path = self.place(digest);
        if let Err(error) = self.try_save(&path, digest, code, about) {
            tracing::warn!(path = %path.display(), %error, "a compiled module is not kept");
        }
    }

    fn try_save(
        &self,
        path: &Path,
        digest: &ModuleDigest,
        code: &[u8],
        about: About,
    ) -> Result<()> {
        self.check()?;
        let _saving = self.saving.lock();
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&digest.0);
        head.extend_from_slice(&about.bytes.to_le_bytes());
        head.extend_from_slice(&about.longest.to_le_bytes());
        head.extend_from_slice(&crc64nvme(0, code).to_le_bytes());
        let len = (HEAD_BYTES + code.len()) as u64;
        self.make_room(len)?;
        self.check_space(len)?;
        let unfinished = path.with_extension(UNFINISHED);
        let written = write(&unfinished, [&head, code]);
        let kept = written.and_then(|()| fs::rename(&unfinished, path));
        if kept.is_err() {
            // Should it stay even so, the next one that is kept takes it away.
            let _ = fs::remove_file(&unfinished);
        }
        kept
    }

    /// Removes what no process uses any more, then the oldest files until there may be one more of so many bytes. What has no name of
    /// ours is somebody else's, and stays.
    fn make_room(&self, len: u64) -> Result<()> {
        let suffix = self.suffix();
        let mut kept = Vec::new();
        for file in fs::read_dir(&self.path)? {
            let file = file?;
            match suffix_of(&file.file_name()) {
                Some(found) if found == suffix => {
                    let found = file.metadata()?;
                    kept.push((found.modified()?, file.path(), found.len()));
                }
                // It is another engine's, or was left before it was whole.
                Some(_) => fs::remove_file(file.path())?,
                None => {}
            }
        }
        kept.sort_unstable();
        let mut count = kept.len() + 1;
        let mut sum = kept.iter().map(|(_, _, len)| len).sum::<u64>() + len;
        for (_, path, len) in kept {
            if count <= FILES_MAX && sum <= BYTES_MAX {
                break;
            }
            fs::remove_file(path)?;
            count -= 1;
            sum -= len;
        }
        Ok(())
    }

    /// Fails when a file of so many bytes would leave less of the file system than others need.
    fn check_space(&self, len: u64) -> Result<()> {
        let free = Directory::open(&self.path)?.free_bytes()?;
        match free.saturating_sub(self.spare_bytes) >= len {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::StorageFull,
                "what is left of the file system is for values",
            )),
        }
    }
}

/// What follows the digest in the name of a file of ours, whole or not and whichever engine's.
fn suffix_of(name: &OsStr) -> Option<String> {
    let (digest, suffix) = name.to_str()?.split_at_checked(DIGEST_CHARS)?;
    let engine = suffix.strip_prefix('-')?;
    let engine = engine
        .strip_suffix(UNFINISHED)
        .and_then(|engine| engine.strip_suffix('.'))
        .unwrap_or(engine);
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex(digest) && is_hex(engine) && engine.len() == ENGINE_CHARS).then(|| suffix.to_owned())
}

/// Writes a new file that nobody else may look into.
fn write(path: &Path, parts: [&[u8]; 2]) -> Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))
}

fn not_ours() -> Error {
    let words = "it is no plain file or directory of this user, or others may write to it";
    Error::new(ErrorKind::PermissionDenied, words)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, SystemTime};

    use super::*;

    const DIGEST: ModuleDigest = ModuleDigest([7; 32]);
    const CODE: &[u8] = b"what a module was compiled to";
    const ABOUT: About = About {
        bytes: 9,
        longest: 4,
    };

    fn keeping(path: &Path) -> Keeping {
        Keeping {
            folder: path.to_owned(),
            spare_bytes: 0,
        }
    }

    fn open(path: &Path) -> Option<Folder> {
        Folder::open(keeping(path), &"this engine")
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// The names of all that is there.
    fn names(folder: &Folder) -> Vec<String> {
        let files = fs::read_dir(&folder.path).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    /// A file that was kept so many seconds after 1970.
    fn old(folder: &Folder, number: u64, len: u64) -> PathBuf {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_le_bytes());
        let path = folder.place(&ModuleDigest(digest));
        let file = File::create(&path).unwrap();
        file.set_len(len).unwrap();
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(number);
        file.set_modified(then).unwrap();
        path
    }

    #[test]
    fn what_is_damaged_is_not_used() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = open(&temporary.path().join("kept")).unwrap();
        assert!(folder.load(&DIGEST).is_none());
        folder.save(&DIGEST, CODE, ABOUT);
        let kept = folder.load(&DIGEST).unwrap();
        assert_eq!((kept.code(), kept.about), (CODE, ABOUT));

        let path = folder.place(&DIGEST);
        let whole = fs::read(&path).unwrap();
        // Between them is what is known of the module: it decides where it is run, and when it is forgotten.
        for at in (0..40).chain(56..whole.len()) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert!(folder.load(&DIGEST).is_none(), "byte {at}");
        }
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert!(folder.load(&DIGEST).is_none(), "{len} bytes");
        }
        let other = ModuleDigest([8; 32]);
        fs::write(folder.place(&other), &whole).unwrap();
        assert!(folder.load(&other).is_none());
    }

    #[test]
    fn a_directory_of_others_is_not_used() {
        let temporary = tempfile::tempdir().unwrap();
        let own = temporary.path().join("own");
        let folder = open(&own).unwrap();
        let stranger = Folder::of(keeping(&own), &"this engine", folder.user + 1);
        assert!(stranger.is_none());
        let link = temporary.path().join("link");
        symlink(&own, &link).unwrap();
        assert!(open(&link).is_none());
        // What is opened up later is not used from then on.
        folder.save(&DIGEST, CODE, ABOUT);
        assert!(folder.load(&DIGEST).is_some());
        set_mode(&own, 0o777);
        assert!(folder.load(&DIGEST).is_none());
        assert!(open(&own).is_none());
    }

    #[test]
    fn a_file_of_others_is_not_run() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = open(&temporary.path().join("kept")).unwrap();
        folder.save(&DIGEST, CODE, ABOUT);
        let path = folder.place(&DIGEST);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        for (mode, used) in [(0o620, false), (0o602, false), (0o644, true)] {
            set_mode(&path, mode);
            assert_eq!(folder.load(&DIGEST).is_some(), used, "{mode:o}");
        }
        let elsewhere = temporary.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(folder.load(&DIGEST).is_none());
        folder.save(&DIGEST, CODE, ABOUT);
        assert!(folder.load(&DIGEST).is_some());
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn a_full_directory_loses_its_oldest_files() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = open(&temporary.path().join("kept")).unwrap();
        let files: Vec<PathBuf> = (0..FILES_MAX as u64)
            .map(|number| old(&folder, number, 0))
            .collect();
        folder.save(&DIGEST, CODE, ABOUT);
        assert!(folder.load(&DIGEST).is_some());
        assert!(!files[0].exists() && files[1].exists());
        assert_eq!(names(&folder).len(), FILES_MAX);
    }

    #[test]
    fn a_directory_has_no_more_bytes_than_it_may() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = open(&temporary.path().join("kept")).unwrap();
        let third = BYTES_MAX / 3;
        let files = [1, 2, 3].map(|number| old(&folder, number, third));
        folder.save(&DIGEST, CODE, ABOUT);
        assert!(folder.load(&DIGEST).is_some());
        let there = files.map(|file| file.exists());
        assert_eq!(there, [false, true, true]);
    }

    #[test]
    fn what_no_process_uses_any_more_goes() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("kept");
        let before = Folder::open(keeping(&path), &"an engine before it").unwrap();
        before.save(&DIGEST, CODE, ABOUT);
        let folder = open(&path).unwrap();
        assert!(folder.load(&DIGEST).is_none());
        for folder in [&before, &folder] {
            let unfinished = folder.place(&DIGEST).with_extension(UNFINISHED);
            fs::write(unfinished, b"half of it").unwrap();
        }
        // Somebody else's.
        fs::write(path.join("lines.new"), b"").unwrap();
        folder.save(&DIGEST, CODE, ABOUT);
        assert!(folder.load(&DIGEST).is_some());
        let mut there = names(&folder);
        there.sort_unstable();
        assert_eq!(there.len(), 2, "{there:?}");
        assert_eq!(there[1], "lines.new");
    }

    #[test]
    fn what_cannot_be_kept_leaves_nothing_behind() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = open(&temporary.path().join("kept")).unwrap();
        // It gets its name last.
        let in_its_way = folder.place(&DIGEST);
        fs::create_dir(&in_its_way).unwrap();
        let saved = folder.try_save(&in_its_way, &DIGEST, CODE, ABOUT);
        assert!(saved.is_err());
        assert_eq!(names(&folder).len(), 1);
        fs::remove_dir(&in_its_way).unwrap();
        folder.save(&DIGEST, CODE, ABOUT);
        assert!(folder.load(&DIGEST).is_some());
    }

    #[test]
    fn what_others_need_of_the_file_system_is_left_to_them() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("kept");
        let keeping = Keeping {
            folder: path.clone(),
            spare_bytes: u64::MAX,
        };
        let folder = Folder::open(keeping, &"this engine").unwrap();
        let saved = folder.try_save(&folder.place(&DIGEST), &DIGEST, CODE, ABOUT);
        assert_eq!(saved.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(names(&folder), [""; 0]);
    }

    #[test]
    fn a_directory_that_others_write_to_is_not_used() {
        let temporary = tempfile::tempdir().unwrap();
        set_mode(temporary.path(), 0o777);
        assert!(open(temporary.path()).is_none());
    }
}
