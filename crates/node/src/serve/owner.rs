//! Whose a server is: its data directory's owner's, and the superuser's.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The user whose a data directory is.
#[derive(Debug, Clone, Copy)]
pub struct Owner(u32);

impl Owner {
    /// The owner of the data directory `dir`.
    pub fn of(dir: &Path) -> io::Result<Owner> {
        Ok(Owner(fs::metadata(dir)?.uid()))
    }

    /// Whether the user `uid` is served where the system tells who asks.
    pub fn admits(self, uid: u32) -> bool {
        uid == self.0 || uid == 0
    }
}
