//! Lifecycle rules: what a bucket's owner lets expire, and whether something is due.
//!
//! Ages count in days from a time, rounded up to the next midnight UTC, as S3 does. Transitions
//! to other storage classes do not exist here and are refused.

use super::{
    date,
    error::{ErrorCode, S3Error},
    tags::{self, Tags},
    xml::{Scanner, XmlWriter},
};

/// The most rules of a bucket.
pub const MAX_RULES: usize = 1000;
/// The longest configuration as it is kept, in bytes.
pub const MAX_DOCUMENT: usize = 256 << 10;
const ROOT: &str = "LifecycleConfiguration";
const DAY_S: i64 = 86_400;

/// Which objects a rule is about; all of its parts must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Keys begin so.
    pub prefix: String,
    /// Tags that must be there.
    pub tags: Vec<(String, String)>,
    /// Longer than so many bytes.
    pub size_greater_than: Option<u64>,
    /// Shorter than so many bytes.
    pub size_less_than: Option<u64>,
}

/// When a current version expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiration {
    /// So many days after it was stored.
    Days(u32),
    /// From this midnight on, Unix seconds.
    Date(i64),
    /// A delete marker goes when nothing is left under it.
    ExpiredObjectDeleteMarker,
}

/// When older versions are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoncurrentExpiration {
    /// Days after a newer version came.
    pub days: u32,
    /// How many of the newest noncurrent versions stay in any case.
    pub newer_versions: u32,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Its name, unique in the bucket.
    pub id: String,
    /// Whether it is in force.
    pub enabled: bool,
    /// What it is about.
    pub filter: Filter,
    /// Expiration of current versions.
    pub expiration: Option<Expiration>,
    /// Expiration of noncurrent versions.
    pub noncurrent: Option<NoncurrentExpiration>,
    /// Days after which an unfinished multipart upload is aborted.
    pub abort_multipart_days: Option<u32>,
}

/// The rules of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// 1 to [`MAX_RULES`] rules.
    pub rules: Vec<Rule>,
}

/// How a version stands among the versions of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The newest, an object.
    Current,
    /// The newest, a delete marker; `alone` when no other version is left.
    DeleteMarker {
        /// Whether no other version is left.
        alone: bool,
    },
    /// An older version or delete marker.
    Noncurrent {
        /// When the next newer version came, Unix seconds.
        since_s: i64,
        /// How many noncurrent versions are newer than it.
        newer: u32,
    },
}

/// A version that is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its tags.
    pub tags: &'a Tags,
    /// Its length in bytes.
    pub size: u64,
    /// When it was stored, Unix seconds.
    pub stored_s: i64,
    /// How it stands.
    pub standing: Standing,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Delete the current object (in a versioned bucket: put a delete marker over it).
    Expire,
    /// Remove this noncurrent version for good.
    RemoveNoncurrent,
    /// Remove this delete marker, under which nothing is left.
    RemoveDeleteMarker,
}

/// `from_s` and so many days, rounded up to midnight UTC.
fn due_s(from_s: i64, days: u32) -> i64 {
    let due = from_s.saturating_add(i64::from(days) * DAY_S);
    match due.rem_euclid(DAY_S) {
        0 => due,
        past => due.saturating_add(DAY_S - past),
    }
}

impl Filter {
    fn covers(&self, key: &[u8], tags: &Tags, size: u64) -> bool {
        key.starts_with(self.prefix.as_bytes())
            && self
                .tags
                .iter()
                .all(|(name, value)| tags.get(name) == Some(value))
            && self.size_greater_than.is_none_or(|bound| size > bound)
            && self.size_less_than.is_none_or(|bound| size < bound)
    }

    /// Whether the filter asks for more than a prefix.
    fn is_narrow(&self) -> bool {
        !self.tags.is_empty() || self.size_greater_than.is_some() || self.size_less_than.is_some()
    }
}

