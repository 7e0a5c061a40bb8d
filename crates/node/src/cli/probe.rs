//! Which protocol an endpoint speaks.

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
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the endpoint speaks HTTP/2, as gRPC does and an S3 door does not. One that nobody answers at, or whose certificate is not
/// trusted, counts as one that does: the call that follows says better what is wrong. `ca`: whom to trust behind TLS, else the machine's
/// certificates.
pub async fn speaks_http2(endpoint: &Endpoint, ca: Option<&Path>) -> bool {
    let asked = async {
        let Ok(stream) = TcpStream::connect((endpoint.host(), endpoint.port())).await else {
            return true;
        };
        match endpoint.secure() {
            true => agrees_on_http2(stream, endpoint, ca).await.unwrap_or(true),
            false => begins_with_settings(stream).await.unwrap_or(false),
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or(true)
}

async fn begins_with_settings(mut stream: TcpStream) -> std::io::Result<bool> {
    stream.write_all(PREFACE).await?;
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    Ok(head[3] == SETTINGS && !head.starts_with(b"HTTP"))
}

/// Which of the two protocols the other end of TLS chooses (RFC 7301).
async fn agrees_on_http2(
    stream: TcpStream,
    endpoint: &Endpoint,
    ca: Option<&Path>,
) -> std::io::Result<bool> {
    let tls = Tls::new(ca).map_err(std::io::Error::other)?;
    let mut config = (*tls.config()).clone();
    config.alpn_protocols = [HTTP2, b"http/1.1"].map(<[u8]>::to_vec).into();
    let name = ServerName::try_from(endpoint.host().to_owned()).map_err(std::io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await?;
    Ok(stream.get_ref().1.alpn_protocol() == Some(HTTP2))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answers(answer: &'static [u8]) -> bool {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; PREFACE.len()];
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(asked, PREFACE);
            stream.write_all(answer).await.unwrap();
        });
        let speaks = speaks_http2(&endpoint.parse().unwrap(), None).await;
        served.await.unwrap();
        speaks
    }

    #[tokio::test]
    async fn a_first_frame_tells_http2_from_http1() {
        assert!(answers(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x80").await);
        assert!(!answers(b"HTTP/1.1 400 Bad Request\r\n\r\n").await);
        assert!(!answers(b"").await);
    }
}
