//! The naive durable store: every value a file of its own, made durable by an fsync of its own.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::belongings::Folder;
use crate::payload::Payload;
use crate::{Error, FilesArgs, Histogram, Point, Results, cpu};

/// Files that a thread replaces in turn.
const FILES_PER_THREAD: u64 = 64;

/// Measures durable writes of whole files.
pub(crate) fn run(args: &FilesArgs, results: &Results) -> Result<(), Error> {
    let window = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Error::Usage("the seconds are not a length of time".to_owned()))?;
    let directory = Folder::new(args.dir.as_deref())?;
    for &size in &args.size {
        let payload = Payload::new(size.0 as usize);
        for &concurrency in &args.concurrency {
            results.add(measure(directory.path(), &payload, concurrency, window)?);
        }
    }
    Ok(())
}

fn measure(
    directory: &Path,
    payload: &Payload,
    concurrency: usize,
    window: Duration,
) -> Result<Point, Error> {
    let start = Instant::now();
    let end = start + window;
    let results: Vec<_> = thread::scope(|scope| {
        let writers: Vec<_> = (0..concurrency)
            .map(|thread| scope.spawn(move || write_until(directory, payload, thread, end)))
            .collect();
        writers
            .into_iter()
            .map(|writer| {
                writer
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut latency = Histogram::default();
    let mut cpu = Duration::ZERO;
    for result in results {
        let (part, used) = result.map_err(Error::io("write a file"))?;
        latency.merge(&part);
        cpu += used;
    }
    let bytes = latency.total() as f64 * payload.len() as f64;
    Ok(Point {
        bench: "files",
        op: "put",
        size: payload.len() as u64,
        concurrency,
        path: "file",
        seconds,
        ops_per_s: latency.total() as f64 / seconds,
        mb_per_s: bytes / 1e6 / seconds,
        p50_us: latency.quantile_us(0.5),
        p99_us: latency.quantile_us(0.99),
        p999_us: latency.quantile_us(0.999),
        client_cpu_s_per_gb: (bytes > 0.0).then(|| cpu.as_secs_f64() / (bytes / 1e9)),
        server_cpu_s_per_gb: None,
        copied_bytes: None,
        errors: 0,
        first_error: None,
    })
}

fn write_until(
    directory: &Path,
    payload: &Payload,
    thread: usize,
    end: Instant,
) -> std::io::Result<(Histogram, Duration)> {
    let before = cpu::this_thread();
    let mut latency = Histogram::default();
    for number in 0.. {
        let begun = Instant::now();
        if begun >= end {
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
        latency.record(begun.elapsed());
    }
    Ok((latency, cpu::this_thread().saturating_sub(before)))
}
