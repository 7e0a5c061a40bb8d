//! Bodies of `ExecuteObject`, which is ours: `POST /BUCKET/KEY?execute` runs an allowed module over objects (`docs/execute.md`).

use base64_simd::STANDARD;

use super::{Scanner, XmlError, XmlWriter, scan::once};
use crate::s3::error::S3Error;

/// The most inputs beside the object that the request names.
pub const MAX_EXECUTE_INPUTS: usize = 63;
/// The most bytes of arguments.
pub const MAX_EXECUTE_ARGUMENTS: usize = 1 << 20;

/// Which module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecuteModule {
    /// By digest (`sha256:` and 64 hexadecimal digits) or by the name that an administrator gave it.
    Name(String),
    /// By the number that an administrator gave it.
    Number(u32),
}

/// An object beside the one that the request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecuteInput {
    /// Its bucket, when it is another.
    pub bucket: Option<String>,
    /// Its key.
    pub key: String,
    /// Its version, when one is asked for.
    pub version_id: Option<String>,
    /// Which bytes, as a `Range` header says it.
    pub range: Option<String>,
}

/// The object that the output becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecuteOutput {
    /// Its bucket, when it is another than the request's.
    pub bucket: Option<String>,
    /// Its key.
    pub key: String,
    /// Its content type.
    pub content_type: Option<String>,
}

/// The body of `ExecuteObject`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecuteRequest {
    /// What runs.
    pub module: ExecuteModule,
    /// Which of its functions; the module's own choice when `None`.
    pub function: Option<String>,
    /// What it is told, at most [`MAX_EXECUTE_ARGUMENTS`] bytes: words, each ended by a NUL, or any bytes.
    pub arguments: Vec<u8>,
    /// Further inputs, at most [`MAX_EXECUTE_INPUTS`].
    pub inputs: Vec<ExecuteInput>,
    /// Where the output goes; back to the caller when `None`.
    pub output: Option<ExecuteOutput>,
    /// The most bytes that come back.
    pub capacity: Option<u64>,
    /// How long it may take, in milliseconds.
    pub deadline_ms: Option<u64>,
}

/// Reads the body of `ExecuteObject`.
///
/// # Errors
/// `MalformedXML`, also for too much of anything.
pub fn parse_execute(body: &[u8]) -> Result<ExecuteRequest, S3Error> {
    let mut scanner = Scanner::root(body, "ExecuteRequest")?;
    let (mut module, mut function, mut output) = (None, None, None);
    let (mut capacity, mut deadline_ms) = (None, None);
    let (mut words, mut raw): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
    let mut inputs = Vec::new();
    while let Some(name) = scanner.child()? {
        match name {
            "Module" => once(&mut module, ExecuteModule::Name(scanner.text()?))?,
            "Operation" => once(&mut module, ExecuteModule::Number(scanner.number()?))?,
            "Function" => once(&mut function, scanner.text()?)?,
            "Argument" => {
                let words = words.get_or_insert_default();
                words.extend_from_slice(scanner.text()?.as_bytes());
                words.push(0);
            }
            "Arguments" => {
                let text = scanner.text()?;
                let bytes = STANDARD.decode_to_vec(text.trim_ascii());
                once(&mut raw, bytes.map_err(|_| XmlError::Schema("no Base64"))?)?;
            }
            "Input" if inputs.len() < MAX_EXECUTE_INPUTS => inputs.push(input(&mut scanner)?),
            "Output" => once(&mut output, self::output(&mut scanner)?)?,
            "Capacity" => once(&mut capacity, scanner.number()?)?,
            "DeadlineMilliseconds" => once(&mut deadline_ms, scanner.number()?)?,
            _ => return Err(XmlError::Schema("an element that has no place here").into()),
        }
    }
    scanner.finish()?;
    let arguments = match (words, raw) {
        (Some(_), Some(_)) => return Err(XmlError::Schema("arguments of two kinds").into()),
        (words, raw) => words.or(raw).unwrap_or_default(),
    };
    if arguments.len() > MAX_EXECUTE_ARGUMENTS {
        return Err(XmlError::TooLong.into());
    }
    Ok(ExecuteRequest {
        module: module.ok_or(XmlError::Schema("no module"))?,
        function: function.filter(|function: &String| !function.is_empty()),
        arguments,
        inputs,
        output,
        capacity,
        deadline_ms,
    })
}

fn input(scanner: &mut Scanner<'_>) -> Result<ExecuteInput, XmlError> {
    let (mut bucket, mut key, mut version_id, mut range) = (None, None, None, None);
    while let Some(name) = scanner.child()? {
        match name {
            "Bucket" => once(&mut bucket, scanner.text()?)?,
            "Key" => once(&mut key, scanner.text()?)?,
            "VersionId" => once(&mut version_id, scanner.text()?)?,
            "Range" => once(&mut range, scanner.text()?)?,
            _ => return Err(XmlError::Schema("an element that has no place here")),
        }
    }
    Ok(ExecuteInput {
        bucket,
        key: key.ok_or(XmlError::Schema("an input without a key"))?,
        version_id,
        range,
    })
}

fn output(scanner: &mut Scanner<'_>) -> Result<ExecuteOutput, XmlError> {
    let (mut bucket, mut key, mut content_type) = (None, None, None);
    while let Some(name) = scanner.child()? {
        match name {
            "Bucket" => once(&mut bucket, scanner.text()?)?,
            "Key" => once(&mut key, scanner.text()?)?,
            "ContentType" => once(&mut content_type, scanner.text()?)?,
            _ => return Err(XmlError::Schema("an element that has no place here")),
        }
    }
    Ok(ExecuteOutput {
        bucket,
        key: key.ok_or(XmlError::Schema("an output without a key"))?,
        content_type,
    })
}

/// Writes the body of `ExecuteObject`.
#[must_use]
pub fn execute_body(request: &ExecuteRequest) -> String {
    const ROOT: &str = "ExecuteRequest";
    let mut writer = XmlWriter::new(ROOT);
    match &request.module {
        ExecuteModule::Name(name) => writer.text("Module", name),
        ExecuteModule::Number(number) => writer.number("Operation", u64::from(*number)),
    }
    writer.optional("Function", request.function.as_deref());
    if !request.arguments.is_empty() {
        let arguments = STANDARD.encode_to_string(&request.arguments);
        writer.text("Arguments", &arguments);
    }
    for input in &request.inputs {
        writer.open("Input");
        writer.optional("Bucket", input.bucket.as_deref());
        writer.text("Key", &input.key);
        writer.optional("VersionId", input.version_id.as_deref());
        writer.optional("Range", input.range.as_deref());
        writer.close("Input");
    }
    if let Some(output) = &request.output {
        writer.open("Output");
        writer.optional("Bucket", output.bucket.as_deref());
        writer.text("Key", &output.key);
        writer.optional("ContentType", output.content_type.as_deref());
        writer.close("Output");
    }
    if let Some(capacity) = request.capacity {
        writer.number("Capacity", capacity);
    }
    if let Some(deadline_ms) = request.deadline_ms {
        writer.number("DeadlineMilliseconds", deadline_ms);
    }
    writer.finish(ROOT)
}

/// The reply to `ExecuteObject` whose output became an object: its bucket, key, entity tag and length.
#[must_use]
pub fn execute_result(bucket: &str, key: &str, etag: &str, bytes: u64) -> String {
    const ROOT: &str = "ExecuteResult";
    let mut writer = XmlWriter::new(ROOT);
    writer.text("Bucket", bucket);
    writer.text("Key", key);
    writer.etag("ETag", etag);
    writer.number("Size", bytes);
    writer.finish(ROOT)
}
