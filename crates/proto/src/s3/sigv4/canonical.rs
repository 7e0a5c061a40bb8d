//! The canonical request, streamed into SHA-256.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::s3::percent::{self, Slash};

/// Access to a request's headers without saying how they are kept.
pub trait HeaderLookup {
    /// Calls `each` with every value of the header `name` (lower case), in order of arrival.
    fn values(&self, name: &str, each: &mut dyn FnMut(&[u8]));

    /// Calls `each` with every header's name in lower case; repeats are allowed.
    fn names(&self, each: &mut dyn FnMut(&str));

    /// The first value of the header `name` (lower case), when it is visible ASCII or UTF-8.
    fn first_value(&self, name: &str) -> Option<String> {
        let mut found = None;
        self.values(name, &mut |value| {
            if found.is_none() {
                found = Some(std::str::from_utf8(value).map(str::to_owned).ok());
            }
        });
        found.flatten()
    }
}

impl HeaderLookup for http::HeaderMap {
    fn values(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        for value in self.get_all(name) {
            each(value.as_bytes());
        }
    }

    fn names(&self, each: &mut dyn FnMut(&str)) {
        for name in self.keys() {
            each(name.as_str());
        }
    }
}

/// Pairs of lower-case name and value, for clients that build few headers, and for tests.
impl HeaderLookup for [(&str, &str)] {
    fn values(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        for (known, value) in self {
            if *known == name {
                each(value.as_bytes());
            }
        }
    }

    fn names(&self, each: &mut dyn FnMut(&str)) {
        for (name, _) in self {
            each(name);
        }
    }
}

/// A request as the signature sees it, borrowed from wherever it was read.
#[derive(Debug)]
pub struct Request<'a, H: ?Sized> {
    /// `GET`, `PUT`, ...
    pub method: &'a str,
    /// The path as it stood in the request line, still percent-encoded, without the query.
    pub path: &'a str,
    /// The query as it stood in the request line, without its `?`.
    pub query: &'a str,
    /// The headers.
    pub headers: &'a H,
}

impl<H: ?Sized> Clone for Request<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: ?Sized> Copy for Request<'_, H> {}

/// Which spelling of the path is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathForm {
    /// Decoded, then encoded once by SigV4's rule: what S3 computes.
    Canonical,
    /// The bytes of the request line, which is what some clients sign.
    AsSent,
}

/// SHA-256 of the canonical request over `signed_headers` (`;` between names).
#[must_use]
pub fn canonical_request_hash<H: HeaderLookup + ?Sized>(
    request: &Request<'_, H>,
    signed_headers: &str,
    payload_hash: &str,
) -> [u8; 32] {
    hash(request, signed_headers, payload_hash, PathForm::Canonical)
}

pub(super) fn hash<H: HeaderLookup + ?Sized>(
    request: &Request<'_, H>,
    signed_headers: &str,
    payload_hash: &str,
    form: PathForm,
) -> [u8; 32] {
    let mut sha = Sha256::new();
    let mut put = |bytes: &[u8]| sha.update(bytes);
    put(request.method.as_bytes());
    put(b"\n");
    match (request.path, form) {
        ("", _) => put(b"/"),
        (path, PathForm::AsSent) => put(path.as_bytes()),
        (path, PathForm::Canonical) => {
            put(percent::canonical(path, Slash::Keep, false).as_bytes());
        }
    }
    put(b"\n");
    put_query(request.query, &mut put);
    put(b"\n");
    for name in signed_headers.split(';') {
        put(name.as_bytes());
        put(b":");
        let mut first = true;
        request.headers.values(name, &mut |value| {
            if !std::mem::take(&mut first) {
                put(b",");
            }
            put_header_value(value, &mut put);
        });
        put(b"\n");
    }
    put(b"\n");
    put(signed_headers.as_bytes());
    put(b"\n");
    put(payload_hash.as_bytes());
    sha.finalize().into()
}

/// The canonical query: its pairs encoded by SigV4's rule and sorted, without `X-Amz-Signature`.
#[must_use]
pub fn canonical_query(query: &str) -> String {
    let mut text = String::with_capacity(query.len());
    put_query(query, &mut |bytes| {
        // What is encoded by the rule is ASCII.
        text.push_str(std::str::from_utf8(bytes).unwrap_or_default());
    });
    text
}

/// The query's pairs, canonical and sorted; `X-Amz-Signature` is never part of what it signs.
fn put_query(query: &str, put: &mut impl FnMut(&[u8])) {
    if query.is_empty() {
        return;
    }
    let mut pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.starts_with("X-Amz-Signature="))
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (
                percent::canonical(name, Slash::Encode, true),
                percent::canonical(value, Slash::Encode, true),
            )
        })
        .collect();
    pairs.sort_unstable();
    for (index, (name, value)) in pairs.iter().enumerate() {
        if index > 0 {
            put(b"&");
        }
        put(name.as_bytes());
        put(b"=");
        put(value.as_bytes());
    }
}

/// A value without outer white space and with one space for every run inside.
fn put_header_value(value: &[u8], put: &mut impl FnMut(&[u8])) {
    let value = value.trim_ascii();
    if !value
        .windows(2)
        .any(|pair| pair[0].is_ascii_whitespace() && pair[1].is_ascii_whitespace())
        && !value.contains(&b'\t')
    {
        put(value);
        return;
    }
    let words = value
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    for (index, word) in words.enumerate() {
        if index > 0 {
            put(b" ");
        }
        put(word);
    }
}