impl Rule {
    fn action(&self, candidate: &Candidate<'_>, now_s: i64) -> Option<Action> {
        let expiration = self.expiration;
        match candidate.standing {
            Standing::Current => match expiration? {
                Expiration::Days(days) => now_s >= due_s(candidate.stored_s, days),
                Expiration::Date(date_s) => now_s >= date_s,
                Expiration::ExpiredObjectDeleteMarker => false,
            }
            .then_some(Action::Expire),
            Standing::DeleteMarker { alone } => match expiration? {
                Expiration::ExpiredObjectDeleteMarker => alone,
                Expiration::Days(days) => alone && now_s >= due_s(candidate.stored_s, days),
                Expiration::Date(date_s) => alone && now_s >= date_s,
            }
            .then_some(Action::RemoveDeleteMarker),
            Standing::Noncurrent { since_s, newer } => {
                let rule = self.noncurrent?;
                (newer >= rule.newer_versions && now_s >= due_s(since_s, rule.days))
                    .then_some(Action::RemoveNoncurrent)
            }
        }
    }
}

impl Configuration {
    /// What is due for a version at `now_s` Unix seconds.
    #[must_use]
    pub fn evaluate(&self, candidate: &Candidate<'_>, now_s: i64) -> Option<Action> {
        self.covering(candidate)
            .find_map(|rule| rule.action(candidate, now_s))
    }

    fn covering<'a>(&'a self, candidate: &Candidate<'_>) -> impl Iterator<Item = &'a Rule> {
        self.rules.iter().filter(move |rule| {
            rule.enabled
                && rule
                    .filter
                    .covers(candidate.key, candidate.tags, candidate.size)
        })
    }

    /// When a current object will expire (Unix seconds) and by which rule: the earliest. For
    /// `x-amz-expiration`.
    #[must_use]
    pub fn expiry(&self, candidate: &Candidate<'_>) -> Option<(i64, &str)> {
        self.covering(candidate)
            .filter_map(|rule| match rule.expiration? {
                Expiration::Days(days) => Some((due_s(candidate.stored_s, days), &*rule.id)),
                Expiration::Date(date_s) => Some((date_s, &*rule.id)),
                Expiration::ExpiredObjectDeleteMarker => None,
            })
            .min()
    }

    /// Whether an unfinished upload of `key`, begun at `initiated_s`, is to be aborted.
    #[must_use]
    pub fn aborts_upload(&self, key: &[u8], initiated_s: i64, now_s: i64) -> bool {
        self.rules.iter().any(|rule| {
            rule.enabled
                && key.starts_with(rule.filter.prefix.as_bytes())
                && rule
                    .abort_multipart_days
                    .is_some_and(|days| now_s >= due_s(initiated_s, days))
        })
    }

    /// Reads and checks the body of `PutBucketLifecycleConfiguration`. A rule without an id gets
    /// one from its position, or the next that is free.
    ///
    /// # Errors
    /// `MalformedXML`, `InvalidRequest`, `InvalidArgument`; `NotImplemented` for transitions.
    pub fn from_xml(body: &[u8]) -> Result<Configuration, S3Error> {
        let mut scanner = Scanner::root(body, ROOT)?;
        let mut rules: Vec<Rule> = Vec::new();
        while let Some(name) = scanner.child()? {
            if name != "Rule" || rules.len() == MAX_RULES {
                return Err(ErrorCode::MalformedXML.into());
            }
            let rule = read_rule(&mut scanner)?;
            if !rule.id.is_empty() && rules.iter().any(|other| other.id == rule.id) {
                return Err(argument(
                    "Rule ID must be unique. Found same ID for more than one rule",
                ));
            }
            rules.push(rule);
        }
        scanner.finish()?;
        if rules.is_empty() {
            return Err(ErrorCode::MalformedXML.into());
        }
        name_unnamed(&mut rules);
        Ok(Configuration { rules })
    }

    /// The reply to `GetBucketLifecycleConfiguration`.
    #[must_use]
    pub fn to_xml(&self) -> String {
        let mut writer = XmlWriter::new(ROOT);
        for rule in &self.rules {
            writer.open("Rule");
            writer.text("ID", &rule.id);
            write_filter(&mut writer, &rule.filter);
            writer.text("Status", if rule.enabled { "Enabled" } else { "Disabled" });
            if let Some(expiration) = rule.expiration {
                writer.open("Expiration");
                match expiration {
                    Expiration::Days(days) => writer.number("Days", u64::from(days)),
                    Expiration::Date(date_s) => {
                        let ms = u64::try_from(date_s).unwrap_or(0).saturating_mul(1000);
                        writer.time("Date", ms);
                    }
                    Expiration::ExpiredObjectDeleteMarker => {
                        writer.boolean("ExpiredObjectDeleteMarker", true);
                    }
                }
                writer.close("Expiration");
            }
            if let Some(noncurrent) = rule.noncurrent {
                writer.open("NoncurrentVersionExpiration");
                writer.number("NoncurrentDays", u64::from(noncurrent.days));
                if noncurrent.newer_versions > 0 {
                    writer.number(
                        "NewerNoncurrentVersions",
                        u64::from(noncurrent.newer_versions),
                    );
                }
                writer.close("NoncurrentVersionExpiration");
            }
            if let Some(days) = rule.abort_multipart_days {
                writer.open("AbortIncompleteMultipartUpload");
                writer.number("DaysAfterInitiation", u64::from(days));
                writer.close("AbortIncompleteMultipartUpload");
            }
            writer.close("Rule");
        }
        writer.finish(ROOT)
    }
}

