//! Files that appear whole.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use forebay_io::Disk;
use forebay_io::files::Directory;

/// Writes `bytes` to `path` so that nobody ever sees a part, readable by the owner alone when `private`.
pub fn write(path: &Path, bytes: &[u8], private: bool) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = Path::new(&name);
    // A leftover of an earlier process with our number would keep its mode.
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(if private { 0o600 } else { 0o644 })
        .open(temporary)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(temporary, path));
    if written.is_err() {
        // The error that led here is the one to report.
        let _ = fs::remove_file(temporary);
    }
    written
}

/// The text of a file of `dir` that is made once, and stays.
pub fn once(
    dir: &Path,
    name: &str,
    make: impl FnOnce() -> io::Result<String>,
) -> io::Result<String> {
    let path = dir.join(name);
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        text => return text,
    }
    let text = make()?;
    write(&path, text.as_bytes(), false)?;
    // Nobody is told of what a crash would let be another one.
    Directory::open(dir)?.sync()?;
    Ok(text)
}
