//! Conditions of a statement: operators over keys of the request.

use std::net::IpAddr;

use serde_json::Value;

use super::{malformed, object, pattern, texts};
use crate::s3::{date, error::S3Error};

/// Keys that the door can give, in lower case; those of policies may have any. Those that end in `/` take a tag's key, of
/// which case is a part: an object may have tags whose keys differ by nothing else.
const KEYS: [&str; 22] = [
    "aws:currenttime",
    "aws:epochtime",
    "aws:principalarn",
    "aws:principalaccount",
    "aws:referer",
    "aws:securetransport",
    "aws:sourceip",
    "aws:useragent",
    "aws:userid",
    "aws:username",
    "s3:authtype",
    "s3:delimiter",
    "s3:existingobjecttag/",
    "s3:max-keys",
    "s3:prefix",
    "s3:requestobjecttag/",
    "s3:signatureversion",
    "s3:versionid",
    "s3:x-amz-acl",
    "s3:x-amz-content-sha256",
    "s3:x-amz-copy-source",
    "s3:x-amz-metadata-directive",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    StringEquals,
    StringEqualsIgnoreCase,
    StringLike,
    Numeric(Order),
    Date(Order),
    Bool,
    IpAddress,
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Equals,
    Less,
    LessEquals,
    Greater,
    GreaterEquals,
}

impl Order {
    fn holds<T: PartialOrd>(self, left: T, right: T) -> bool {
        match self {
            Order::Equals => left == right,
            Order::Less => left < right,
            Order::LessEquals => left <= right,
            Order::Greater => left > right,
            Order::GreaterEquals => left >= right,
        }
    }
}

/// One operator on one key: holds when one of the values (none, when negated) compares.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    comparison: Comparison,
    negated: bool,
    if_exists: bool,
    key: String,
    values: Vec<String>,
}

/// Parses `{"Operator": {"key": value or [values]}}`; all must hold.
pub(super) fn parse(value: &Value) -> Result<Vec<Condition>, S3Error> {
    let mut conditions = Vec::new();
    for (operator, keys) in object(value)? {
        let (comparison, negated, if_exists) = operator_of(operator)
            .ok_or_else(|| malformed(format!("Invalid Condition type : {operator}")))?;
        for (key, values) in object(keys)? {
            let (stem, tag) = parts(key);
            let known = |known: &&str| known.eq_ignore_ascii_case(stem);
            if !KEYS.iter().any(known) || stem.ends_with('/') == tag.is_empty() {
                return Err(malformed(format!(
                    "Policy has an invalid condition key: {key}"
                )));
            }
            let values = texts(values, "condition value")?;
            if !values.iter().all(|value| fits(comparison, value)) {
                return Err(malformed(format!("Invalid value for condition {operator}")));
            }
            conditions.push(Condition {
                comparison,
                negated,
                if_exists,
                key: key.clone(),
                values,
            });
        }
    }
    Ok(conditions)
}

/// A key, and the tag's if it takes one.
fn parts(key: &str) -> (&str, &str) {
    key.split_at(key.find('/').map_or(key.len(), |slash| slash + 1))
}

fn operator_of(operator: &str) -> Option<(Comparison, bool, bool)> {
    use Comparison::{
        Bool, Date, IpAddress, Null, Numeric, StringEquals, StringEqualsIgnoreCase, StringLike,
    };
    let (name, if_exists) = match operator.strip_suffix("IfExists") {
        Some(name) => (name, true),
        None => (operator, false),
    };
    let (comparison, negated) = match name {
        "StringEquals" => (StringEquals, false),
        "StringNotEquals" => (StringEquals, true),
        "StringEqualsIgnoreCase" => (StringEqualsIgnoreCase, false),
        "StringNotEqualsIgnoreCase" => (StringEqualsIgnoreCase, true),
        "StringLike" => (StringLike, false),
        "StringNotLike" => (StringLike, true),
        "NumericEquals" => (Numeric(Order::Equals), false),
        "NumericNotEquals" => (Numeric(Order::Equals), true),
        "NumericLessThan" => (Numeric(Order::Less), false),
        "NumericLessThanEquals" => (Numeric(Order::LessEquals), false),
        "NumericGreaterThan" => (Numeric(Order::Greater), false),
        "NumericGreaterThanEquals" => (Numeric(Order::GreaterEquals), false),
        "DateEquals" => (Date(Order::Equals), false),
        "DateNotEquals" => (Date(Order::Equals), true),
        "DateLessThan" => (Date(Order::Less), false),
        "DateLessThanEquals" => (Date(Order::LessEquals), false),
        "DateGreaterThan" => (Date(Order::Greater), false),
        "DateGreaterThanEquals" => (Date(Order::GreaterEquals), false),
        "Bool" => (Bool, false),
        "IpAddress" => (IpAddress, false),
        "NotIpAddress" => (IpAddress, true),
        "Null" if !if_exists => (Null, false),
        _ => return None,
    };
    Some((comparison, negated, if_exists))
}

