//! Files, devices and memory that hosts see as blocks, and what tells them apart.
//!
//! A name keeps a number and a UUID in the store. Hosts take namespaces of one UUID for ways to the same bytes, so the UUID that they
//! are shown goes by what holds the bytes, too: memory is another disk at every start, and of servers over one store each has its own
//! files.

use std::fs;
use std::io;
use std::path::Path;

use forebay_control::ROOT_TENANT;
use forebay_io::files::{Directory, OpenFile};
use forebay_io::{Disk, OpenOptions, random};
use forebay_nvme::target::Backing;
use sha2::{Digest, Sha256};

use super::flags::{Export, Place};
use crate::exit::{Exit, Failure, Outcome};
use crate::serve::{absolute, whole_file};

/// Blocks of exports: what every host can use.
const LBA_SHIFT: u8 = 9;
/// In DIR: what tells this server's files from those of others over the same store.
const GATEWAY: &str = "gateway";

/// What nothing else is called.
type Id = [u8; 16];

/// What is exported, open.
pub struct Exported {
    /// What its number is kept by.
    pub name: String,
    file: OpenFile,
    read_only: bool,
    /// What holds its bytes, where that may be another for the same name.
    medium: Option<Id>,
}

impl Exported {
    /// What hosts know it by, where its name has the UUID `named`.
    pub fn uuid(&self, named: Id) -> Id {
        match &self.medium {
            Some(medium) => derived(named, medium),
            None => named,
        }
    }

    /// What is behind it.
    pub fn backing(&self) -> Backing<OpenFile> {
        Backing::Block {
            file: self.file.clone(),
            lba_shift: LBA_SHIFT,
            read_only: self.read_only,
            tenant: Some(ROOT_TENANT.to_owned()),
        }
    }
}

/// Opens what the flags export. `shared`: other servers may have files of their own for the same names.
pub fn open(flags: &[Export], dir: &Path, shared: bool) -> Outcome<Vec<Exported>> {
    let placed = flags
        .iter()
        .filter_map(|one| Some((&one.name, one.place.as_ref()?)));
    placed
        .map(|(name, place)| open_one(name, place, dir, shared))
        .collect()
}

fn open_one(name: &str, place: &Place, dir: &Path, shared: bool) -> Outcome<Exported> {
    let failed = |error| Failure::io(format_args!("--export {place}"))(error);
    let (file, read_only, medium) = match place {
        Place::Memory(bytes) => {
            let file = OpenFile::in_memory(*bytes).map_err(failed)?;
            (file, false, Some(fresh().map_err(failed)?))
        }
        Place::Path(path) => {
            let (file, read_only) = open_file(path, dir)?;
            (file, read_only, shared.then(|| gateway(dir)).transpose()?)
        }
    };
    tracing::info!(name, %place, read_only, "exported");
    Ok(Exported {
        name: name.to_owned(),
        file,
        read_only,
        medium,
    })
}

/// Opens a file or device: for writing, or else for reading alone.
fn open_file(path: &Path, dir: &Path) -> Outcome<(OpenFile, bool)> {
    let shown = path.display();
    let failed = |error| Failure::io(format_args!("--export {shown}"))(error);
    let refused = |why| Failure::new(Exit::Usage, format_args!("--export {shown}: {why}"));
    let real = fs::canonicalize(absolute(path)).map_err(failed)?;
    if real.starts_with(fs::canonicalize(dir).map_err(failed)?) {
        return Err(refused("the data directory's own files are not for export"));
    }
    let name = real.file_name().and_then(|name| name.to_str());
    let (Some(folder), Some(name)) = (real.parent(), name) else {
        return Err(refused("not a file or device"));
    };
    let disk = Directory::open(folder).map_err(failed)?;
    let open = |read_only| {
        let options = OpenOptions {
            create: false,
            read_only,
            direct: true,
        };
        disk.open(name, options)
    };
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match open(false) {
        Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => {
            Ok((open(true).map_err(failed)?, true))
        }
        opened => Ok((opened.map_err(failed)?, false)),
    }
}

fn fresh() -> io::Result<Id> {
    let mut id = Id::default();
    random(&mut id)?;
    Ok(id)
}

/// What tells this server from others over the same store: made once, and kept in DIR.
fn gateway(dir: &Path) -> Outcome<Id> {
    let failed = |error| Failure::io(dir.join(GATEWAY).display())(error);
    let text = whole_file::once(dir, GATEWAY, || {
        Ok(format!("{:032x}\n", u128::from_be_bytes(fresh()?)))
    });
    let text = text.map_err(failed)?;
    let digits = text.trim_end();
    let id = u128::from_str_radix(digits, 16)
        .ok()
        .filter(|_| digits.len() == 32);
    let id = id.ok_or_else(|| io::Error::other("these are not 32 hexadecimal digits"));
    Ok(id.map_err(failed)?.to_be_bytes())
}

/// The UUID of a name's bytes on one medium.
fn derived(named: Id, medium: &Id) -> Id {
    let digest = Sha256::new().chain_update(named).chain_update(medium);
    let mut uuid = Id::default();
    uuid.copy_from_slice(&digest.finalize()[..16]);
    // RFC 9562, version 8: of one's own making.
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_data_directory_are_not_exported() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("data");
        fs::create_dir(&dir).unwrap();
        for (path, fine) in [("disk", true), ("data/data", false)] {
            let path = folder.path().join(path);
            fs::write(&path, [0; 4096]).unwrap();
            assert_eq!(open_file(&path, &dir).is_ok(), fine);
        }
    }

    #[test]
    fn a_gateway_is_known_as_long_as_its_directory_is_there() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = gateway(one.path()).unwrap();
        assert_eq!(gateway(one.path()).unwrap(), id);
        assert_ne!(gateway(other.path()).unwrap(), id);
        for damaged in ["", "1", "0123456789abcdef0123456789abcdeg\n"] {
            fs::write(one.path().join(GATEWAY), damaged).unwrap();
            assert!(gateway(one.path()).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn a_uuid_of_a_medium_is_one() {
        let named = *b"0123456789abcdef";
        let uuid = derived(named, &[1; 16]);
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2));
        assert_eq!(derived(named, &[1; 16]), uuid);
        assert_ne!(derived(named, &[2; 16]), uuid);
        assert_ne!(derived([0; 16], &[1; 16]), uuid);
    }
}
