//! What a request claims: credential scope, signed headers, signature; from header or query.

use std::borrow::Cow;

use super::{ALGORITHM, AmzDate, AuthError, MAX_EXPIRES_S};
use crate::{hex, s3::percent};

/// The longest `Authorization` header or presigned query that is looked at, in bytes.
const MAX_TEXT: usize = 8 * 1024;

/// `ACCESS_KEY/DATE/REGION/SERVICE/aws4_request`, without the constant end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialScope<'a> {
    /// The access key; it alone may contain `/`.
    pub access_key: Cow<'a, str>,
    /// `YYYYMMDD`.
    pub date: Cow<'a, str>,
    /// The region the client believes in.
    pub region: Cow<'a, str>,
    /// `s3`.
    pub service: Cow<'a, str>,
}

impl<'a> CredentialScope<'a> {
    /// Parses the text of a credential; `None` when it is not made of five parts that end in
    /// `aws4_request`, or a part is empty or the date is not eight digits.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<CredentialScope<'a>> {
        let mut parts = text.rsplitn(5, '/');
        (parts.next()? == "aws4_request").then_some(())?;
        let service = parts.next()?;
        let region = parts.next()?;
        let date = parts.next()?;
        let access_key = parts.next()?;
        let valid = !access_key.is_empty()
            && !region.is_empty()
            && !service.is_empty()
            && date.len() == 8
            && date.bytes().all(|byte| byte.is_ascii_digit());
        valid.then_some(CredentialScope {
            access_key: Cow::Borrowed(access_key),
            date: Cow::Borrowed(date),
            region: Cow::Borrowed(region),
            service: Cow::Borrowed(service),
        })
    }

    /// The scope of a client's own request.
    #[must_use]
    pub fn new(access_key: &'a str, date: &AmzDate, region: &'a str) -> CredentialScope<'a> {
        CredentialScope {
            access_key: Cow::Borrowed(access_key),
            date: Cow::Owned(date.date().to_owned()),
            region: Cow::Borrowed(region),
            service: Cow::Borrowed("s3"),
        }
    }

    /// `DATE/REGION/SERVICE/aws4_request`, as strings to sign carry it.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!(
            "{}/{}/{}/aws4_request",
            self.date, self.region, self.service
        )
    }

    /// The scope with no borrow of the request.
    #[must_use]
    pub fn into_owned(self) -> CredentialScope<'static> {
        CredentialScope {
            access_key: Cow::Owned(self.access_key.into_owned()),
            date: Cow::Owned(self.date.into_owned()),
            region: Cow::Owned(self.region.into_owned()),
            service: Cow::Owned(self.service.into_owned()),
        }
    }
}

/// When a presigned URL was made and how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresignedTime {
    /// `X-Amz-Date`.
    pub date: AmzDate,
    /// `X-Amz-Expires`, 1 to [`MAX_EXPIRES_S`] seconds.
    pub expires_s: u32,
}

/// A claim to be checked by [`super::verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization<'a> {
    /// Whose key signed, and for which day, region and service.
    pub scope: CredentialScope<'a>,
    /// Names of the signed headers: lower case, `;` between, in the order signed.
    pub signed_headers: Cow<'a, str>,
    /// The signature.
    pub signature: [u8; 32],
    /// Set when the signature came in the query.
    pub presigned: Option<PresignedTime>,
}

impl Authorization<'_> {
    /// Whether the header `name` (lower case) is covered by the signature.
    #[must_use]
    pub fn signs(&self, name: &str) -> bool {
        self.signed_headers.split(';').any(|signed| signed == name)
    }
}

/// Finds the claim of a request in its `Authorization` header or its query. `None`: anonymous.
///
/// # Errors
/// [`AuthError`] when there is a claim that is malformed, of another mechanism, or twofold.
pub fn authorization<'a>(
    header: Option<&'a str>,
    query: &'a str,
) -> Result<Option<Authorization<'a>>, AuthError> {
    let presigned = query.split('&').any(|pair| {
        pair.starts_with("X-Amz-Algorithm=")
            || pair.starts_with("X-Amz-Signature=")
            || pair.starts_with("X-Amz-Credential=")
    });
    match (header, presigned) {
        (Some(_), true) => Err(AuthError::TwoMechanisms),
        (Some(header), false) => parse_authorization(header).map(Some),
        (None, true) => parse_presigned(query).map(Some),
        (None, false)
            if query
                .split('&')
                .any(|pair| pair.starts_with("AWSAccessKeyId=")) =>
        {
            Err(AuthError::UnsupportedAlgorithm)
        }
        (None, false) => Ok(None),
    }
}

/// Checks the list of signed headers: not empty, lower-case header names, sorted, no doubles.
fn check_signed_headers(list: &str) -> bool {
    let mut last = "";
    list.split(';').all(|name| {
        let ordered = last < name;
        last = name;
        ordered
            && name
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && byte != b':')
    })
}

