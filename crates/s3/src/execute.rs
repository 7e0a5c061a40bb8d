//! `ExecuteObject`, which is ours: `POST /BUCKET/KEY?execute` runs an allowed module over objects (`docs/execute.md`).

use std::time::Duration;

use forebay_mem::Buf;
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::percent::{self, Slash};
use forebay_proto::s3::uri::{self, check_key, parse_range};
use forebay_proto::s3::xml::{
    ExecuteInput, ExecuteModule, ExecuteOutput, ExecuteRequest, execute_result, parse_execute,
};
use forebay_store::{
    Address, ByteRange, Condition, Execute, Executed, Input, Module, ModuleDigest, Output, Seal,
    Store, StoreError, StoreOptions, VersionId,
};
use http::header::{CONTENT_TYPE, HeaderMap, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE};

use crate::access::need_key;
use crate::call::{Call, show_version_in};
use crate::ingest::Inbound;
use crate::reply::{self, Reply, ReplyBody};
use crate::status::{Outcome, Refusal};
use crate::{conditions, headers, kept};

/// The most bytes of output that come back; what is longer is cut, or becomes an object.
const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// The most bytes of logs that an answer's header carries, before they are percent-encoded.
const LOG_BYTES_MAX: usize = 4096;

/// An input, all of it checked.
struct Chosen<'a> {
    bucket: &'a str,
    key: &'a str,
    version: Option<VersionId>,
    range: ByteRange,
}

/// `ExecuteObject`.
pub(crate) async fn object<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    let tenant = need_key(call.caller)?;
    let mut request = parse_execute(&call.document(inbound).await?)?;
    let arguments = std::mem::take(&mut request.arguments);
    call.connection.bind_request();
    let chosen = choose(call, &request.inputs).await?;
    let inputs: Vec<Input<'_>> = chosen
        .iter()
        .map(|one| Input {
            address: Address::object(one.bucket, one.key.as_bytes()),
            version: one.version,
            range: one.range,
        })
        .collect();
    let output = match &request.output {
        None => {
            let conditions = [IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE];
            if conditions
                .iter()
                .any(|name| call.headers.contains_key(name))
            {
                return Err(Refusal::new(
                    ErrorCode::InvalidRequest,
                    "Conditions are about the object that the output becomes, and there is no Output.",
                ));
            }
            Output::Inline {
                capacity: capacity(&request)?,
            }
        }
        Some(output) => store_into(call, output).await?,
    };
    let executed = call.store().execute(Execute {
        tenant,
        module: module(&request.module)?,
        function: request.function.as_deref(),
        inputs: &inputs,
        arguments: arguments.into(),
        output,
        deadline: request.deadline_ms.map(Duration::from_millis),
    });
    let executed = executed.await;
    // A function takes its time: what it has to say is for a key that still is one.
    call.still_admitted()?;
    let executed = executed.map_err(refusal)?;
    Ok(answer(call, &request, executed))
}

/// The object of the request, then the others.
async fn choose<'a, S: Store>(
    call: &Call<'a, S>,
    others: &'a [ExecuteInput],
) -> Outcome<Vec<Chosen<'a>>> {
    let mut chosen = Vec::with_capacity(1 + others.len());
    chosen.push(Chosen {
        bucket: call.bucket,
        key: call.key,
        version: call.version()?,
        range: match headers::text(call.headers, &RANGE) {
            None => ByteRange::Full,
            Some(text) => range(text)?,
        },
    });
    for input in others {
        check_key(&input.key)?;
        chosen.push(Chosen {
            bucket: input.bucket.as_deref().unwrap_or(call.bucket),
            key: &input.key,
            version: input
                .version_id
                .as_deref()
                .map(headers::parse_version)
                .transpose()?,
            range: match &input.range {
                None => ByteRange::Full,
                Some(text) => range(text)?,
            },
        });
    }
    // The object of the request once more: since it was let in, its body was waited for.
    for one in &mut chosen {
        one.version = call.permit_input(one.bucket, one.key, one.version).await?;
    }
    Ok(chosen)
}

/// A range that is none would silently be the whole object: here that is refused.
fn range(text: &str) -> Outcome<ByteRange> {
    Ok(match parse_range(text) {
        Some(uri::ByteRange::From(first)) => ByteRange::From(first),
        Some(uri::ByteRange::Span { first, last }) => ByteRange::Inclusive(first, last),
        Some(uri::ByteRange::Suffix(count)) => ByteRange::Suffix(count),
        None => {
            return Err(Refusal::argument(
                "Range",
                text,
                "This is not one range of bytes.",
            ));
        }
    })
}

