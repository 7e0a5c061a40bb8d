//! Which protocol an endpoint speaks.

use std::time::Duration;

use forebay_client::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How HTTP/2 begins (RFC 9113 section 3.4), with an empty SETTINGS frame after it.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The type of the frame that a server of HTTP/2 sends first.
const SETTINGS: u8 = 4;
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the endpoint speaks HTTP/2, as gRPC does and an S3 door does not. One that nobody answers at counts as one that does: the
/// call that follows says better what is wrong. Behind TLS nobody can look without a certificate: there gRPC is expected.
pub async fn speaks_http2(endpoint: &Endpoint) -> bool {
    if endpoint.secure() {
        return true;
    }
    let asked = async {
        let mut stream = TcpStream::connect((endpoint.host(), endpoint.port())).await?;
        stream.write_all(PREFACE).await?;
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        Ok::<_, std::io::Error>(head)
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(head)) => head[3] == SETTINGS && !head.starts_with(b"HTTP"),
        Ok(Err(error)) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        Err(_) => true,
    }
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
        let speaks = speaks_http2(&endpoint.parse().unwrap()).await;
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