/// Whether a value of the policy can be compared so.
fn fits(comparison: Comparison, value: &str) -> bool {
    match comparison {
        Comparison::Numeric(_) => number(value).is_some(),
        Comparison::Date(_) => time(value).is_some(),
        Comparison::Bool | Comparison::Null => truth(value).is_some(),
        Comparison::IpAddress => network(value).is_some(),
        Comparison::StringEquals | Comparison::StringEqualsIgnoreCase | Comparison::StringLike => {
            true
        }
    }
}

impl Condition {
    /// What the request has for its key.
    pub(super) fn found<'c>(&self, context: &[(&str, &'c str)]) -> Option<&'c str> {
        let (stem, tag) = parts(&self.key);
        context
            .iter()
            .find(|(key, _)| {
                let (given, of) = parts(key);
                given.eq_ignore_ascii_case(stem) && of == tag
            })
            .map(|(_, value)| *value)
    }

    pub(super) fn holds(&self, context: &[(&str, &str)]) -> bool {
        let found = self.found(context);
        if self.comparison == Comparison::Null {
            return self
                .values
                .iter()
                .any(|value| truth(value) == Some(found.is_none()));
        }
        // A key that is absent equals nothing: the negated operators hold, the others do not.
        let Some(found) = found else {
            return self.negated || self.if_exists;
        };
        self.values.iter().any(|value| self.compares(found, value)) != self.negated
    }

    fn compares(&self, found: &str, value: &str) -> bool {
        match self.comparison {
            Comparison::StringEquals => found == value,
            Comparison::StringEqualsIgnoreCase => found.eq_ignore_ascii_case(value),
            Comparison::StringLike => pattern::matches(value, found),
            Comparison::Numeric(order) => match (number(found), number(value)) {
                (Some(found), Some(value)) => order.holds(found, value),
                _ => false,
            },
            Comparison::Date(order) => match (time(found), time(value)) {
                (Some(found), Some(value)) => order.holds(found, value),
                _ => false,
            },
            Comparison::Bool => truth(found).is_some() && truth(found) == truth(value),
            Comparison::IpAddress => match (address(found), network(value)) {
                (Some(found), Some((network, bits))) => contains(network, bits, found),
                _ => false,
            },
            Comparison::Null => false,
        }
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// ISO 8601, or Unix seconds.
fn time(text: &str) -> Option<i64> {
    date::parse_iso8601(text).or_else(|| text.parse().ok())
}

fn truth(text: &str) -> Option<bool> {
    if text.eq_ignore_ascii_case("true") {
        Some(true)
    } else if text.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

/// An address; one of IPv4 inside IPv6, as dual-stack sockets give, is taken as IPv4.
fn address(text: &str) -> Option<IpAddr> {
    text.parse()
        .ok()
        .map(|address: IpAddr| address.to_canonical())
}

/// `10.0.0.0/8`, or a single address.
fn network(text: &str) -> Option<(IpAddr, u32)> {
    let (text, bits) = match text.split_once('/') {
        Some((text, bits)) => (text, Some(bits)),
        None => (text, None),
    };
    let network: IpAddr = text.parse().ok()?;
    let longest = if network.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits.parse().ok()?,
        Some(_) => return None,
        None => longest,
    };
    (bits <= longest).then_some((network, bits))
}

fn contains(network: IpAddr, bits: u32, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let differs = network.to_bits() ^ address.to_bits();
            differs.leading_zeros() >= bits
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let differs = network.to_bits() ^ address.to_bits();
            differs.leading_zeros() >= bits
        }
        _ => false,
    }
}