/// Gives rules without an id one that no other rule has.
fn name_unnamed(rules: &mut [Rule]) {
    for at in 0..rules.len() {
        if rules[at].id.is_empty() {
            let mut ids = (at + 1..).map(|number| format!("rule-{number}"));
            let free = |id: &String| rules.iter().all(|other| other.id != *id);
            rules[at].id = ids.find(free).unwrap_or_default();
        }
    }
}

fn write_filter(writer: &mut XmlWriter, filter: &Filter) {
    writer.open("Filter");
    let parts = usize::from(!filter.prefix.is_empty())
        + filter.tags.len()
        + usize::from(filter.size_greater_than.is_some())
        + usize::from(filter.size_less_than.is_some());
    if parts > 1 {
        writer.open("And");
    }
    if !filter.prefix.is_empty() || parts == 0 {
        writer.text("Prefix", &filter.prefix);
    }
    for (key, value) in &filter.tags {
        tags::write_tag(writer, key, value);
    }
    for (name, bound) in [
        ("ObjectSizeGreaterThan", filter.size_greater_than),
        ("ObjectSizeLessThan", filter.size_less_than),
    ] {
        if let Some(bound) = bound {
            writer.number(name, bound);
        }
    }
    if parts > 1 {
        writer.close("And");
    }
    writer.close("Filter");
}

fn argument(message: &str) -> S3Error {
    S3Error::with_message(ErrorCode::InvalidArgument, message)
}

fn malformed() -> S3Error {
    ErrorCode::MalformedXML.into()
}

/// Days: a whole number above zero.
fn days(scanner: &mut Scanner<'_>) -> Result<u32, S3Error> {
    match scanner.number::<u32>() {
        Ok(0) | Err(_) => Err(argument("'Days' must be a positive integer")),
        Ok(days) => Ok(days),
    }
}

fn read_rule(scanner: &mut Scanner<'_>) -> Result<Rule, S3Error> {
    let mut rule = Rule::default();
    let (mut status, mut filtered) = (None, false);
    while let Some(name) = scanner.child()? {
        match name {
            "ID" => rule.id = scanner.text()?,
            "Status" => status = Some(scanner.text()?),
            "Prefix" | "Filter" if filtered => return Err(malformed()),
            "Prefix" => {
                filtered = true;
                rule.filter.prefix = scanner.text()?;
            }
            "Filter" => {
                filtered = true;
                read_filter(scanner, &mut rule.filter, true)?;
            }
            "Expiration" if rule.expiration.is_none() => {
                rule.expiration = Some(read_expiration(scanner)?);
            }
            "NoncurrentVersionExpiration" if rule.noncurrent.is_none() => {
                rule.noncurrent = Some(read_noncurrent(scanner)?);
            }
            "AbortIncompleteMultipartUpload" if rule.abort_multipart_days.is_none() => {
                while let Some(name) = scanner.child()? {
                    if name != "DaysAfterInitiation" {
                        return Err(malformed());
                    }
                    rule.abort_multipart_days = Some(days(scanner)?);
                }
            }
            "Transition" | "NoncurrentVersionTransition" => {
                return Err(S3Error::with_message(
                    ErrorCode::NotImplemented,
                    "There is one storage class: transitions are not available.",
                ));
            }
            _ => return Err(malformed()),
        }
    }
    rule.enabled = match status.as_deref() {
        Some("Enabled") => true,
        Some("Disabled") => false,
        _ => return Err(malformed()),
    };
    check_rule(&rule, filtered)?;
    Ok(rule)
}

