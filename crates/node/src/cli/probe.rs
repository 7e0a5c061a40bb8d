//! Which protocol an endpoint speaks.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Endpoint, Tls};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How HTTP/2 begins (RFC 9113 section 3.4), with an empty SETTINGS frame after it.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The type of the frame that a server of HTTP/2 sends first.
const SETTINGS: u8 = 4;
/// HTTP/2 over TLS.
const HTTP2: &[u8] = b"h2";
/// What begins a TLS server's answer to somebody who speaks none (RFC 8446 section 5.1): the alert record, and its version's first half.
const ALERT: &[u8] = &[21, 3];
const PATIENCE: Duration = Duration::from_secs(5);

/// What an endpoint speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    /// As gRPC does and an S3 door does not.
    Http2,
    Http1,
    /// HTTP/1 too, about the server's health.
    Console,
    /// TLS, where it was named without.
    Tls,
    /// No TLS, where it was named with it.
    Plaintext,
}

/// What the endpoint speaks. One that nobody answers at, or whose certificate is not trusted, counts as one that speaks HTTP/2: the call
/// that follows says better what is wrong. `ca`: whom to trust behind TLS, else the machine's certificates.
pub async fn spoken(endpoint: &Endpoint, ca: Option<&Path>) -> Spoken {
    let asked = async {
        let Ok(stream) = dial(endpoint).await else {
            return Spoken::Http2;
        };
        if endpoint.secure() {
            return match agrees_on_http2(stream, endpoint, ca).await {
                Ok(true) => Spoken::Http2,
                Ok(false) => Spoken::Http1,
                Err(error) if is_no_tls(&error) => Spoken::Plaintext,
                Err(_) => Spoken::Http2,
            };
        }
        match first_word(stream).await.unwrap_or(Spoken::Http1) {
            Spoken::Http1 if is_console(endpoint).await.unwrap_or(false) => Spoken::Console,
            spoken => spoken,
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asked).await;
    asked.unwrap_or(Spoken::Http2)
}

/// Whether nobody listens there.
pub async fn is_closed(endpoint: &Endpoint) -> bool {
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    let dialled = tokio::time::timeout(PATIENCE, dial(endpoint)).await;
    dialled.is_ok_and(|dialled| dialled.is_err_and(refused))
}

/// A connection to it.
pub async fn dial(endpoint: &Endpoint) -> io::Result<TcpStream> {
    TcpStream::connect((endpoint.host(), endpoint.port())).await
}

/// Who speaks so when HTTP/2 is spoken to him.
async fn first_word(mut stream: TcpStream) -> io::Result<Spoken> {
    stream.write_all(PREFACE).await?;
    // An alert has seven bytes.
    let mut head = [0; 9];
    stream.read_exact(&mut head[..7]).await?;
    if head.starts_with(ALERT) {
        return Ok(Spoken::Tls);
    }
    stream.read_exact(&mut head[7..]).await?;
    match head[3] == SETTINGS && !head.starts_with(b"HTTP") {
        true => Ok(Spoken::Http2),
        false => Ok(Spoken::Http1),
    }
}

/// Whether it tells strangers of its health, as the console does. An S3 door might have an object of that name, and names its requests.
async fn is_console(endpoint: &Endpoint) -> io::Result<bool> {
    let mut stream = dial(endpoint).await?;
    let host = endpoint.authority();
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    Ok(answer.starts_with("http/1.1 200") && !answer.contains("\r\nx-amz-"))
}

/// Whether the other end's first bytes were no record of TLS.
fn is_no_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(
        inner,
        Some(rustls::Error::InvalidMessage(
            rustls::InvalidMessage::InvalidContentType
        ))
    )
}

/// Which of the two protocols the other end of TLS chooses (RFC 7301).
async fn agrees_on_http2(
    stream: TcpStream,
    endpoint: &Endpoint,
    ca: Option<&Path>,
) -> io::Result<bool> {
    let tls = Tls::new(ca).map_err(io::Error::other)?;
    let mut config = (*tls.config()).clone();
    config.alpn_protocols = [HTTP2, b"http/1.1"].map(<[u8]>::to_vec).into();
    let name = ServerName::try_from(endpoint.host().to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await?;
    Ok(stream.get_ref().1.alpn_protocol() == Some(HTTP2))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answers(answer: &'static [u8]) -> Spoken {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; PREFACE.len()];
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(asked, PREFACE);
            stream.write_all(answer).await.unwrap();
        });
        let spoken = spoken(&endpoint.parse().unwrap(), None).await;
        served.await.unwrap();
        spoken
    }

    #[tokio::test]
    async fn the_first_bytes_tell_who_speaks() {
        let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x80";
        assert_eq!(answers(settings).await, Spoken::Http2);
        let refusal = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        assert_eq!(answers(refusal).await, Spoken::Http1);
        assert_eq!(answers(b"").await, Spoken::Http1);
        assert_eq!(answers(b"\x15\x03\x01\0\x02\x02\x46").await, Spoken::Tls);
    }
}
