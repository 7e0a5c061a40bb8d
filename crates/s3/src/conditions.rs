//! Conditional requests (RFC 9110 section 13), on reads, on copy sources and on writes.

use forebay_proto::s3::date::parse_http_date;
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::uri::{EntityTags, parse_entity_tags};
use forebay_store::{Condition, ErrorKind, Etag, Meta, Store};
use http::header::{
    HeaderMap, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE,
};

use crate::call::Call;
use crate::headers;
use crate::status::{Outcome, Refusal};

/// The names of the four conditions in a request.
pub(crate) struct Names {
    if_match: HeaderName,
    if_none_match: HeaderName,
    if_modified_since: HeaderName,
    if_unmodified_since: HeaderName,
}

/// On the object that is asked for.
pub(crate) const TARGET: Names = Names {
    if_match: IF_MATCH,
    if_none_match: IF_NONE_MATCH,
    if_modified_since: IF_MODIFIED_SINCE,
    if_unmodified_since: IF_UNMODIFIED_SINCE,
};

/// On the object that is copied.
pub(crate) const COPY_SOURCE: Names = Names {
    if_match: headers::COPY_SOURCE_IF_MATCH,
    if_none_match: headers::COPY_SOURCE_IF_NONE_MATCH,
    if_modified_since: headers::COPY_SOURCE_IF_MODIFIED_SINCE,
    if_unmodified_since: headers::COPY_SOURCE_IF_UNMODIFIED_SINCE,
};

/// Which condition does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fails {
    /// The client has what it would get: `304` on a read.
    NotModified,
    /// `412`, naming the header.
    Precondition(&'static str),
}

impl Fails {
    /// The refusal of a write or a copy, which knows no `304`.
    pub(crate) fn into_refusal(self) -> Refusal {
        let condition = match self {
            Fails::NotModified => "If-None-Match",
            Fails::Precondition(name) => name,
        };
        Refusal::from(ErrorCode::PreconditionFailed).field("Condition", condition)
    }
}

/// Whether there is a condition.
pub(crate) fn are_there(request: &HeaderMap, names: &Names) -> bool {
    let Names {
        if_match,
        if_none_match,
        if_modified_since,
        if_unmodified_since,
    } = names;
    [
        if_match,
        if_none_match,
        if_modified_since,
        if_unmodified_since,
    ]
    .into_iter()
    .any(|name| request.contains_key(name))
}

/// Evaluates the conditions of a read in the order of RFC 9110 section 13.2.2; dates that are no dates are ignored.
pub(crate) fn evaluate(request: &HeaderMap, names: &Names, meta: &Meta) -> Option<Fails> {
    let modified_s = modified_s(meta);
    let date = |name: &HeaderName| headers::text(request, name).and_then(parse_http_date);
    if let Some(list) = headers::text(request, &names.if_match) {
        if !parse_entity_tags(list).matches_strongly(meta.etag.as_str()) {
            return Some(Fails::Precondition("If-Match"));
        }
    } else if date(&names.if_unmodified_since).is_some_and(|limit| modified_s > limit) {
        return Some(Fails::Precondition("If-Unmodified-Since"));
    }
    if let Some(list) = headers::text(request, &names.if_none_match) {
        if parse_entity_tags(list).matches_weakly(meta.etag.as_str()) {
            return Some(Fails::NotModified);
        }
    } else if date(&names.if_modified_since).is_some_and(|limit| modified_s <= limit) {
        return Some(Fails::NotModified);
    }
    None
}

/// Whether a range applies: without `If-Range`, or when that names the object as it is.
pub(crate) fn range_applies(request: &HeaderMap, meta: &Meta) -> bool {
    let Some(text) = headers::text(request, &IF_RANGE) else {
        return true;
    };
    match parse_http_date(text) {
        Some(limit) => meta.modified / 1000 == u64::try_from(limit).unwrap_or(u64::MAX),
        None => parse_entity_tags(text).matches_strongly(meta.etag.as_str()),
    }
}

/// The condition of a write to what is called: as [`of_write`] says, or `If-Unmodified-Since` (RFC 9110 section 13.1.4; where there is no
/// object there is no date, and it counts for nothing). `If-Modified-Since` is a condition of reads alone (section 13.1.3).
///
/// # Errors
/// As [`of_write`]; `PreconditionFailed` for an object that is newer; `AccessDenied` and `NoSuchBucket` where what is there may not be
/// read: the outcome tells its entity tag.
pub(crate) async fn of_call<S: Store>(call: &Call<'_, S>) -> Outcome<Condition> {
    let condition = of_write(call.headers)?;
    if matches!(condition, Condition::IfMatch(_)) {
        call.permit_key("s3:GetObject", call.key, None).await?;
    }
    let limit = headers::text(call.headers, &IF_UNMODIFIED_SINCE).and_then(parse_http_date);
    let (Condition::None, Some(limit)) = (condition, limit) else {
        return Ok(condition);
    };
    match call.store().stat(call.object(), None).await {
        Ok(meta) if modified_s(&meta) > limit => {
            Err(Fails::Precondition("If-Unmodified-Since").into_refusal())
        }
        // What was looked at must still be there when it is replaced.
        Ok(meta) => Ok(Condition::IfMatch(meta.etag)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Condition::None),
        Err(error) => Err(error.into()),
    }
}

