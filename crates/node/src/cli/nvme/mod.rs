//! `forebay nvme`: subsystems at an address, and keys and values of any NVMe device.

mod connect;
mod device;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::{Args, Subcommand};
use forebay_bench::Size;
use forebay_client::{kv, transfer};
use forebay_nvme::initiator::StoreOptions;
use forebay_proto::nvme::Status;
use serde_json::json;

use super::show;
use crate::exit::{Exit, Failure, Outcome};
use connect::{HostArgs, Place};
use device::Device;

/// Use NVMe namespaces of keys and values, ours or others'
#[derive(Debug, Args)]
#[command(after_help = "\
A DEVICE is kv://HOST[:PORT]/SUBNQN/NSID, kv://HOST[:PORT]/NSID where there is one subsystem, a device of the kernel's driver such as
/dev/ng0n1, or a vfio-user socket, /DIR/cntrl or /DIR/cntrl/NSID. Keys have 1 to 16 bytes; a Forebay takes up to 255, but not by the kernel's
driver.

Examples:
  forebay nvme discover 10.0.0.7
  forebay nvme connect-string
  forebay nvme list kv://10.0.0.7
  forebay nvme store kv://10.0.0.7/1 weights ./weights.bin --if-absent
  forebay nvme retrieve /dev/ng0n1 weights - | sha256sum
  forebay nvme retrieve /run/forebay/vm0/cntrl/1 weights ./weights.bin
  forebay nvme keys kv://10.0.0.7/1 --json
  forebay nvme exec kv://10.0.0.7/1 weights 16 > digest")]
