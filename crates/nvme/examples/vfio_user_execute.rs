//! Runs a function over a value, through a vfio-user socket: `vfio_user_execute SOCKET NSID KEY OPERATION [inline ARGUMENT | WORD...]`.
//! It writes what the function does. Words go, and the result comes, by the same memory (83h); with `inline` there is one number (C6h).

use std::io::Write;
use std::path::Path;

use forebay_mem::{PAGE_BYTES, Region};
use forebay_nvme::vfio_user::client::{Device, DoorbellMode, QueueOptions};
use forebay_proto::nvme::kv::{Key, KvCommand, head};

/// Room for the result.
const CAPACITY: u32 = 16 << 20;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [socket, nsid, key, operation, rest @ ..] = &words[..] else {
        return Err(
            "usage: vfio_user_execute SOCKET NSID KEY OPERATION [inline ARGUMENT | WORD...]".into(),
        );
    };
    let (nsid, key, operation) = (nsid.parse()?, key.as_bytes(), operation.parse()?);
    let (command, payload) = match rest {
        [inline, argument] if inline == "inline" => {
            let command = KvCommand::ExecuteInline {
                key: Key::new(key).ok_or("a key of more than 16 bytes")?,
                argument: argument.parse()?,
                operation,
                buffer_bytes: CAPACITY,
            };
            (command, Vec::new())
        }
        words => {
            let mut payload = head::encode(key).ok_or("a key of more than 255 bytes")?;
            let arguments = words.iter().map(|word| format!("{word}\0"));
            payload.extend(arguments.collect::<String>().bytes());
            let command = KvCommand::Execute {
                payload_bytes: payload.len().try_into()?,
                capacity: CAPACITY,
                operation,
            };
            (command, payload)
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let device = Device::connect(Path::new(socket), DoorbellMode::Shadow).await?;
        let room = payload.len().max(CAPACITY as usize);
        let region = Region::memfd(room.next_multiple_of(PAGE_BYTES))?;
        let memory = device.map(region.clone()).await?;
        let whole = region.slice(0..room).ok_or("no room")?;
        whole.write(0, &payload);
        let mut queue = device.create_queue(QueueOptions::default()).await?;
        let entry = memory.point(command.entry(0, nsid), 0, room);
        queue.submit(&entry.ok_or("no room")?);
        queue.ring().await?;
        let mut ended = None;
        while ended.is_none() {
            queue.wait(|completion| ended = Some(completion)).await?;
        }
        let ended = ended.ok_or("no completion")?;
        if !ended.status.is_success() {
            return Err(ended.status.to_string().into());
        }
        let len = ended.result.min(CAPACITY.into()) as usize;
        let mut result = vec![0; len];
        whole.read(0, &mut result);
        std::io::stdout().write_all(&result)?;
        Ok(())
    })
}
