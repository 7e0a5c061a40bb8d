//! Tokens of S3 requests: every dialect, the headers that carry some, and the connect exchange.

use forebay_proto::token::{
    self, Token, carrier,
    grant::Grant,
    hipobj,
    ort1::{Endpoint, Limits, OpenToken},
};

/// The value of a token header, or of a header beside one; for `hipobj` lines of `name: value`.
pub fn token(data: &[u8]) {
    let class = token::detect(data);
    let read = token::read(data);
    assert!(class.is_ok() || read.is_err());
    if let Ok(Token::Ort1(sealed)) = read {
        same_again(sealed.unverified());
    }
    for name in carrier::CARRIERS {
        let _ = carrier::read(name, data, |_| Some(data));
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = (Endpoint::parse(text), Limits::parse(text));
    let header = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    };
    let _ = (hipobj::Prepare::read(header), hipobj::Ready::read(header));
}

/// Grants, as a client shows them.
pub fn grant(data: &[u8]) {
    if let Some(grant) = Grant::decode(data) {
        assert_eq!(grant.encode()[..], *data);
    }
}

/// The payload of an open token, without the base64 around it.
pub fn token_payload(data: &[u8]) {
    if let Ok(open) = OpenToken::decode(data) {
        same_again(&open);
    }
}

fn same_again(open: &OpenToken) {
    assert!(open.length > 0 && open.total() >= open.length);
    // Extensions that are not known are skipped, and so not written again.
    let payload = open.encode().expect("what was read can be written");
    assert_eq!(OpenToken::decode(payload.as_bytes()), Ok(*open));
}
