//! Bucket policies: who may do what to which objects, under which conditions.
//!
//! A policy is JSON of at most [`MAX_POLICY`] bytes. [`Policy::parse`] accepts only what
//! [`Policy::evaluate`] understands: an unknown operator, condition key or policy variable is
//! refused when the policy is put, since a statement that silently never matches would let
//! through what its author forbade. So is one that names a member twice.
//!
//! Not here: identity policies, groups of principals beyond accounts, policy variables.

mod condition;
mod document;
mod pattern;

pub use pattern::matches as pattern_matches;

use serde_json::Value;

use super::error::{ErrorCode, S3Error};
use condition::Condition;

/// The longest policy, in bytes.
pub const MAX_POLICY: usize = 20 * 1024;
/// The longest principal, action, resource or value, in bytes: bounds the work of a match.
const MAX_TEXT: usize = 2048;
/// The longest value of a request that conditions compare, in bytes: the source of a copy, a key of 1024 bytes with each encoded as
/// three.
const MAX_VALUE: usize = 4096;
const ARN: &str = "arn:aws:s3:::";

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Principal<'a> {
    /// The account: the tenant's id.
    pub account: &'a str,
    /// The full name: `arn:aws:iam::ACCOUNT:user/NAME`, or `...:root`.
    pub arn: &'a str,
}

/// A request as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// Who asks; `None` is anonymous.
    pub principal: Option<Principal<'a>>,
    /// `s3:GetObject`, ...
    pub action: &'a str,
    /// `bucket` or `bucket/key`.
    pub resource: &'a str,
    /// Condition keys and their values: `aws:SourceIp`, `aws:SecureTransport`, `s3:prefix`, ...
    /// The case of a key does not count. A key that is absent has no entry.
    pub context: &'a [(&'a str, &'a str)],
}

/// What a policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A statement allows it and none denies it.
    Allow,
    /// A statement denies it: nothing else counts.
    Deny,
    /// No statement is about it.
    Neutral,
}

/// A list that is meant, or all that is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Choice {
    fn meets(&self, matches: impl Fn(&str) -> bool) -> bool {
        match self {
            Choice::In(list) => list.iter().any(|pattern| matches(pattern)),
            Choice::NotIn(list) => !list.iter().any(|pattern| matches(pattern)),
        }
    }

    fn list(&self) -> &[String] {
        match self {
            Choice::In(list) | Choice::NotIn(list) => list,
        }
    }

    fn in_lower_case(mut self) -> Choice {
        let (Choice::In(list) | Choice::NotIn(list)) = &mut self;
        list.iter_mut().for_each(|text| text.make_ascii_lowercase());
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Statement {
    allows: bool,
    principals: Choice,
    /// In lower case: their case does not count.
    actions: Choice,
    resources: Choice,
    conditions: Vec<Condition>,
}

/// A checked policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    statements: Vec<Statement>,
}

fn malformed(message: impl Into<String>) -> S3Error {
    S3Error::with_message(ErrorCode::MalformedPolicy, message)
}

impl Policy {
    /// Parses and checks the policy of `bucket`.
    ///
    /// # Errors
    /// `MalformedPolicy` with the reason.
    pub fn parse(body: &[u8], bucket: &str) -> Result<Policy, S3Error> {
        if body.len() > MAX_POLICY {
            return Err(malformed(
                "Policy exceeds the maximum allowed document size.",
            ));
        }
        if body.first() != Some(&b'{') {
            return Err(ErrorCode::MalformedPolicy.into());
        }
        let document =
            document::parse(body).map_err(|_| malformed("This policy contains invalid Json"))?;
        let mut statements = None;
        for (name, value) in object(&document)? {
            match name.as_str() {
                "Version" if matches!(value.as_str(), Some("2012-10-17" | "2008-10-17")) => {}
                "Version" => {
                    return Err(malformed("The policy must contain a valid version string"));
                }
                "Id" if value.is_string() => {}
                "Statement" => statements = Some(value),
                _ => return Err(malformed(format!("Unknown field {name}"))),
            }
        }
        let statements = match statements {
            Some(Value::Array(list)) => list
                .iter()
                .map(|value| Statement::parse(value, bucket))
                .collect(),
            Some(value) => Statement::parse(value, bucket).map(|statement| vec![statement]),
            None => Err(malformed("Missing required field Statement")),
        }?;
        if statements.is_empty() {
            return Err(malformed("Could not parse the policy: Statement is empty!"));
        }
        Ok(Policy { statements })
    }

    /// What the policy says about a request: a denial wins over any permission. A value of more than 4 KiB that a condition asks for is
    /// compared with nothing, and denied.
    #[must_use]
    pub fn evaluate(&self, access: &Access<'_>) -> Decision {
        let mut decision = Decision::Neutral;
        let action = access.action.to_ascii_lowercase();
        let covering = self
            .statements
            .iter()
            .filter(|statement| statement.covers(access, &action));
        for statement in covering {
            let mut conditions = statement.conditions.iter();
            let mut asked = conditions
                .clone()
                .filter_map(|condition| condition.found(access.context));
            if asked.any(|value| value.len() > MAX_VALUE) {
                return Decision::Deny;
            }
            if conditions.all(|condition| condition.holds(access.context)) {
                if !statement.allows {
                    return Decision::Deny;
                }
                decision = Decision::Allow;
            }
        }
        decision
    }

    /// Whether a statement allows this to somebody for some resource under some conditions.
    #[must_use]
    pub fn may_allow(&self, principal: Option<Principal<'_>>, action: &str) -> bool {
        let action = action.to_ascii_lowercase();
        self.statements
            .iter()
            .any(|statement| statement.allows && statement.concerns(principal, &action))
    }