fn check_rule(rule: &Rule, filtered: bool) -> Result<(), S3Error> {
    let invalid = |message| S3Error::with_message(ErrorCode::InvalidRequest, message);
    if !filtered {
        return Err(malformed());
    }
    if rule.id.chars().count() > 255 {
        return Err(argument("ID length should not exceed allowed limit of 255"));
    }
    if rule.expiration.is_none() && rule.noncurrent.is_none() && rule.abort_multipart_days.is_none()
    {
        return Err(invalid(
            "At least one action needs to be specified in a rule",
        ));
    }
    if rule.abort_multipart_days.is_some() && rule.filter.is_narrow() {
        return Err(invalid(
            "AbortIncompleteMultipartUpload cannot be specified with Tags or object sizes",
        ));
    }
    if rule.expiration == Some(Expiration::ExpiredObjectDeleteMarker)
        && !rule.filter.tags.is_empty()
    {
        return Err(invalid(
            "ExpiredObjectDeleteMarker cannot be specified with Tags",
        ));
    }
    if let (Some(more), Some(less)) = (rule.filter.size_greater_than, rule.filter.size_less_than)
        && less <= more.saturating_add(1)
    {
        return Err(invalid(
            "'ObjectSizeLessThan' has to be greater than 'ObjectSizeGreaterThan'",
        ));
    }
    Ok(())
}

/// Reads a `Filter`: one predicate, or several inside `And`.
fn read_filter(
    scanner: &mut Scanner<'_>,
    filter: &mut Filter,
    outermost: bool,
) -> Result<(), S3Error> {
    let mut parts = 0;
    while let Some(name) = scanner.child()? {
        parts += 1;
        if outermost && parts > 1 {
            return Err(malformed());
        }
        match name {
            "Prefix" => filter.prefix = scanner.text()?,
            "Tag" if filter.tags.len() < tags::MAX_OBJECT_TAGS => {
                let (key, value) = tags::read_tag(scanner)?;
                tags::check(&key, &value)?;
                if filter.tags.iter().any(|(known, _)| *known == key) {
                    return Err(ErrorCode::InvalidTag.into());
                }
                filter.tags.push((key, value));
            }
            "ObjectSizeGreaterThan" => filter.size_greater_than = Some(scanner.number()?),
            "ObjectSizeLessThan" => filter.size_less_than = Some(scanner.number()?),
            "And" if outermost => read_filter(scanner, filter, false)?,
            _ => return Err(malformed()),
        }
    }
    Ok(())
}

fn read_expiration(scanner: &mut Scanner<'_>) -> Result<Expiration, S3Error> {
    let mut expiration = None;
    while let Some(name) = scanner.child()? {
        let value = match name {
            "Days" => Expiration::Days(days(scanner)?),
            "Date" => {
                let date_s = date::parse_iso8601(&scanner.text()?).ok_or_else(malformed)?;
                if date_s < 0 || date_s.rem_euclid(DAY_S) != 0 {
                    return Err(argument("'Date' must be at midnight GMT"));
                }
                Expiration::Date(date_s)
            }
            "ExpiredObjectDeleteMarker" => {
                if !scanner.boolean()? {
                    continue;
                }
                Expiration::ExpiredObjectDeleteMarker
            }
            _ => return Err(malformed()),
        };
        if expiration.replace(value).is_some() {
            return Err(malformed());
        }
    }
    expiration.ok_or_else(malformed)
}

fn read_noncurrent(scanner: &mut Scanner<'_>) -> Result<NoncurrentExpiration, S3Error> {
    let mut noncurrent_days = None;
    let mut newer_versions = 0;
    while let Some(name) = scanner.child()? {
        match name {
            "NoncurrentDays" => noncurrent_days = Some(days(scanner)?),
            "NewerNoncurrentVersions" => {
                newer_versions = scanner.number::<u32>()?;
                if !(1..=100).contains(&newer_versions) {
                    return Err(argument(
                        "'NewerNoncurrentVersions' must be between 1 and 100",
                    ));
                }
            }
            _ => return Err(malformed()),
        }
    }
    Ok(NoncurrentExpiration {
        days: noncurrent_days.ok_or_else(malformed)?,
        newer_versions,
    })
}

#[cfg(test)]
mod tests;
