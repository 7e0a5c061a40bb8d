//! The server on this host, by the Unix socket in its directory.

use std::path::Path;
use std::time::Duration;

use forebay_proto::s3::percent::{self, Slash};
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exit::{Exit, Failure, Outcome};
use crate::serve::socket;

const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How long a server may take to answer what it need not work for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls the admin API of the server that uses `dir`. `path`: the segments after `/v1`, names among them as they are.
pub async fn ask<T: DeserializeOwned>(
    dir: &Path,
    method: Method,
    path: &[&str],
    body: &impl Serialize,
) -> Outcome<T> {
    // What else is asked for may take hours: of a server that answers at all.
    let reply = match method {
        Method::GET => in_time(dir, &written(path)).await?,
        _ => {
            in_time(dir, &written(&["server"])).await?;
            exchange(dir, method, &written(path), body).await?
        }
    };
    // 204 has no body; `null` is its JSON.
    let text = if reply.is_empty() {
        b"null"
    } else {
        &reply[..]
    };
    serde_json::from_slice(text)
        .map_err(|error| Failure::new(Exit::Failed, format_args!("the server's answer: {error}")))
}

/// A path in which a segment is one, whatever is in it.
fn written(segments: &[&str]) -> String {
    let mut path = "/v1".to_owned();
    for segment in segments {
        path.push('/');
        percent::encode_into(&mut path, segment.as_bytes(), Slash::Encode);
    }
    path
}

/// What there is at a path, from a server that does not only hold its socket open.
async fn in_time(dir: &Path, path: &str) -> Outcome<Vec<u8>> {
    let asked = exchange(dir, Method::GET, path, &());
    let answered = tokio::time::timeout(PATIENCE, asked).await;
    answered.unwrap_or_else(|_| {
        let (place, silence) = (socket::path(dir), PATIENCE.as_secs());
        let words = format_args!("{}: no answer within {silence} s", place.display());
        Err(Failure::new(Exit::Failed, words))
    })
}

async fn exchange(
    dir: &Path,
    method: Method,
    path: &str,
    body: &impl Serialize,
) -> Outcome<Vec<u8>> {
    let place = socket::path(dir);
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format_args!("{}: {error}", place.display()))
    };
    let stream = socket::connect(dir)
        .await
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                Failure::new(Exit::Denied, format_args!("{}: {error}", place.display()))
            }
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => Failure::new(
                Exit::Failed,
                format_args!(
                    "no server uses {} (start `forebay serve`, or name its directory by --dir)",
                    dir.display()
                ),
            ),
            _ => failed(&error),
        })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    // Its errors are those of the request, too.
    tokio::spawn(connection);
    let body = match method {
        Method::GET | Method::DELETE => Vec::new(),
        _ => serde_json::to_vec(body).map_err(|error| failed(&error))?,
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "forebay")
        .body(Full::new(bytes::Bytes::from(body)))
        .map_err(|error| Failure::new(Exit::Usage, error))?;
    let response = sender.send_request(request).await.map_err(|error| {
        // The server closes a stranger's connection without a word.
        match socket::serves_us(dir) {
            Ok(false) => Failure::new(Exit::Denied, format_args!("{}: {error}", place.display())),
            Ok(true) | Err(_) if error.is_parse() => failed(&error),
            Ok(true) | Err(_) => failed(&format_args!(
                "the server ended before it answered ({error})"
            )),
        }
    })?;
    let status = response.status();
    let bytes = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await
        .map_err(|error| failed(&error))?
        .to_bytes();
    if status.is_success() {
        return Ok(bytes.to_vec());
    }
    match serde_json::from_slice::<forebay_control::Error>(&bytes) {
        Ok(error) => Err(error.into()),
        Err(_) => Err(failed(&format!("HTTP status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_not_waited_for_without_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let place = socket::path(dir.path());
        fs::create_dir(place.parent().unwrap()).unwrap();
        let _silent = UnixListener::bind(&place).unwrap();
        for method in [Method::GET, Method::POST] {
            let asked = ask::<Value>(dir.path(), method, &["namespaces"], &());
            let failure = asked.await.unwrap_err();
            assert_eq!(failure.exit, Exit::Failed);
            assert!(
                failure.message.ends_with("no answer within 30 s"),
                "{failure}"
            );
        }
    }
}