/// When an object came to be, in seconds, as `Last-Modified` shows it.
fn modified_s(meta: &Meta) -> i64 {
    i64::try_from(meta.modified / 1000).unwrap_or(i64::MAX)
}

/// The condition of a write: `If-None-Match: *` (create if absent) or `If-Match` (replace what is known).
///
/// # Errors
/// `NotImplemented` for forms that S3 does not serve either, `InvalidRequest` for both at once.
pub(crate) fn of_write(request: &HeaderMap) -> Outcome<Condition> {
    let if_match = headers::legible(request, &IF_MATCH)?;
    let if_none_match = headers::legible(request, &IF_NONE_MATCH)?;
    match (if_match, if_none_match) {
        (None, None) => Ok(Condition::None),
        (Some(_), Some(_)) => Err(Refusal::new(
            ErrorCode::InvalidRequest,
            "If-Match and If-None-Match cannot be used together on a write.",
        )),
        (None, Some(list)) if list.trim_ascii() == "*" => Ok(Condition::IfAbsent),
        (None, Some(_)) => Err(Refusal::new(
            ErrorCode::NotImplemented,
            "If-None-Match on a write supports only '*'.",
        )),
        (Some(tag), None) => if_match_condition(tag),
    }
}

/// How the conditions begin that only S3's directory buckets have, on the size and the times of what is removed.
pub(crate) const OF_DIRECTORY_BUCKETS: &str = "x-amz-if-match-";

/// Refuses a removal under one of those: without it, what the client wants to keep would be gone.
///
/// # Errors
/// `NotImplemented`.
pub(crate) fn refuse_of_directory_buckets(request: &HeaderMap) -> Outcome<()> {
    let asked = request
        .keys()
        .find(|name| name.as_str().starts_with(OF_DIRECTORY_BUCKETS));
    match asked {
        None => Ok(()),
        Some(name) => Err(Refusal::new(
            ErrorCode::NotImplemented,
            format!("The condition {name} is not implemented."),
        )),
    }
}

/// The condition that `If-Match: TAG` makes of a write.
pub(crate) fn if_match_condition(text: &str) -> Outcome<Condition> {
    let single = match parse_entity_tags(text) {
        EntityTags::Any => return Ok(Condition::IfPresent),
        EntityTags::List(tags) => match tags[..] {
            [tag] if !tag.weak => Etag::new(tag.tag),
            _ => None,
        },
    };
    single.map(Condition::IfMatch).ok_or_else(|| {
        Refusal::argument(
            "If-Match",
            text,
            "If-Match on a write takes one entity tag.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_store::{Attributes, VersionId};
    use http::HeaderValue;

    fn meta() -> Meta {
        Meta {
            size: 1,
            etag: Etag::new("abc").expect("legal"),
            modified: 784_111_777_500,
            version: VersionId::NULL,
            crc64nvme: 0,
            expires: None,
            attributes: Attributes::EMPTY,
        }
    }

    fn of(pairs: &[(HeaderName, &'static str)]) -> Option<Fails> {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.insert(name.clone(), HeaderValue::from_static(value));
        }
        evaluate(&map, &TARGET, &meta())
    }

    #[test]
    fn tags_and_dates_decide_in_order() {
        const AT: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
        assert_eq!(of(&[(IF_MATCH, "\"abc\"")]), None);
        assert_eq!(of(&[(IF_MATCH, "x, abc")]), None);
        assert_eq!(
            of(&[(IF_MATCH, "W/\"abc\"")]),
            Some(Fails::Precondition("If-Match"))
        );
        assert_eq!(
            of(&[(IF_NONE_MATCH, "W/\"abc\"")]),
            Some(Fails::NotModified)
        );
        assert_eq!(of(&[(IF_NONE_MATCH, "*")]), Some(Fails::NotModified));
        assert_eq!(of(&[(IF_MODIFIED_SINCE, AT)]), Some(Fails::NotModified));
        assert_eq!(of(&[(IF_MODIFIED_SINCE, BEFORE)]), None);
        assert_eq!(of(&[(IF_UNMODIFIED_SINCE, AT)]), None);
        assert_eq!(
            of(&[(IF_UNMODIFIED_SINCE, BEFORE)]),
            Some(Fails::Precondition("If-Unmodified-Since"))
        );
        // A tag outranks a date.
        assert_eq!(
            of(&[(IF_MATCH, "abc"), (IF_UNMODIFIED_SINCE, BEFORE)]),
            None
        );
        assert_eq!(of(&[(IF_NONE_MATCH, "x"), (IF_MODIFIED_SINCE, AT)]), None);
    }
}
