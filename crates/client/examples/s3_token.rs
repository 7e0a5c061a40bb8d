//! Registered memory for a program that speaks S3 by itself: lends its S3 library the header that names the payload.
//!
//! Usage: `s3_token S3-ENDPOINT ACCESS-KEY SECRET-KEY BYTES|fd:N [shm|iwarp]`. Opens a session by `POST /.ort1/connect` (docs/token.md
//! section 7.3), makes its link, registers one region (of so many bytes, or the memory of a memfd that the program passes on), and then
//! does what the lines on standard input say, one line of answer each:
//!
//! | line | answer |
//! |---|---|
//! | `token METHOD PATH QUERY RANGE OFFSET LENGTH`, `-` for an empty query or range | the value of `x-amz-rdma-token` |
//! | `fill OFFSET LENGTH SEED` | the CRC-64/NVME of what is there now, in hexadecimal |
//! | `sum OFFSET LENGTH` | the same, of what is there |
//! | `load OFFSET FILE`, `save OFFSET LENGTH FILE` | `ok`: bytes between the region and a file |
//! | `close` | `ok`: the link is closed, the session stays |
//!
//! What does not work is answered by a line that begins with `error`.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::{BufRead, Write};

use forebay_client::direct::{Region, Request, Token, TokenSession};
use forebay_client::{Credentials, Endpoint};

type Answer = Result<String, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, access_key, secret_key, memory, rest @ ..] = &arguments[..] else {
        return Err(
            "usage: s3_token S3-ENDPOINT ACCESS-KEY SECRET-KEY BYTES|fd:N [shm|iwarp]".into(),
        );
    };
    let endpoint: Endpoint = endpoint.parse()?;
    let credentials = Credentials {
        access_key: access_key.clone(),
        secret_key: secret_key.clone(),
    };
    let transports = rest.first().map_or("shm, iwarp", String::as_str);
    let session = TokenSession::connect(&endpoint, &credentials, transports, None).await?;
    let region = match memory.strip_prefix("fd:") {
        // Opened once more by its name: the number itself belongs to whoever passed it on.
        Some(fd) => {
            let mut options = OpenOptions::new();
            let file = options
                .read(true)
                .write(true)
                .open(format!("/proc/self/fd/{fd}"))?;
            Region::from_memfd(file.into())?
        }
        None => Region::alloc(memory.parse()?)?,
    };
    say(&format!("ready {}", session.path()))?;
    let mut token = None::<Token>;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        // The program tells by its next line that its request was answered.
        if let Some(token) = token.take() {
            token.answered();
        }
        match obey(&session, &region, &line, &mut token).await {
            Ok(answer) => say(&answer)?,
            Err(error) => say(&format!("error {error}"))?,
        }
    }
    Ok(())
}

fn say(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// A token that is given out is kept in `lent`, and the bytes with it.
async fn obey(
    session: &TokenSession,
    region: &Region,
    line: &str,
    lent: &mut Option<Token>,
) -> Answer {
    let words: Vec<&str> = line.split(' ').collect();
    let given = |word: &'static str, text: &str| {
        if text == "-" {
            word.to_owned()
        } else {
            text.to_owned()
        }
    };
    match words[..] {
        ["token", method, path, query, range, offset, length] => {
            let (query, range) = (given("", query), given("", range));
            let request = Request {
                method,
                path,
                query: &query,
                range: &range,
            };
            let offset: usize = offset.parse()?;
            let window = region.window(offset..offset + length.parse::<usize>()?);
            let token = session.token(&request, window).await?;
            let value = token.value.clone();
            *lent = Some(token);
            Ok(value)
        }
        ["fill", offset, length, seed] => {
            let (offset, length): (usize, usize) = (offset.parse()?, length.parse()?);
            let mut state = seed.parse::<u64>()?.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut bytes = Vec::with_capacity(length + 8);
            while bytes.len() < length {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                bytes.extend_from_slice(&state.to_le_bytes());
            }
            match region.write(offset, &bytes[..length]) {
                true => sum(region, offset, length),
                false => Err("out of range".into()),
            }
        }
        ["sum", offset, length] => sum(region, offset.parse()?, length.parse()?),
        ["load", offset, file] => match region.write(offset.parse()?, &std::fs::read(file)?) {
            true => Ok("ok".to_owned()),
            false => Err("out of range".into()),
        },
        ["save", offset, length, file] => {
            let mut bytes = vec![0; length.parse()?];
            if !region.read(offset.parse()?, &mut bytes) {
                return Err("out of range".into());
            }
            std::fs::write(file, bytes)?;
            Ok("ok".to_owned())
        }
        ["close"] => {
            session.close_link();
            Ok("ok".to_owned())
        }
        _ => Err(format!("what is {line:?}?").into()),
    }
}

fn sum(region: &Region, offset: usize, length: usize) -> Answer {
    let crc = region
        .crc64(offset..offset + length)
        .ok_or("out of range")?;
    Ok(format!("{:016x}", crc.value()))
}
