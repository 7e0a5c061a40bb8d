//! Random reads of one large file at a fixed depth, past the page cache: `disk_qd FOLDER NAME [SECONDS]`, where NAME is a file
//! of at least 64 MiB. Worker threads are measured with `FOREBAY_IO=threads`. Compare with
//! `fio --direct=1 --rw=randread --ioengine=io_uring --fixedbufs --registerfiles` on the same file.

use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_io::files::Directory;
use forebay_io::{Disk, File, OpenOptions, ring};
use forebay_mem::Pool;

const CASES: [(&str, usize, usize); 2] = [("4 KiB qd 32", 4096, 32), ("1 MiB qd 16", 1 << 20, 16)];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(name)) = (arguments.next(), arguments.next()) else {
        return Err("usage: disk_qd FOLDER NAME [SECONDS]".into());
    };
    let seconds = arguments.next().map_or(Ok(5), |seconds| seconds.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        match ring::install(ring::Config::default()) {
            Ok(driver) => drop(tokio::task::spawn_local(driver)),
            Err(reason) => println!("no ring: {reason}"),
        }
        let disk = Directory::open(&folder)?;
        for (title, len, depth) in CASES {
            measure(
                &disk,
                &name,
                title,
                len,
                depth,
                Duration::from_secs(seconds),
            )
            .await?;
        }
        Ok::<(), Box<dyn Error>>(())
    })?;
    println!("{:?}", forebay_io::counters());
    Ok(())
}

async fn measure(
    disk: &Directory,
    name: &str,
    title: &str,
    len: usize,
    depth: usize,
    time: Duration,
) -> Result<(), Box<dyn Error>> {
    let options = OpenOptions {
        create: false,
        read_only: true,
        direct: true,
    };
    let file = Rc::new(disk.open(name, options)?);
    let places = file.len()? / len as u64;
    if places < 64 {
        return Err("the file is too short".into());
    }
    let pool = Pool::new(depth << 20);
    let (start, cpu) = (Instant::now(), cpu_time()?);
    let readers: Vec<_> = (1..=depth as u64)
        .map(|reader| {
            let (file, pool) = (file.clone(), pool.clone());
            tokio::task::spawn_local(async move {
                let mut state = reader * 0x9e37_79b9_7f4a_7c15;
                let mut count = 0;
                let mut buf = pool.take(len).await;
                while start.elapsed() < time {
                    // Xorshift is random enough to defeat read-ahead.
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let (result, back) = file.read_at(state % places * len as u64, buf, len).await;
                    result?;
                    buf = back;
                    count += 1;
                }
                Ok::<u64, std::io::Error>(count)
            })
        })
        .collect();
    let mut count = 0;
    for reader in readers {
        count += reader.await??;
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_us = (cpu_time()? - cpu).as_secs_f64() * 1e6 / count as f64;
    println!(
        "{:9} {title}: {:8.0} reads/s {:8.1} MiB/s {cpu_us:6.2} us CPU/read",
        forebay_io::backend(),
        count as f64 / seconds,
        count as f64 * len as f64 / seconds / (1 << 20) as f64,
    );
    Ok(())
}

/// User and system time of all threads.
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may hold spaces; utime and stime are the 12th and 13th fields after it.
    let (_, fields) = stat.rsplit_once(')').ok_or("no process name")?;
    let mut ticks = 0;
    for field in fields.split_whitespace().skip(11).take(2) {
        ticks += field.parse::<u64>()?;
    }
    Ok(Duration::from_millis(
        ticks * 1000 / rustix::param::clock_ticks_per_second(),
    ))
}
