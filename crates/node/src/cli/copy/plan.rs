//! What is to be copied where: sources and a target become pairs.

use std::collections::VecDeque;
use std::fs;
use std::path::{Component, Path, PathBuf};

use forebay_client::transfer;

use super::super::address::Address;
use super::super::glob;
use crate::exit::{Failure, Outcome};

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
        return walk(source, |relative| Some(format!("{prefix}{relative}")));
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
    let walk = walk(Path::new(base), |relative| {
        glob::matches(pattern, &format!("{shown}{relative}")).then(|| format!("{prefix}{relative}"))
    })?;
    if walk.uploads.is_empty() {
        return Err(Failure::new(
            crate::exit::Exit::NotFound,
            format_args!("no file matches {pattern}"),
        ));
    }
    Ok(walk)
}

/// All files below `root`, by the key that `key_of` gives their relative path. Links to files are followed, links to folders
/// are not: they may lead round in a circle.
fn walk(root: &Path, key_of: impl Fn(&str) -> Option<String>) -> Outcome<Walk> {
    let mut found = Walk::default();
    let mut folders = VecDeque::from([(root.to_owned(), String::new())]);
    while let Some((folder, relative)) = folders.pop_front() {
        let entries = fs::read_dir(&folder).map_err(Failure::io(folder.display()))?;
        for entry in entries {
            let entry = entry.map_err(Failure::io(folder.display()))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(Failure::io(path.display()))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                return Err(Failure::new(
                    crate::exit::Exit::Failed,
                    format_args!("{} has a name that is not UTF-8", path.display()),
                ));
            };
            if kind.is_dir() {
                folders.push_back((path, format!("{relative}{name}/")));
                continue;
            }
            let metadata = match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => metadata,
                Ok(_) => {
                    found.skipped += 1;
                    continue;
                }
                // A link to nothing.
                Err(_) if kind.is_symlink() => {
                    found.skipped += 1;
                    continue;
                }
                Err(error) => return Err(Failure::io(path.display())(error)),
            };
            if let Some(key) = key_of(&format!("{relative}{name}")) {
                if transfer::is_partial(name) {
                    found.leftovers += 1;
                    continue;
                }
                found.uploads.push(Upload {
                    path,
                    size: metadata.len(),
                    key,
                });
            }
        }
    }
    Ok(found)
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
