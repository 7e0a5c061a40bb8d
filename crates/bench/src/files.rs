//! The naive durable store: every value a file of its own, made durable by an fsync of its own.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::belongings::Folder;
use crate::bounds::{SIZE_MAX, sizes};
use crate::load::{About, CpuClock, Tally, Window, on_threads};
use crate::payload::Payload;
use crate::{Error, FilesArgs, Point, Results};

/// Files that a thread replaces in turn.
const FILES_PER_THREAD: u64 = 64;

/// Measures durable writes of whole files.
pub(crate) fn run(args: &FilesArgs, results: &Results) -> Result<(), Error> {
    sizes(&args.size, 0..=SIZE_MAX)?;
    let directory = Folder::new(args.dir.as_deref())?;
    for &size in &args.size {
        let payload = Payload::new(size.0 as usize);
        for &concurrency in &args.concurrency {
            let window = args.seconds.0;
            results.add(measure(directory.path(), &payload, concurrency, window)?);
        }
    }
    Ok(())
}

fn measure(
    directory: &Path,
    payload: &Payload,
    concurrency: usize,
    length: Duration,
) -> Result<Point, Error> {
    let window = Window::after(Duration::ZERO, length);
    let tally = on_threads(concurrency, window, None, |thread| {
        write_until_over(directory, payload, thread, window).map_err(Error::io("write a file"))
    })?;
    Ok(tally.point(About {
        bench: "files",
        op: "put",
        size: payload.len() as u64,
        concurrency,
        path: "file",
    }))
}

fn write_until_over(
    directory: &Path,
    payload: &Payload,
    thread: usize,
    window: Window,
) -> std::io::Result<Tally> {
    let mut tally = Tally::default();
    let mut clock = CpuClock::default();
    for number in 0.. {
        let begun = Instant::now();
        clock.look(window, begun);
        if window.is_over(begun) {
            break;
        }
        let stamp = Payload::stamp(number);
        let name = directory.join(format!("{thread}-{}", number % FILES_PER_THREAD));
        let mut file = File::create(name)?;
        let mut parts = [
            IoSlice::new(payload.beginning()),
            IoSlice::new(&stamp[..payload.stamp_len()]),
        ];
        let mut rest = parts.as_mut_slice();
        while !rest.is_empty() {
            let count = file.write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, count);
            if count == 0 {
                break;
            }
        }
        file.sync_all()?;
        let ended = Instant::now();
        if window.measures(ended) {
            tally.succeeded(ended - begun, 1, payload.len() as u64);
        }
    }
    tally.client_cpu = Some(clock.used());
    Ok(tally)
}
