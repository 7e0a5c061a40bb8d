//! What a transfer through shared memory is compared with: one thread that copies values from one place in memory to another.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::bounds::sizes;
use crate::load::{About, CpuClock, Tally, Window};
use crate::{Error, MemoryArgs, Point, Results};

/// Bytes that are copied from: as many as the values of a measured GET, so that the processor's caches help both alike.
const SOURCE_BYTES: usize = 256 << 20;

/// Measures copies of whole values.
pub(crate) fn run(args: &MemoryArgs, results: &Results) -> Result<(), Error> {
    sizes(&args.size, 1..=SOURCE_BYTES as u64)?;
    for &size in &args.size {
        for &concurrency in &args.concurrency {
            results.add(measure(size.0 as usize, concurrency, args.seconds.0)?);
        }
    }
    Ok(())
}

/// Copies values from random places to `places` places in turn.
fn measure(size: usize, places: usize, length: Duration) -> Result<Point, Error> {
    // Not zeroes: pages that nobody wrote would all be the same one.
    let source = written(SOURCE_BYTES, 0x5a)?;
    let mut into = written(size * places, 0xa5)?;
    let window = Window::after(Duration::ZERO, length);
    let values = SOURCE_BYTES / size;
    let mut at = 0;
    let mut tally = Tally {
        seconds: length.as_secs_f64(),
        ..Tally::default()
    };
    let mut clock = CpuClock::default();
    let mut begun = Instant::now();
    for place in (0..places).cycle() {
        clock.look(window, begun);
        if window.is_over(begun) {
            break;
        }
        // A large odd step: sizes that are powers of two have every value visited, and no prefetcher foresees it.
        at = (at + 0x9e37_79b1) % values;
        let place = &mut into[place * size..][..size];
        place.copy_from_slice(&source[at * size..][..size]);
        black_box(&place);
        let now = Instant::now();
        if window.measures(now) {
            tally.succeeded(now - begun, 1, size as u64);
        }
        begun = now;
    }
    tally.client_cpu = Some(clock.used());
    Ok(tally.point(About {
        bench: "memory",
        op: "copy",
        size: size as u64,
        concurrency: places,
        path: "memory",
    }))
}

fn written(len: usize, byte: u8) -> Result<Vec<u8>, Error> {
    let mut memory = Vec::new();
    let got = memory.try_reserve_exact(len).map_err(std::io::Error::from);
    got.map_err(Error::io("get memory"))?;
    memory.resize(len, byte);
    Ok(memory)
}
