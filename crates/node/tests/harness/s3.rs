//! S3 as bytes on a connection: requests that a client library would not let a test hold back or look at.

use std::io::{Read, Write};
use std::net::TcpStream;

use forebay_client::Credentials;
use forebay_proto::s3::sigv4;

use super::Server;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The head of a signed request whose body is sent apart.
pub fn head(
    server: &Server,
    credentials: &Credentials,
    method: &str,
    path: &str,
    len: usize,
) -> String {
    head_with_token(server, credentials, method, path, len, None)
}

/// The same with a token instead of a body.
fn head_with_token(
    server: &Server,
    credentials: &Credentials,
    method: &str,
    path: &str,
    len: usize,
    token: Option<&str>,
) -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let date = sigv4::AmzDate::from_unix_s(now.as_secs() as i64);
    let host = &server.doors["s3"];
    let mut headers = vec![
        ("host", host.as_str()),
        ("x-amz-content-sha256", sigv4::UNSIGNED_PAYLOAD),
        ("x-amz-date", date.as_str()),
    ];
    headers.extend(token.map(|token| ("x-amz-rdma-token", token)));
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let signed = names.join(";");
    let scope = sigv4::CredentialScope::new(&credentials.access_key, &date, "us-east-1");
    let (unqueried, query) = path.split_once('?').unwrap_or((path, ""));
    let request = sigv4::Request {
        method,
        path: unqueried,
        query,
        headers: headers.as_slice(),
    };
    let signing = sigv4::SigningKey::for_scope(&credentials.secret_key, &scope);
    let signature = sigv4::sign(
        &request,
        &signed,
        sigv4::UNSIGNED_PAYLOAD,
        &date,
        &scope,
        &signing,
    );
    let authorization = sigv4::authorization_header(&scope, &signed, &signature);
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\ncontent-length: {len}\r\nauthorization: {authorization}\r\n"
    );
    for (name, value) in &headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}

/// A PUT of so many bytes that the server has begun to serve, and whose body it waits for.
pub fn begin_put(server: &Server, path: &str, len: usize) -> TcpStream {
    let head = head(server, &server.credentials(), "PUT", path, len);
    let head = head.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    let mut stream = TcpStream::connect(&server.doors["s3"]).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut interim = [0; CONTINUE.len()];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(interim, CONTINUE);
    stream
}

/// What was answered.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Answer {
    /// All bytes of one.
    fn of(mut bytes: Vec<u8>) -> Answer {
        let end = bytes.windows(4).position(|at| at == b"\r\n\r\n").unwrap();
        let status = str::from_utf8(&bytes[..end]).unwrap().split(' ').nth(1);
        Answer {
            status: status.unwrap().parse().unwrap(),
            body: bytes.split_off(end + 4),
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// One request whose payload goes where a token says.
pub fn ask_with_token(
    server: &Server,
    credentials: &Credentials,
    method: &str,
    path: &str,
    token: &str,
) -> Answer {
    let head = head_with_token(server, credentials, method, path, 0, Some(token));
    let head = head.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    let mut stream = TcpStream::connect(&server.doors["s3"]).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    Answer::of(answer)
}

/// One request on a connection of its own; the body is sent when the server asks for it.
pub fn ask(
    server: &Server,
    credentials: &Credentials,
    method: &str,
    path: &str,
    body: &[u8],
) -> Answer {
    let more = match body.is_empty() {
        true => "\r\nconnection: close\r\n\r\n",
        false => "\r\nconnection: close\r\nexpect: 100-continue\r\n\r\n",
    };
    let head = head(server, credentials, method, path, body.len()).replace("\r\n\r\n", more);
    let mut stream = TcpStream::connect(&server.doors["s3"]).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = vec![0; CONTINUE.len()];
    stream.read_exact(&mut answer).unwrap();
    if answer == CONTINUE {
        stream.write_all(body).unwrap();
        answer.clear();
    }
    stream.read_to_end(&mut answer).unwrap();
    Answer::of(answer)
}