pub struct NvmeArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the subsystems that a discovery controller knows
    #[command(after_help = "Example: forebay nvme discover 10.0.0.7")]
    Discover {
        /// `HOST[:PORT]`
        #[arg(default_value = "127.0.0.1:4420")]
        place: Place,
        #[command(flatten)]
        host: HostArgs,
    },
    /// Print what to type to connect: for nvme-cli, for SPDK, for this program
    #[command(after_help = "Example: forebay nvme connect-string 10.0.0.7")]
    ConnectString {
        /// `HOST[:PORT]`
        #[arg(default_value = "127.0.0.1:4420")]
        place: Place,
        #[command(flatten)]
        host: HostArgs,
    },
    /// List the namespaces that we see
    #[command(after_help = "Example: forebay nvme list kv://10.0.0.7")]
    List {
        /// `kv://HOST[:PORT][/SUBNQN]`, or a vfio-user socket
        #[arg(default_value = "127.0.0.1:4420")]
        place: Place,
        #[command(flatten)]
        host: HostArgs,
    },
    /// Store a value
    #[command(
        after_help = "Example: forebay nvme store kv://10.0.0.7/1 weights ./weights.bin --if-absent"
    )]
    Store {
        #[command(flatten)]
        device: DeviceArgs,
        /// The key
        key: String,
        /// The file with the value; `-` for standard input
        file: PathBuf,
        /// Only if the key is not there
        #[arg(long, conflicts_with = "if_exists")]
        if_absent: bool,
        /// Only if the key is there
        #[arg(long)]
        if_exists: bool,
    },
    /// Retrieve a value
    #[command(after_help = "Example: forebay nvme retrieve kv://10.0.0.7/1 weights ./weights.bin")]
    Retrieve {
        #[command(flatten)]
        device: DeviceArgs,
        /// The key
        key: String,
        /// The file to write; `-` for standard output
        #[arg(default_value = "-")]
        file: PathBuf,
    },
    /// Delete keys and their values
    #[command(after_help = "Example: forebay nvme delete kv://10.0.0.7/1 weights")]
    Delete {
        #[command(flatten)]
        device: DeviceArgs,
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Tell which keys are there; ends with 3 when one is not
    #[command(after_help = "Example: forebay nvme exist kv://10.0.0.7/1 weights biases")]
    Exist {
        #[command(flatten)]
        device: DeviceArgs,
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Run a function over a value, of a Forebay; what it writes goes to standard output
    #[command(after_help = "Example: forebay nvme exec kv://10.0.0.7/1 weights 16 > digest")]
    Exec {
        #[command(flatten)]
        device: DeviceArgs,
        /// The key
        key: String,
        /// The number under which the function is allowed (`admin module add --id`)
        #[arg(value_parser = operation)]
        operation: u32,
        /// The most bytes of output
        #[arg(long, value_name = "SIZE", default_value = "1MiB")]
        output: Size,
        /// What the function is told: words, each followed by a NUL
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// List keys
    #[command(after_help = "Example: forebay nvme keys kv://10.0.0.7/1 --after weights --limit 10")]
    Keys {
        #[command(flatten)]
        device: DeviceArgs,
        /// Only what comes after this key
        #[arg(long, value_name = "KEY")]
        after: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
}

fn operation(text: &str) -> Result<u32, String> {
    let wrong = |_| "a function is asked for by the number under which it is allowed".to_owned();
    text.parse().map_err(wrong)
}

#[derive(Debug, Args)]
struct DeviceArgs {
    /// `kv://HOST[:PORT]/[SUBNQN/]NSID`, `/dev/ngXnY`, or `/DIR/cntrl[/NSID]` of vfio-user
    device: Place,
    /// Keys are given and shown in hexadecimal digits
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    host: HostArgs,
}

impl DeviceArgs {
    async fn open(&self) -> Outcome<Device> {
        Device::open(&self.device, &self.host).await
    }

    fn key(&self, text: &str) -> Outcome<Vec<u8>> {
        if !self.hex {
            return Ok(text.as_bytes().to_vec());
        }
        let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
        let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        });
        pairs.collect::<Option<_>>().ok_or_else(|| {
            Failure::new(
                Exit::Usage,
                format_args!("{text:?} is not a key in hexadecimal digits"),
            )
        })
    }

    /// A key in words, as it may be given again where it is text.
    fn shown(&self, key: &[u8]) -> String {
        match self.hex {
            true => hex(key),
            false => show::key(key).into_owned(),
        }
    }

    /// The same for a line of text.
    fn line(&self, key: &[u8]) -> String {
        show::plain(&self.shown(key)).into_owned()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs a command.
pub async fn run(args: NvmeArgs) -> Outcome {
    match args.what {
        What::Discover { place, host } => connect::discover(&place, &host).await,
        What::ConnectString { place, host } => connect::connect_string(&place, &host).await,
        What::List { place, host } => connect::list(&place, &host).await,
        What::Store {
            device,
            key,
            file,
            if_absent,
            if_exists,
        } => {
            let options = StoreOptions {
                if_absent,
                if_exists,
                ..StoreOptions::default()
            };
            store(&device, &key, &file, options).await
        }
        What::Retrieve { device, key, file } => retrieve(&device, &key, &file).await,
        What::Delete { device, keys } => delete(&device, &keys).await,
        What::Exist { device, keys } => exist(&device, &keys).await,
        What::Exec {
            device,
            key,
            operation,
            output,
            arguments,
        } => exec(&device, &key, operation, &arguments, output).await,
        What::Keys {
            device,
            after,
            limit,
        } => list_keys(&device, after.as_deref(), limit.unwrap_or(usize::MAX)).await,
    }
}

async fn store(args: &DeviceArgs, key: &str, file: &Path, options: StoreOptions) -> Outcome {
    let key = args.key(key)?;
    let device = args.open().await?;
    // Of what is too long a byte too many, for which the device refuses it.
    let bytes_max = u64::from(device.value_bytes_max()) + 1;
    let mut value = Vec::new();
    match file == Path::new("-") {
        false => {
            let opened = File::open(file).map_err(Failure::file(file))?;
            let read = opened.take(bytes_max).read_to_end(&mut value);
            read.map_err(Failure::file(file))?;
        }
        true => {
            let read = io::stdin().lock().take(bytes_max).read_to_end(&mut value);
            read.map_err(Failure::io("standard input"))?;
        }
    }
    let bytes = value.len();
    device.store(&key, Bytes::from(value), options).await?;
    match args.host.json {
        true => show::json(&json!({"key": args.shown(&key), "bytes": bytes})),
        false => show::line(&format!("{bytes} bytes stored")),
    }
}

async fn retrieve(args: &DeviceArgs, key: &str, file: &Path) -> Outcome {
    let key = args.key(key)?;
    let value = args.open().await?.retrieve(&key).await?;
    if file == Path::new("-") {
        show::bytes(&value)?;
        if args.host.json {
            // Standard output is the value.
            eprintln!("{}", json!({"key": args.shown(&key), "bytes": value.len()}));
        }
        return Ok(());
    }
    transfer::write_file(file, &value)?;
    match args.host.json {
        true => show::json(&json!({"key": args.shown(&key), "bytes": value.len()})),
        false => show::line(&format!("{} bytes retrieved", value.len())),
    }
}

async fn delete(args: &DeviceArgs, keys: &[String]) -> Outcome {
    let device = args.open().await?;
    for key in keys {
        let key = args.key(key)?;
        device.delete(&key).await.map_err(|failure| {
            Failure::new(
                failure.exit,
                format_args!("{}: {failure}", args.shown(&key)),
            )
        })?;
        match args.host.json {
            true => show::json(&json!({"key": args.shown(&key), "deleted": true}))?,
            false => show::line(&format!("{} deleted", args.line(&key)))?,
        }
    }
    Ok(())
}

async fn exist(args: &DeviceArgs, keys: &[String]) -> Outcome {
    let device = args.open().await?;
    let mut missing = 0;
    for key in keys {
        let key = args.key(key)?;
        let there = device.exist(&key).await?;
        missing += usize::from(!there);
        match args.host.json {
            true => show::json(&json!({"key": args.shown(&key), "exists": there}))?,
            false => {
                let word = if there { "there" } else { "not there" };
                show::line(&format!("{} {word}", args.line(&key)))?;
            }
        }
    }
    match missing {
        0 => Ok(()),
        // The lines have said it.
        _ => Err(Failure::new(Exit::NotFound, "")),
    }
}

async fn exec(
    args: &DeviceArgs,
    key: &str,
    operation: u32,
    words: &[String],
    output: Size,
) -> Outcome {
    let key = args.key(key)?;
    let capacity = u32::try_from(output.0)
        .map_err(|_| Failure::new(Exit::Usage, "at most 4 GiB of output"))?;
    let arguments: String = words.iter().map(|word| format!("{word}\0")).collect();
    let device = args.open().await?;
    let executed = device
        .execute(&key, operation, arguments.as_bytes(), capacity)
        .await?;
    show::bytes(&executed.bytes)?;
    if args.host.json {
        // Standard output is the function's.
        eprintln!("{}", json!({"length": executed.len}));
    }
    match executed.len - executed.bytes.len() as u64 {
        0 => Ok(()),
        _ => Err(Failure::new(
            Exit::Limit,
            format_args!(
                "the output has {} bytes, of which {} came: see --output",
                executed.len,
                executed.bytes.len()
            ),
        )),
    }
}

async fn list_keys(args: &DeviceArgs, after: Option<&str>, limit: usize) -> Outcome {
    let device = args.open().await?;
    let mut after = after.map(|after| args.key(after)).transpose()?;
    let mut left = limit;
    loop {
        let page = device.list(after.as_deref()).await?;
        for key in page.iter().take(left) {
            match args.host.json {
                true => show::json(&json!({"key": args.shown(key)}))?,
                false => show::line(&args.line(key))?,
            }
        }
        left = left.saturating_sub(page.len());
        match page.into_iter().next_back() {
            Some(last) if left > 0 => after = Some(last),
            _ => return Ok(()),
        }
    }
}

impl From<forebay_nvme::initiator::Error> for Failure {
    fn from(error: forebay_nvme::initiator::Error) -> Failure {
        use forebay_nvme::initiator::Error;
        let exit = match &error {
            Error::Status(status) => kv::kind(*status).into(),
            Error::Denied(_) => Exit::Denied,
            Error::Invalid(_) => Exit::Usage,
            Error::Lost(_)
            | Error::Unreachable(_)
            | Error::Protocol(_)
            | Error::Damaged
            | Error::Closed => Exit::Failed,
        };
        match error {
            Error::Status(status) if status.code() == Status::INVALID_VALUE_SIZE => {
                let longest = "`forebay nvme list` shows the longest that there may be";
                Failure::new(exit, format_args!("{error}; {longest}"))
            }
            error => Failure::new(exit, error),
        }
    }
}
