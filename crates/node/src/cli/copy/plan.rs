//! What is to be copied where: sources and a target become pairs.

use std::collections::VecDeque;
use std::fs::{self, DirEntry};
use std::path::{Component, Path, PathBuf};

use forebay_client::transfer;

use super::super::address::Address;
use super::super::glob;
use crate::exit::{Exit, Failure, Outcome};

/// A file to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes when it was found. Where that is 0 it is read to its end: a pipe, a device or a file of `/proc` does not tell
    /// how much it has.
    pub size: u64,
    /// The key it gets.
    pub key: String,
}

/// Files that a walk found, and how many things that are no plain files.
#[derive(Debug, Default)]
pub struct Walk {
    /// The files.
    pub uploads: Vec<Upload>,
    /// Links to directories, sockets, devices.
    pub skipped: usize,
    /// What downloads that were cut off have left.
    pub leftovers: usize,
    /// What cannot be sent, or not be looked at.
    pub failures: Vec<Failure>,
}

/// What `source` sends to `target`. With `several` sources, a folder keeps its own name below the target.
pub fn uploads(source: &Path, target: &Address, several: bool) -> Outcome<Walk> {
    let text = source.to_string_lossy();
    if fs::symlink_metadata(source).is_err() && glob::is_pattern(&text) {
        return matching(&text, target);
    }
    let metadata = fs::metadata(source).map_err(Failure::file(source))?;
    if metadata.is_dir() {
        let mut prefix = folder(&target.key);
        if several {
            prefix.push_str(&name(source)?);
            prefix.push('/');
        }
        let key_of = |relative: &str| Some(format!("{prefix}{relative}"));
        return walk(source, |_| true, key_of);
    }
    let into_folder = target.key.is_empty() || target.key.ends_with('/') || several;
    // The name of a pipe says nothing of what comes through it.
    if into_folder && !metadata.is_file() {
        return Err(super::usage(format_args!(
            "{} is no file and is read to its end, which needs a key: {target}NAME",
            source.display()
        )));
    }
    let key = match into_folder {
        true => format!("{}{}", folder(&target.key), name(source)?),
        false => target.key.clone(),
    };
    Ok(Walk {
        uploads: vec![Upload {
            path: source.to_owned(),
            size: match metadata.is_file() {
                true => metadata.len(),
                false => 0,
            },
            key,
        }],
        ..Walk::default()
    })
}

/// `prefix/`, or nothing.
pub fn folder(prefix: &str) -> String {
    match prefix {
        "" => String::new(),
        _ => format!("{}/", prefix.trim_end_matches('/')),
    }
}

fn name(path: &Path) -> Outcome<String> {
    // `.` and `..` have a name only when resolved.
    let resolved = match path.file_name() {
        Some(_) => path.to_owned(),
        None => fs::canonicalize(path).map_err(Failure::io(path.display()))?,
    };
    resolved
        .file_name()
        .and_then(|name| name.to_str())
        .map(str::to_owned)
        .ok_or_else(|| {
            super::usage(format_args!(
                "{} has no name that a key can hold",
                path.display()
            ))
        })
}

fn matching(pattern: &str, target: &Address) -> Outcome<Walk> {
    let literal = glob::literal_prefix(pattern);
    let shown = literal.rfind('/').map_or("", |slash| &literal[..=slash]);
    let base = match shown {
        "" => ".",
        shown => shown,
    };
    let prefix = folder(&target.key);
    let enters = |folder: &str| glob::may_begin(pattern, &format!("{shown}{folder}/"));
    let key_of = |relative: &str| {
        let matches = glob::matches(pattern, &format!("{shown}{relative}"));
        matches.then(|| format!("{prefix}{relative}"))
    };
    let walk = walk(Path::new(base), enters, key_of)?;
    if walk.uploads.is_empty() && walk.failures.is_empty() {
        return Err(Failure::new(
            Exit::NotFound,
            format_args!("no file matches {pattern}"),
        ));
    }
    Ok(walk)
}

/// All files below `root` that are meant, in those folders that it `enters`: by their paths below it, of which `key_of` gives the keys.
/// Links to files are followed, links to folders are not: they may lead round in a circle. What fails below it keeps nothing else back.
fn walk(
    root: &Path,
    enters: impl Fn(&str) -> bool,
    key_of: impl Fn(&str) -> Option<String>,
) -> Outcome<Walk> {
    let mut found = Walk::default();
    let mut folders = VecDeque::from([PathBuf::new()]);
    while let Some(folder) = folders.pop_front() {
        let path = root.join(&folder);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            // Without it there is nothing.
            Err(error) if folder.as_os_str().is_empty() => return Err(Failure::file(root)(error)),
            Err(error) => {
                found.failures.push(Failure::io(path.display())(error));
                continue;
            }
        };
        for entry in entries {
            let added = entry
                .map_err(Failure::io(path.display()))
                .and_then(|entry| found.add(&entry, &folder, &key_of));
            match added {
                Ok(Some(folder)) if enters(&folder.to_string_lossy()) => folders.push_back(folder),
                Ok(_) => {}
                Err(failure) => found.failures.push(failure),
            }
        }
    }
    Ok(found)
}

impl Walk {
    /// Takes what was found in a folder, named as it is below the root. Of a folder its name is given back: what is in it is still to be
    /// found.
    fn add(
        &mut self,
        entry: &DirEntry,
        folder: &Path,
        key_of: impl Fn(&str) -> Option<String>,
    ) -> Outcome<Option<PathBuf>> {
        let path = entry.path();
        let kind = entry.file_type().map_err(Failure::io(path.display()))?;
        let relative = folder.join(entry.file_name());
        if kind.is_dir() {
            return Ok(Some(relative));
        }
        let shown = relative.to_string_lossy();
        let Some(key) = key_of(&shown) else {
            return Ok(None);
        };
        let metadata = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => metadata,
            Ok(_) => {
                self.skipped += 1;
                return Ok(None);
            }
            // A link to nothing.
            Err(_) if kind.is_symlink() => {
                self.skipped += 1;
                return Ok(None);
            }
            Err(error) => return Err(Failure::io(path.display())(error)),
        };
        if transfer::is_partial(&shown) {
            self.leftovers += 1;
        } else if relative.to_str().is_none() {
            return Err(Failure::new(
                Exit::Failed,
                format_args!("{} has a name that is not UTF-8", path.display()),
            ));
        } else {
            self.uploads.push(Upload {
                path,
                size: metadata.len(),
                key,
            });
        }
        Ok(None)
    }
}

/// Where below `root` the object whose key ends in `relative` goes; `None` when it would lead out of `root` or cannot be a file:
/// keys come from other people.
pub fn local_path(root: &Path, relative: &str) -> Option<PathBuf> {
    let plain = !relative.is_empty()
        && !relative.contains('\0')
        && relative
            .split('/')
            .all(|segment| !matches!(segment, "" | "." | ".."));
    let path = Path::new(relative);
    let normal = path
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    (plain && normal).then(|| root.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_never_lead_out_of_the_folder() {
        let root = Path::new("/out");
        assert_eq!(local_path(root, "a/b"), Some("/out/a/b".into()));
        for key in [
            "",
            "/etc/passwd",
            "../x",
            "a/../x",
            "a//b",
            "a/",
            "./a",
            "a\0b",
        ] {
            assert_eq!(local_path(root, key), None, "{key:?}");
        }
    }
}
