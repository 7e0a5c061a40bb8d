//! `forebay exec`: a function sent to objects.

use std::io::Write;
use std::path::Path;

use clap::Args;
use forebay_api::v1::{self, execute_request};
use forebay_bench::Size;
use forebay_client::direct::Choice;
use forebay_client::{Execution, Kind, NotExecuted};
use forebay_control::rpc::OUTPUT_BYTES_MAX;
use forebay_store::ModuleDigest;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::address::Address;
use super::server::ServerArgs;
use super::{modules, show};
use crate::exit::{Exit, Failure, Outcome};

/// What a server's answer holds of output, whatever it is asked for.
const OUTPUT_MAX: Size = Size(OUTPUT_BYTES_MAX);

/// Run a function over objects, where they are
#[derive(Debug, Args)]
#[command(after_help = "\
A module runs where `forebay admin module add` allowed it, and nowhere else. What it writes goes to standard output, what it logs to
standard error.

Examples:
  forebay exec lines.wasm fb://logs/today fb://logs/yesterday --function grep -- -c ERROR
  forebay exec sha256:9f86...0a08 fb://data/model.bin > digest
  forebay exec resize fb://images/cat.jpg --into fb://tensors/cat -- 224 224")]
pub struct ExecArgs {
    /// A file with the module, its sha256:HEX, or the name under which it is allowed
    module: String,
    /// fb://NAMESPACE/KEY, in the order in which the function counts them
    inputs: Vec<Address>,
    /// Which of the module's functions [default: as the module was allowed, else run]
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Store the output as an object instead
    #[arg(long, value_name = "fb://NAMESPACE/KEY")]
    into: Option<Address>,
    /// The most bytes of output, at most 64MiB; --into takes all of it
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    output: Size,
    /// How long it may take, in milliseconds, when that is less than the server's bound
    #[arg(long, value_name = "MS")]
    deadline: Option<u64>,
    /// What the function is told: words, each followed by a NUL
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs it.
pub async fn run(args: ExecArgs) -> Outcome {
    let request = request(&args)?;
    let (endpoint, credentials) = args.server.rpc().await?;
    let options = args.server.options(Choice::Auto)?;
    let execution = Execution::new(&endpoint, &credentials, &options)?;
    let mut executing = match execution.execute(request).await {
        Err(not) if not.error.kind() == Kind::NotFound => {
            return Err(match absent(&args).await {
                Some(failure) => failure,
                None => failed(not),
            });
        }
        executing => executing.map_err(failed)?,
    };
    let mut written = 0_u64;
    while let Some(part) = executing.next().await? {
        written += part.len() as u64;
        show::bytes(&part)?;
    }
    let Some(executed) = executing.executed() else {
        return Err(Failure::new(Exit::Failed, "the output has no end"));
    };
    logged(&executed.logs)?;
    let mut told = json!({
        "length": executed.length,
        "read": executed.read,
        "thread_us": executed.thread_ns as f64 / 1000.0,
        "memory": executed.memory,
    });
    if let (Some(address), Some(object)) = (&args.into, &executed.object) {
        if !args.server.json {
            return show::line(&format!("{address}: {} bytes", object.size));
        }
        told["object"] = json!(address.to_string());
        told["size"] = json!(object.size);
        return show::json(&told);
    }
    if args.server.json {
        // Standard output is the function's.
        let mut error = std::io::stderr();
        writeln!(error, "{told}").map_err(Failure::io("standard error"))?;
    }
    match executed.length {
        length if length > written => Err(Failure::new(
            Exit::Limit,
            format_args!(
                "the output has {length} bytes, of which {written} came: --output takes up to {OUTPUT_MAX}, --into all of it"
            ),
        )),
        _ => Ok(()),
    }
}

/// Which input it is that is not there: the server does not say.
async fn absent(args: &ExecArgs) -> Option<Failure> {
    let door = args.server.door(1).await.ok()?;
    for address in &args.inputs {
        if let Err(failure) = door.info(address, "").await
            && failure.exit == Exit::NotFound
        {
            return Some(failure);
        }
    }
    None
}

fn request(args: &ExecArgs) -> Outcome<v1::ExecuteRequest> {
    let inputs = args.inputs.iter().map(|address| v1::ExecuteInput {
        namespace: address.namespace.clone(),
        key: address.key.clone().into_bytes().into(),
        ..v1::ExecuteInput::default()
    });
    let output = match &args.into {
        None if args.output.0 > OUTPUT_MAX.0 => {
            return Err(Failure::new(
                Exit::Usage,
                format_args!("--output is at most {OUTPUT_MAX}; --into takes all of it"),
            ));
        }
        None => execute_request::Output::Capacity(args.output.0),
        Some(address) => execute_request::Output::Target(v1::ExecuteTarget {
            namespace: address.namespace.clone(),
            key: address.key.clone().into_bytes().into(),
            ..v1::ExecuteTarget::default()
        }),
    };
    let words = args.arguments.iter().map(|word| format!("{word}\0"));
    Ok(v1::ExecuteRequest {
        function: args.function.clone().unwrap_or_default(),
        inputs: inputs.collect(),
        arguments: words.collect::<String>().into(),
        session: bytes::Bytes::new(),
        deadline_ms: args.deadline.unwrap_or(0),
        module: Some(module(&args.module)?),
        output: Some(output),
    })
}

/// A file is what its digest says; what is no file is a digest or a name.
fn module(text: &str) -> Outcome<execute_request::Module> {
    let digest = |digest: ModuleDigest| {
        execute_request::Module::Sha256(bytes::Bytes::copy_from_slice(&digest.0))
    };
    if let Some(given) = text.strip_prefix("sha256:") {
        return match ModuleDigest::parse(given) {
            Some(given) => Ok(digest(given)),
            None => Err(Failure::new(
                Exit::Usage,
                format_args!("{text:?} is not a SHA-256: 64 hexadecimal digits"),
            )),
        };
    }
    let path = Path::new(text);
    if path.is_file() {
        let wasm = modules::read(path)?;
        return Ok(digest(ModuleDigest(Sha256::digest(&wasm).into())));
    }
    if text.contains('/') || text.ends_with(".wasm") {
        return Err(Failure::new(
            Exit::NotFound,
            format_args!("there is no file {text:?}"),
        ));
    }
    Ok(execute_request::Module::Name(text.to_owned()))
}

fn failed(failed: NotExecuted) -> Failure {
    // Why it failed is said in any case.
    let _ = logged(&failed.logs);
    let denied = failed.error.kind() == Kind::Denied;
    let failure = Failure::from(failed.error);
    match denied {
        true => Failure::new(
            failure.exit,
            format_args!(
                "{}; `forebay admin module add` allows modules",
                failure.message
            ),
        ),
        false => failure,
    }
}

/// Lines of a function's, on standard error.
fn logged(logs: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(logs);
    let lines = text.lines().map(|line| format!("{}\n", show::plain(line)));
    std::io::stderr()
        .write_all(lines.collect::<String>().as_bytes())
        .map_err(Failure::io("standard error"))
}