/// Parses `AWS4-HMAC-SHA256 Credential=..., SignedHeaders=..., Signature=...` (commas with or
/// without spaces, any order).
///
/// # Errors
/// [`AuthError::UnsupportedAlgorithm`], [`AuthError::MalformedHeader`].
pub fn parse_authorization(header: &str) -> Result<Authorization<'_>, AuthError> {
    let malformed = AuthError::MalformedHeader;
    if header.len() > MAX_TEXT {
        return Err(malformed("the header is too long."));
    }
    let header = header.trim_ascii();
    let (algorithm, rest) = header
        .split_once([' ', '\t'])
        .ok_or(AuthError::UnsupportedAlgorithm)?;
    if algorithm != ALGORITHM {
        return Err(AuthError::UnsupportedAlgorithm);
    }
    let (mut credential, mut signed_headers, mut signature) = (None, None, None);
    for field in rest.split(',') {
        let (name, value) = field
            .trim_ascii()
            .split_once('=')
            .ok_or(malformed("a field has no '='."))?;
        let slot = match name {
            "Credential" => &mut credential,
            "SignedHeaders" => &mut signed_headers,
            "Signature" => &mut signature,
            _ => return Err(malformed("a field is not known.")),
        };
        if slot.replace(value).is_some() {
            return Err(malformed("a field is given twice."));
        }
    }
    let credential = credential.ok_or(malformed("the Credential field is missing."))?;
    let signed_headers = signed_headers.ok_or(malformed("the SignedHeaders field is missing."))?;
    let signature = signature.ok_or(malformed("the Signature field is missing."))?;
    let scope = CredentialScope::parse(credential).ok_or(malformed(
        "the Credential is mal-formed; expecting \
         \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".",
    ))?;
    if !check_signed_headers(signed_headers) {
        return Err(malformed(
            "SignedHeaders is not a sorted list of lower-case names.",
        ));
    }
    let signature = hex::decode::<32>(signature.as_bytes())
        .ok_or(malformed("the Signature is not 64 hexadecimal digits."))?;
    Ok(Authorization {
        scope,
        signed_headers: Cow::Borrowed(signed_headers),
        signature,
        presigned: None,
    })
}

fn decoded(value: &str) -> Result<Cow<'_, str>, AuthError> {
    let broken = AuthError::MalformedQuery("A query parameter is not valid percent-encoded UTF-8");
    match percent::decode(value, true).ok_or(broken)? {
        Cow::Borrowed(_) => Ok(Cow::Borrowed(value)),
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| broken),
    }
}

/// Parses the `X-Amz-*` parameters of a presigned URL's raw query.
///
/// # Errors
/// [`AuthError::UnsupportedAlgorithm`], [`AuthError::MalformedQuery`].
pub fn parse_presigned(query: &str) -> Result<Authorization<'_>, AuthError> {
    let malformed = AuthError::MalformedQuery;
    let mut fields: [Option<&str>; 6] = [None; 6];
    const NAMES: [&str; 6] = [
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
    ];
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let Some(index) = NAMES.iter().position(|known| *known == name)
            && fields[index].replace(value).is_some()
        {
            return Err(malformed("A query authorization parameter is given twice"));
        }
    }
    let [
        Some(algorithm),
        Some(credential),
        Some(date),
        Some(expires),
        Some(headers),
        Some(mac),
    ] = fields
    else {
        return Err(malformed(
            "Query-string authentication version 4 requires the X-Amz-Algorithm, \
             X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and \
             X-Amz-Expires parameters.",
        ));
    };
    if fields.iter().flatten().any(|value| value.len() > MAX_TEXT) {
        return Err(malformed("A query authorization parameter is too long"));
    }
    if algorithm != ALGORITHM {
        return Err(AuthError::UnsupportedAlgorithm);
    }
    let bad_credential = malformed(
        "Error parsing the X-Amz-Credential parameter; the Credential is mal-formed; expecting \
         \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".",
    );
    let scope = match decoded(credential)? {
        Cow::Borrowed(text) => CredentialScope::parse(text).ok_or(bad_credential)?,
        Cow::Owned(text) => CredentialScope::parse(&text)
            .ok_or(bad_credential)?
            .into_owned(),
    };
    let date = AmzDate::parse(&decoded(date)?).ok_or(malformed(
        "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"",
    ))?;
    if !expires.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(malformed("X-Amz-Expires should be a number"));
    }
    let expires_s: u32 = expires
        .parse()
        .map_err(|_| malformed("X-Amz-Expires should be a number"))?;
    if !(1..=MAX_EXPIRES_S).contains(&expires_s) {
        return Err(malformed(
            "X-Amz-Expires must be positive and less than a week (in seconds); that is, the \
             given X-Amz-Expires must be less than 604800 seconds",
        ));
    }
    let signed_headers = decoded(headers)?;
    if !check_signed_headers(&signed_headers) {
        return Err(malformed(
            "X-Amz-SignedHeaders is not a sorted list of lower-case names",
        ));
    }
    let signature = hex::decode::<32>(mac.as_bytes())
        .ok_or(malformed("X-Amz-Signature is not 64 hexadecimal digits"))?;
    Ok(Authorization {
        scope,
        signed_headers,
        signature,
        presigned: Some(PresignedTime { date, expires_s }),
    })
}
