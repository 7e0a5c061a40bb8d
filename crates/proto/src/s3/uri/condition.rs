//! Entity tags in `If-Match` and `If-None-Match` (RFC 9110 section 13.1).

/// One entity tag of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntityTag<'a> {
    /// Whether it had the prefix `W/`.
    pub weak: bool,
    /// The tag without quotes.
    pub tag: &'a str,
}

/// The value of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntityTags<'a> {
    /// `*`: any object that is there.
    Any,
    /// A list, possibly empty (which matches nothing).
    List(Vec<EntityTag<'a>>),
}

/// Parses the value of `If-Match` or `If-None-Match`. Tags without quotes are taken as well,
/// since clients send them.
#[must_use]
pub fn parse_entity_tags(header: &str) -> EntityTags<'_> {
    let mut rest = header.trim_ascii();
    if rest == "*" {
        return EntityTags::Any;
    }
    let mut tags = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if rest.is_empty() {
            return EntityTags::List(tags);
        }
        let (weak, after) = match rest.strip_prefix("W/") {
            Some(after) => (true, after),
            None => (false, rest),
        };
        let (tag, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        tags.push(EntityTag {
            weak,
            tag: tag.trim_ascii(),
        });
        rest = after;
    }
}

impl EntityTags<'_> {
    /// Strong comparison, for `If-Match`: `etag` is the object's, without quotes.
    #[must_use]
    pub fn matches_strongly(&self, etag: &str) -> bool {
        match self {
            EntityTags::Any => true,
            EntityTags::List(tags) => tags.iter().any(|tag| !tag.weak && tag.tag == etag),
        }
    }

    /// Weak comparison, for `If-None-Match`.
    #[must_use]
    pub fn matches_weakly(&self, etag: &str) -> bool {
        match self {
            EntityTags::Any => true,
            EntityTags::List(tags) => tags.iter().any(|tag| tag.tag == etag),
        }
    }
}
