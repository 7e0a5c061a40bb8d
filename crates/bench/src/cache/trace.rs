//! Traces as Mooncake publishes them: a line a request, with the numbers of the blocks of its prompt.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use crate::Error;

#[derive(Deserialize)]
struct Request {
    hash_ids: Vec<u64>,
}

/// The trace's name, and its blocks in the order in which they are asked for.
pub(super) fn read(path: &Path) -> Result<(String, Vec<u64>), Error> {
    let what = || format!("read {}", path.display());
    let file = File::open(path).map_err(Error::io(what()))?;
    let mut asked = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.map_err(Error::io(what()))?;
        if line.trim().is_empty() {
            continue;
        }
        let request: Request = serde_json::from_str(&line).map_err(|error| {
            // To whom reads JSON the line is the first of its text.
            let error = error.to_string().replace("at line 1 column", "at column");
            Error::Usage(format!("{}, line {number}: {error}", path.display()))
        })?;
        asked.extend(request.hash_ids);
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok((name.into_owned(), asked))
}