fn module(asked: &ExecuteModule) -> Outcome<Module<'_>> {
    Ok(match asked {
        ExecuteModule::Number(number) => Module::Number(*number),
        ExecuteModule::Name(name) if name.starts_with("sha256:") => {
            let digest = ModuleDigest::parse(name);
            let refused = || Refusal::argument("Module", name, "This is not a SHA-256.");
            Module::Digest(digest.ok_or_else(refused)?)
        }
        ExecuteModule::Name(name) => Module::Name(name),
    })
}

fn capacity(request: &ExecuteRequest) -> Outcome<usize> {
    let Some(asked) = request.capacity else {
        return Ok(OUTPUT_BYTES_MAX);
    };
    let capacity = usize::try_from(asked).ok();
    let capacity = capacity.filter(|capacity| *capacity <= OUTPUT_BYTES_MAX);
    let words = "At most 16777216 bytes come back; let more become an object.";
    capacity.ok_or_else(|| Refusal::argument("Capacity", &asked.to_string(), words))
}

async fn store_into<'a, S: Store>(
    call: &Call<'a, S>,
    output: &'a ExecuteOutput,
) -> Outcome<Output<'a>> {
    check_key(&output.key)?;
    let bucket = output.bucket.as_deref().unwrap_or(call.bucket);
    call.permit_target(bucket, &output.key).await?;
    // `If-Match` and `If-None-Match` are about the object that the output becomes.
    let condition = conditions::of_write(call.headers)?;
    if matches!(condition, Condition::IfMatch(_)) {
        // The outcome tells its entity tag.
        call.permit_source(bucket, &output.key, None).await?;
    }
    let mut about = HeaderMap::new();
    if let Some(kind) = &output.content_type {
        about.insert(CONTENT_TYPE, headers::value(kind.as_bytes()));
    }
    Ok(Output::Store {
        address: Address::object(bucket, output.key.as_bytes()),
        options: StoreOptions {
            size: None,
            condition,
        },
        seal: Seal {
            attributes: kept::sealed(kept::from_request(&about)?)?,
            ..Seal::default()
        },
    })
}

fn answer<S: Store>(
    call: &Call<'_, S>,
    request: &ExecuteRequest,
    executed: Executed,
) -> Reply<S::Body> {
    let mut reply = match (&request.output, &executed.stored) {
        (Some(output), Some(stored)) => {
            let bucket = output.bucket.as_deref().unwrap_or(call.bucket);
            let tag = stored.meta.etag.as_str();
            let document = execute_result(bucket, &output.key, tag, stored.meta.size);
            let mut reply = reply::xml(document);
            let info = call.store().namespace(bucket).ok();
            show_version_in(info.as_deref(), reply.headers_mut(), stored.meta.version);
            reply
        }
        _ => {
            let pieces = executed.bytes.into_iter().map(Buf::into_bytes);
            let mut reply = http::Response::new(ReplyBody::pieces(pieces));
            reply
                .headers_mut()
                .insert(CONTENT_TYPE, headers::OCTET_STREAM);
            reply
        }
    };
    let response = reply.headers_mut();
    response.insert(headers::OUTPUT_LENGTH, executed.len.into());
    response.insert(headers::READ_LENGTH, executed.effort.read.into());
    show_logs(response, &executed.logs);
    reply
}

/// The refusal, with what the function had to say before.
fn refusal(error: StoreError) -> Refusal {
    let program = error.program().cloned();
    let mut refusal = Refusal::from(error);
    if let Some(fault) = program {
        let said = refusal.headers.get_or_insert_default();
        if let Some(code) = fault.code {
            said.insert(headers::PROGRAM_CODE, code.into());
        }
        show_logs(said, &fault.logs);
        if let Some(code) = fault.code {
            refusal = refusal.field("ProgramCode", code.to_string());
        }
    }
    refusal
}

fn show_logs(response: &mut HeaderMap, logs: &[u8]) {
    if !logs.is_empty() {
        // The end is where it went wrong.
        let end = &logs[logs.len().saturating_sub(LOG_BYTES_MAX)..];
        let mut text = String::new();
        percent::encode_into(&mut text, end, Slash::Keep);
        response.insert(headers::LOGS, headers::value(text.as_bytes()));
    }
}