    /// Whether the policy gives something to everyone (`GetBucketPolicyStatus`).
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.statements.iter().any(|statement| {
            statement.allows
                && statement.conditions.is_empty()
                && match &statement.principals {
                    Choice::In(list) => list.iter().any(|principal| principal == "*"),
                    Choice::NotIn(_) => true,
                }
        })
    }
}

fn object(value: &Value) -> Result<&serde_json::Map<String, Value>, S3Error> {
    value
        .as_object()
        .ok_or_else(|| malformed("Policy has invalid structure"))
}

/// A text or a list of texts; not empty, none too long.
fn texts(value: &Value, what: &str) -> Result<Vec<String>, S3Error> {
    let invalid = || malformed(format!("Policy has invalid {what}"));
    let list = match value {
        Value::Array(list) => list.as_slice(),
        value => std::slice::from_ref(value),
    };
    if list.is_empty() {
        return Err(invalid());
    }
    list.iter()
        .map(|value| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Bool(truth) => truth.to_string(),
                Value::Number(number) => number.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => return Err(invalid()),
            };
            if text.len() > MAX_TEXT || text.contains("${") {
                return Err(invalid());
            }
            Ok(text)
        })
        .collect()
}

/// `"*"`, or an object whose `AWS` is one or several principals.
fn principals(value: &Value) -> Result<Vec<String>, S3Error> {
    let invalid = || malformed("Invalid principal in policy");
    let list = match value {
        Value::String(text) if text == "*" => return Ok(vec!["*".to_owned()]),
        Value::Object(map) if map.len() == 1 => map.get("AWS").ok_or_else(invalid)?,
        _ => return Err(invalid()),
    };
    let list = texts(list, "principal")?;
    // A wildcard inside a principal means nothing in S3 and is a mistake.
    if list
        .iter()
        .any(|text| text.is_empty() || (text.contains(['*', '?']) && text != "*"))
    {
        return Err(invalid());
    }
    Ok(list)
}

impl Statement {
    fn parse(value: &Value, bucket: &str) -> Result<Statement, S3Error> {
        let (mut allows, mut who, mut what, mut which) = (None, None, None, None);
        let mut conditions = Vec::new();
        for (name, value) in object(value)? {
            let doubled = match name.as_str() {
                "Sid" if value.is_string() => false,
                "Effect" => {
                    allows = match value.as_str() {
                        Some("Allow") => Some(true),
                        Some("Deny") => Some(false),
                        _ => return Err(malformed("Invalid effect in policy")),
                    };
                    false
                }
                "Principal" => who.replace(Choice::In(principals(value)?)).is_some(),
                "NotPrincipal" => who.replace(Choice::NotIn(principals(value)?)).is_some(),
                "Action" => what.replace(Choice::In(texts(value, "action")?)).is_some(),
                "NotAction" => what
                    .replace(Choice::NotIn(texts(value, "action")?))
                    .is_some(),
                "Resource" => which
                    .replace(Choice::In(texts(value, "resource")?))
                    .is_some(),
                "NotResource" => which
                    .replace(Choice::NotIn(texts(value, "resource")?))
                    .is_some(),
                "Condition" => {
                    conditions = condition::parse(value)?;
                    false
                }
                _ => return Err(malformed(format!("Unknown field {name} in a statement"))),
            };
            if doubled {
                return Err(malformed(format!(
                    "{name} and its opposite in one statement"
                )));
            }
        }
        let missing = |field: &str| malformed(format!("Missing required field {field}"));
        let statement = Statement {
            allows: allows.ok_or_else(|| missing("Effect"))?,
            principals: who.ok_or_else(|| missing("Principal"))?,
            actions: what.ok_or_else(|| missing("Action"))?.in_lower_case(),
            resources: which.ok_or_else(|| missing("Resource"))?,
            conditions,
        };
        statement.check(bucket)?;
        Ok(statement)
    }

    fn check(&self, bucket: &str) -> Result<(), S3Error> {
        if matches!(self.principals, Choice::NotIn(_)) && self.allows {
            return Err(malformed("Allow with NotPrincipal is not allowed"));
        }
        for action in self.actions.list() {
            let known = action == "*" || action.starts_with("s3:");
            if !known {
                return Err(malformed("Policy has invalid action"));
            }
        }
        for resource in self.resources.list() {
            let own = resource.strip_prefix(ARN).is_some_and(|name| {
                let (name, _) = name.split_once('/').unwrap_or((name, ""));
                pattern::matches(name, bucket)
            });
            if !own {
                return Err(malformed("Policy has invalid resource"));
            }
        }
        Ok(())
    }

    /// `action`: in lower case.
    fn concerns(&self, principal: Option<Principal<'_>>, action: &str) -> bool {
        self.principals.meets(|pattern| names(pattern, principal))
            && self
                .actions
                .meets(|pattern| pattern::matches(pattern, action))
    }

    /// Whether it is about this, if its conditions hold. `action`: in lower case.
    fn covers(&self, access: &Access<'_>, action: &str) -> bool {
        self.concerns(access.principal, action)
            && self.resources.meets(|pattern| {
                pattern
                    .strip_prefix(ARN)
                    .is_some_and(|pattern| pattern::matches(pattern, access.resource))
            })
    }
}

/// Whether a principal of a policy means the one who asks: everyone, the account (by id or as
/// its root), or exactly the name.
fn names(pattern: &str, principal: Option<Principal<'_>>) -> bool {
    if pattern == "*" {
        return true;
    }
    let Some(principal) = principal else {
        return false;
    };
    pattern == principal.account
        || pattern == principal.arn
        || pattern
            .strip_prefix("arn:aws:iam::")
            .and_then(|rest| rest.strip_suffix(":root"))
            .is_some_and(|account| account == principal.account)
}

#[cfg(test)]
mod tests;
