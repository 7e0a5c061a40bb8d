//! Heads of requests, signed and written in place.

use std::io::Write as _;

use forebay_proto::s3::sigv4::{
    self, AmzDate, CredentialScope, EMPTY_SHA256, SigningKey, UNSIGNED_PAYLOAD,
};

use crate::payload::{Payload, STAMP_BYTES};
use crate::s3::Target;

const SIGNED_HEADERS: &str = "host;x-amz-content-sha256;x-amz-date";
/// Keys that a list page asks for.
pub(crate) const LIST_KEYS: u64 = 1000;

/// What a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The object numbered so, whole.
    Get(u64),
    /// The object's metadata.
    Head(u64),
    /// The object replaced by the body numbered `body`.
    Put { object: u64, body: u64 },
    /// [`LIST_KEYS`] keys after the object numbered so.
    List(u64),
    /// The bucket made.
    CreateBucket,
}

/// Signs the requests of one thread.
pub(crate) struct Signer<'a> {
    target: &'a Target,
    date: AmzDate,
    scope: CredentialScope<'a>,
    key: SigningKey,
    path: String,
    query: String,
}

impl<'a> Signer<'a> {
    pub(crate) fn new(target: &'a Target, unix_s: i64) -> Signer<'a> {
        let date = AmzDate::from_unix_s(unix_s);
        let scope = CredentialScope::new(&target.access_key, &date, &target.region);
        let key = SigningKey::for_scope(&target.secret_key, &scope);
        Signer {
            target,
            date,
            scope,
            key,
            path: String::new(),
            query: String::new(),
        }
    }

    /// Writes the signed head of a request into `head`, replacing what was there.
    pub(crate) fn write_head(
        &mut self,
        head: &mut Vec<u8>,
        ask: Ask,
        payload: &Payload,
        signed_payload: bool,
        unix_s: i64,
    ) {
        self.set_time(unix_s);
        self.path.clear();
        self.query.clear();
        let target = self.target;
        self.path.push('/');
        self.path.push_str(&target.bucket);
        let (method, content_length) = match ask {
            Ask::Get(object) | Ask::Head(object) | Ask::Put { object, .. } => {
                self.path.push('/');
                push_key(&mut self.path, payload.len(), object);
                match ask {
                    Ask::Put { .. } => ("PUT", Some(payload.len())),
                    Ask::Head(_) => ("HEAD", None),
                    _ => ("GET", None),
                }
            }
            Ask::List(after) => {
                self.query.push_str("list-type=2&max-keys=1000&prefix=");
                self.query.push_str(&payload.len().to_string());
                self.query.push_str("%2F&start-after=");
                let start = self.query.len();
                push_key(&mut self.query, payload.len(), after);
                if let Some(slash) = self.query[start..].find('/') {
                    self.query
                        .replace_range(start + slash..=start + slash, "%2F");
                }
                ("GET", None)
            }
            Ask::CreateBucket => ("PUT", Some(0)),
        };
        let hash;
        let payload_hash = match ask {
            Ask::Put { body, .. } if signed_payload => {
                let stamp: [u8; STAMP_BYTES] = Payload::stamp(body);
                hash = payload.sha256(&stamp);
                std::str::from_utf8(&hash).unwrap_or_default()
            }
            Ask::Put { .. } => UNSIGNED_PAYLOAD,
            _ => EMPTY_SHA256,
        };
        let headers: [(&str, &str); 3] = [
            ("host", &target.host),
            ("x-amz-content-sha256", payload_hash),
            ("x-amz-date", self.date.as_str()),
        ];
        let request = sigv4::Request {
            method,
            path: &self.path,
            query: &self.query,
            headers: headers.as_slice(),
        };
        let signature = sigv4::sign(
            &request,
            SIGNED_HEADERS,
            payload_hash,
            &self.date,
            &self.scope,
            &self.key,
        );
        let authorization = sigv4::authorization_header(&self.scope, SIGNED_HEADERS, &signature);
        head.clear();
        for part in [method, " ", &self.path] {
            head.extend_from_slice(part.as_bytes());
        }
        if !self.query.is_empty() {
            head.push(b'?');
            head.extend_from_slice(self.query.as_bytes());
        }
        for part in [
            " HTTP/1.1\r\nhost: ",
            &target.host,
            "\r\nx-amz-date: ",
            self.date.as_str(),
            "\r\nx-amz-content-sha256: ",
            payload_hash,
            "\r\nauthorization: ",
            &authorization,
        ] {
            head.extend_from_slice(part.as_bytes());
        }
        if let Some(length) = content_length {
            // Writing to a Vec cannot fail.
            let _ = write!(head, "\r\ncontent-length: {length}");
        }
        head.extend_from_slice(b"\r\n\r\n");
    }

    fn set_time(&mut self, unix_s: i64) {
        if unix_s == self.date.unix_s() {
            return;
        }
        let date = AmzDate::from_unix_s(unix_s);
        if date.date() != self.date.date() {
            self.scope = CredentialScope::new(&self.target.access_key, &date, &self.target.region);
            self.key = SigningKey::for_scope(&self.target.secret_key, &self.scope);
        }
        self.date = date;
    }
}

/// The key of an object: its size, then its number with leading zeros, so that keys sort by number.
fn push_key(text: &mut String, size: usize, object: u64) {
    use std::fmt::Write as _;
    // Writing to a String cannot fail.
    let _ = write!(text, "{size}/{object:010}");
}
