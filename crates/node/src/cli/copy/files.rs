//! Files of this host: calls that may take long.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use forebay_client::Crc64;

use super::tally::Broken;
use crate::exit::{Exit, Failure};

/// Read at a time when a file is compared.
const READ_BYTES: usize = 1 << 20;

/// The CRC-64/NVME of a file.
pub async fn checksum(path: &Path) -> Result<u64, Broken> {
    let path = path.to_owned();
    off_the_runtime(move || {
        let crc = || -> io::Result<u64> {
            let mut file = File::open(&path)?;
            let mut buffer = vec![0; READ_BYTES];
            let mut crc = Crc64::default();
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(crc.value()),
                    len => crc = crc.then(Crc64::of(&buffer[..len])),
                }
            }
        };
        crc().map_err(broken(&path))
    })
    .await
}

/// Opens what is to be read, and waits for who writes to it where it is a pipe.
pub async fn open(path: PathBuf) -> Result<File, Broken> {
    off_the_runtime(move || File::open(&path).map_err(broken(&path))).await
}

/// Does what may take long, or wait for another process.
async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Broken> + Send + 'static,
) -> Result<T, Broken> {
    let done = tokio::task::spawn_blocking(work);
    done.await.unwrap_or_else(|error| {
        Err(Broken {
            failure: Failure::new(Exit::Failed, error),
            alone: false,
        })
    })
}

/// What a failure of the system with a file is for a copy.
pub fn broken(path: &Path) -> impl FnOnce(io::Error) -> Broken {
    let path = path.to_owned();
    move |error| Broken::one(format_args!("{}: {error}", path.display()))
}
