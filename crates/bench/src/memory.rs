//! What a transfer through shared memory is compared with: one thread that copies values from one place in memory to another.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::{Error, Histogram, MemoryArgs, Point, Results, Size, cpu};

/// Bytes that are copied from: as many as the values of a measured GET, so that the processor's caches help both alike.
const SOURCE_BYTES: usize = 256 << 20;

/// Measures copies of whole values.
pub(crate) fn run(args: &MemoryArgs, results: &Results) -> Result<(), Error> {
    let window = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Error::Usage("the seconds are not a length of time".to_owned()))?;
    let fits = |size: &Size| (1..=SOURCE_BYTES as u64).contains(&size.0);
    if !args.size.iter().all(fits) {
        let most = SOURCE_BYTES >> 20;
        return Err(Error::Usage(format!("sizes are 1 byte to {most} MiB")));
    }
    for &size in &args.size {
        for &concurrency in &args.concurrency {
            results.add(measure(size.0 as usize, concurrency.max(1), window));
        }
    }
    Ok(())
}

/// Copies values from random places to `places` places in turn.
fn measure(size: usize, places: usize, window: Duration) -> Point {
    // Not zeroes: pages that nobody wrote would all be the same one.
    let source = vec![0x5a_u8; SOURCE_BYTES];
    let mut into = vec![0xa5_u8; size * places];
    let values = SOURCE_BYTES / size;
    let mut at = 0;
    let mut latency = Histogram::default();
    let before = cpu::this_thread();
    let start = Instant::now();
    let end = start + window;
    let mut begun = start;
    while begun < end {
        for place in into.chunks_exact_mut(size) {
            // A large odd step: sizes that are powers of two have every value visited, and no prefetcher foresees it.
            at = (at + 0x9e37_79b1) % values;
            place.copy_from_slice(&source[at * size..][..size]);
            black_box(&place);
            let now = Instant::now();
            latency.record(now - begun);
            begun = now;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu = cpu::this_thread().saturating_sub(before);
    let bytes = latency.total() as f64 * size as f64;
    Point {
        bench: "memory",
        op: "copy",
        size: size as u64,
        concurrency: places,
        path: "memory",
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
    }
}
