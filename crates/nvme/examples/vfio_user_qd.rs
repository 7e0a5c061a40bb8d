//! 4 KiB reads of a block namespace over vfio-user: `vfio_user_qd SOCKET NSID DEPTH SECONDS [sleep]`. It polls for completions, or sleeps
//! between them.

use std::io::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_mem::Region;
use forebay_nvme::vfio_user::client::{Device, DoorbellMode, QueueOptions};
use forebay_proto::nvme::SubmissionQueueEntry;
use forebay_proto::nvme::nvm::{Blocks, NvmCommand};

const BYTES: usize = 4096;
/// Of 512 bytes each.
const BLOCKS_A_READ: u32 = 8;
const IDENTIFY: u8 = 0x06;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (Some(socket), [nsid, depth, seconds]) = (
        words.first(),
        [1, 2, 3].map(|at| words.get(at).and_then(|word| word.parse::<u32>().ok())),
    ) else {
        return Err("usage: vfio_user_qd SOCKET NSID DEPTH SECONDS [sleep]".into());
    };
    let missing = || Error::other("NSID, DEPTH and SECONDS are numbers");
    let (nsid, depth, seconds) = (
        nsid.ok_or_else(missing)?,
        depth.ok_or_else(missing)?.clamp(1, 1000) as usize,
        seconds.ok_or_else(missing)?,
    );
    let sleep = words.get(4).is_some_and(|word| word == "sleep");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let device = Device::connect(Path::new(socket), DoorbellMode::Shadow).await?;
        let memory = device.map(Region::memfd(depth * BYTES)?).await?;
        let pages = pages(&device, nsid).await?;
        let entries = (depth + 1) as u16;
        let interrupts = sleep;
        let options = QueueOptions {
            entries,
            interrupts,
        };
        let mut queue = device.create_queue(options).await?;
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut command = |place: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let first = state % pages * u64::from(BLOCKS_A_READ);
            let count = BLOCKS_A_READ;
            let blocks = Blocks { first, count };
            let entry = NvmCommand::Read { blocks }.entry(place as u16, nsid);
            memory.point(entry, place * BYTES, BYTES)
        };
        let begin = Instant::now();
        let mut free: Vec<usize> = (0..depth).collect();
        let (mut done, mut failed) = (0u64, 0u64);
        while begin.elapsed() < Duration::from_secs(seconds.into()) {
            for place in free.drain(..) {
                let entry = command(place).ok_or("the memory is too small")?;
                queue.submit(&entry);
            }
            queue.ring().await?;
            let each = |completion: forebay_proto::nvme::CompletionQueueEntry| {
                done += 1;
                failed += u64::from(!completion.status.is_success());
                free.push(completion.cid.into());
            };
            if sleep {
                queue.wait(each).await?;
            } else {
                queue.poll(each).await?;
            }
        }
        let rate = done as f64 / begin.elapsed().as_secs_f64();
        println!("{rate:.0} reads/s, {failed} failed");
        Ok(())
    })
}

/// How many times 4 KiB the namespace holds.
async fn pages(device: &Device, nsid: u32) -> Result<u64, Box<dyn std::error::Error>> {
    let page = device.map(Region::memfd(BYTES)?).await?;
    let identify = SubmissionQueueEntry::new(IDENTIFY, 0, nsid);
    let identify = page.point(identify, 0, BYTES).ok_or("no room")?;
    device.admin(identify).await?;
    let mut size = [0; 8];
    let whole = page.region().slice(0..BYTES).ok_or("no room")?;
    if !whole.read(0, &mut size) {
        return Err("the memory is gone".into());
    }
    device.unmap(page).await?;
    Ok((u64::from_le_bytes(size) / u64::from(BLOCKS_A_READ)).max(1))
}
