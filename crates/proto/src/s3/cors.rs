//! Cross-origin resource sharing: the bucket's rules and the headers they give.

use super::{
    error::{ErrorCode, S3Error},
    xml::{Scanner, XmlError, XmlWriter},
};

/// The most rules of a bucket.
pub const MAX_RULES: usize = 100;
/// The longest configuration as it is kept, in bytes.
pub const MAX_DOCUMENT: usize = 64 << 10;
/// The most headers that a page is allowed in one request: none with more is served.
const MAX_REQUEST_HEADERS: usize = 100;
const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];
const ROOT: &str = "CORSConfiguration";

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// A name that has no effect.
    pub id: Option<String>,
    /// Origins, each with at most one `*`.
    pub allowed_origins: Vec<String>,
    /// Methods out of GET, PUT, POST, DELETE, HEAD.
    pub allowed_methods: Vec<String>,
    /// Request headers, each with at most one `*`.
    pub allowed_headers: Vec<String>,
    /// Response headers that a page may read.
    pub expose_headers: Vec<String>,
    /// How long a browser may remember a preflight, in seconds.
    pub max_age_s: Option<u32>,
}

/// The rules of a bucket, in order; the first that matches counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// 1 to [`MAX_RULES`] rules.
    pub rules: Vec<Rule>,
}

/// Matches a pattern with at most one `*`; `same` compares what it says outright.
fn matches(pattern: &str, text: &str, same: fn(&[u8], &[u8]) -> bool) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let Some(at) = pattern.iter().position(|byte| *byte == b'*') else {
        return same(pattern, text);
    };
    let (before, after) = (&pattern[..at], &pattern[at + 1..]);
    text.len() >= before.len() + after.len()
        && same(&text[..before.len()], before)
        && same(&text[text.len() - after.len()..], after)
}

impl Configuration {
    /// Reads the body of `PutBucketCors`.
    ///
    /// # Errors
    /// `MalformedXML`, `InvalidRequest`.
    pub fn from_xml(body: &[u8]) -> Result<Configuration, S3Error> {
        let mut scanner = Scanner::root(body, ROOT)?;
        let mut rules = Vec::new();
        while let Some(name) = scanner.child()? {
            if name != "CORSRule" || rules.len() == MAX_RULES {
                return Err(ErrorCode::MalformedXML.into());
            }
            rules.push(read_rule(&mut scanner)?);
        }
        scanner.finish()?;
        if rules.is_empty() {
            return Err(ErrorCode::MalformedXML.into());
        }
        Ok(Configuration { rules })
    }

    /// The reply to `GetBucketCors`.
    #[must_use]
    pub fn to_xml(&self) -> String {
        let mut writer = XmlWriter::new(ROOT);
        for rule in &self.rules {
            writer.open("CORSRule");
            writer.optional("ID", rule.id.as_deref());
            for (name, values) in [
                ("AllowedHeader", &rule.allowed_headers),
                ("AllowedMethod", &rule.allowed_methods),
                ("AllowedOrigin", &rule.allowed_origins),
                ("ExposeHeader", &rule.expose_headers),
            ] {
                for value in values {
                    writer.text(name, value);
                }
            }
            if let Some(seconds) = rule.max_age_s {
                writer.number("MaxAgeSeconds", u64::from(seconds));
            }
            writer.close("CORSRule");
        }
        writer.finish(ROOT)
    }

    /// The first rule that allows `origin` to use `method` with `request_headers` (the value of
    /// `Access-Control-Request-Headers`; empty for what is no preflight), of which no rule allows more than 100.
    #[must_use]
    pub fn matching(&self, origin: &str, method: &str, request_headers: &str) -> Option<&Rule> {
        if header_names(request_headers)
            .nth(MAX_REQUEST_HEADERS)
            .is_some()
        {
            return None;
        }
        self.rules.iter().find(|rule| {
            rule.allowed_origins
                .iter()
                .any(|pattern| matches(pattern, origin, <[u8]>::eq))
                && rule.allowed_methods.iter().any(|allowed| allowed == method)
                && header_names(request_headers).all(|name| rule.allows_header(name))
        })
    }
}

fn header_names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim_ascii)
        .filter(|name| !name.is_empty())
}

impl Rule {
    fn allows_header(&self, name: &str) -> bool {
        self.allowed_headers
            .iter()
            .any(|pattern| matches(pattern, name, <[u8]>::eq_ignore_ascii_case))
    }

    /// The headers that the rule adds to a response, for an `origin` that it matched.
    /// `request_headers` is as for [`Configuration::matching`].
    #[must_use]
    pub fn response_headers(
        &self,
        origin: &str,
        request_headers: &str,
    ) -> Vec<(&'static str, String)> {
        let mut headers = Vec::with_capacity(7);
        if self.allowed_origins.iter().any(|pattern| pattern == "*") {
            headers.push(("access-control-allow-origin", "*".to_owned()));
        } else {
            headers.push(("access-control-allow-origin", origin.to_owned()));
            headers.push(("access-control-allow-credentials", "true".to_owned()));
        }
        headers.push((
            "access-control-allow-methods",
            self.allowed_methods.join(", "),
        ));
        let allowed: Vec<String> = header_names(request_headers)
            .map(str::to_ascii_lowercase)
            .collect();
        if !allowed.is_empty() {
            headers.push(("access-control-allow-headers", allowed.join(", ")));
        }
        if !self.expose_headers.is_empty() {
            headers.push((
                "access-control-expose-headers",
                self.expose_headers.join(", "),
            ));
        }
        if let Some(seconds) = self.max_age_s {
            headers.push(("access-control-max-age", seconds.to_string()));
        }
        headers.push((
            "vary",
            "Origin, Access-Control-Request-Headers, Access-Control-Request-Method".to_owned(),
        ));
        headers
    }
}

fn read_rule(scanner: &mut Scanner<'_>) -> Result<Rule, S3Error> {
    let mut rule = Rule::default();
    while let Some(name) = scanner.child()? {
        match name {
            "ID" => rule.id = Some(scanner.text()?),
            "AllowedOrigin" => rule.allowed_origins.push(scanner.text()?),
            "AllowedMethod" => rule.allowed_methods.push(scanner.text()?),
            "AllowedHeader" => rule.allowed_headers.push(scanner.text()?),
            "ExposeHeader" => rule.expose_headers.push(scanner.text()?),
            "MaxAgeSeconds" => rule.max_age_s = Some(scanner.number()?),
            _ => return Err(XmlError::Schema("element of a CORS rule").into()),
        }
    }
    check_rule(&rule)?;
    Ok(rule)
}

fn check_rule(rule: &Rule) -> Result<(), S3Error> {
    let invalid = |message: String| S3Error::with_message(ErrorCode::InvalidRequest, message);
    if rule.allowed_origins.is_empty() || rule.allowed_methods.is_empty() {
        return Err(ErrorCode::MalformedXML.into());
    }
    if rule.id.as_ref().is_some_and(|id| id.len() > 255) {
        return Err(invalid(
            "The ID of a CORS rule may have at most 255 characters.".into(),
        ));
    }
    for method in &rule.allowed_methods {
        if !METHODS.contains(&method.as_str()) {
            return Err(invalid(format!(
                "Found unsupported HTTP method in CORS config. Unsupported method is {method}"
            )));
        }
    }
    for (element, patterns) in [
        ("AllowedOrigin", &rule.allowed_origins),
        ("AllowedHeader", &rule.allowed_headers),
    ] {
        for pattern in patterns {
            if pattern.matches('*').count() > 1 {
                return Err(invalid(format!(
                    "{element} \"{pattern}\" can not have more than one wildcard."
                )));
            }
        }
    }
    // What is put into response headers must be able to stand there.
    let field = |text: &String| text.bytes().all(|byte| (b' '..0x7f).contains(&byte));
    let lists = [
        &rule.allowed_origins,
        &rule.allowed_headers,
        &rule.expose_headers,
    ];
    if !lists.into_iter().flatten().all(field) {
        return Err(invalid(
            "A CORS rule holds a character that no header can carry.".into(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "<CORSConfiguration><CORSRule><ID>a</ID>\
        <AllowedOrigin>https://*.example.org</AllowedOrigin><AllowedMethod>PUT</AllowedMethod>\
        <AllowedHeader>x-amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>\
        <MaxAgeSeconds>30</MaxAgeSeconds></CORSRule><CORSRule><AllowedOrigin>*</AllowedOrigin>\
        <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";

    #[test]
    fn the_first_matching_rule_answers() {
        let cors = Configuration::from_xml(BODY.as_bytes()).expect("valid");
        let origin = "https://www.example.org";
        let put = cors
            .matching(origin, "PUT", "X-Amz-Date, x-amz-acl")
            .expect("allowed");
        let headers = put.response_headers(origin, "X-Amz-Date, x-amz-acl");
        let header = |name| {
            headers
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, v)| &**v)
        };
        assert_eq!(header("access-control-allow-origin"), Some(origin));
        assert_eq!(header("access-control-allow-credentials"), Some("true"));
        assert_eq!(
            header("access-control-allow-headers"),
            Some("x-amz-date, x-amz-acl")
        );
        assert_eq!(header("access-control-expose-headers"), Some("ETag"));
        assert_eq!(header("access-control-max-age"), Some("30"));
        assert!(cors.matching(origin, "PUT", "authorization").is_none());
        assert!(cors.matching("https://example.org", "PUT", "").is_none());
        assert!(cors.matching(origin, "DELETE", "").is_none());
        let get = cors.matching("null", "GET", "").expect("allowed");
        assert_eq!(get.response_headers("null", "")[0].1, "*");
    }

    #[test]
    fn patterns_of_headers_are_in_any_case_and_those_of_origins_are_not() {
        let name = <[u8]>::eq_ignore_ascii_case;
        for (pattern, text, by_name, exact) in [
            ("X-Amz-*", "x-amz-date", true, false),
            ("x-*-A", "x-b-a", true, false),
            ("x-*-a", "x-b-a", true, true),
            ("x-*-a", "x-a", false, false),
            ("*", "", true, true),
            ("ab*bc", "abc", false, false),
            ("x", "X", true, false),
            ("x", "xy", false, false),
        ] {
            assert_eq!(matches(pattern, text, name), by_name, "{pattern} {text}");
            assert_eq!(
                matches(pattern, text, <[u8]>::eq),
                exact,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn a_request_of_more_headers_than_one_may_have_is_not_allowed() {
        let cors = Configuration::from_xml(BODY.as_bytes()).expect("valid");
        let asked = |count: usize| "x-amz-a,".repeat(count);
        let allowed = |count| cors.matching("https://a.example.org", "PUT", &asked(count));
        assert!(allowed(100).is_some());
        assert!(allowed(101).is_none());
    }

    #[test]
    fn documents_round_trip_and_wrong_ones_are_refused() {
        let cors = Configuration::from_xml(BODY.as_bytes()).expect("valid");
        assert_eq!(Configuration::from_xml(cors.to_xml().as_bytes()), Ok(cors));
        let rule = "<CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod>\
            </CORSRule>";
        let with =
            |rules: &str| Configuration::from_xml(format!("<{ROOT}>{rules}</{ROOT}>").as_bytes());
        assert!(with(&rule.repeat(100)).is_ok());
        for wrong in [
            String::new(),
            rule.repeat(101),
            rule.replace("GET", "PATCH"),
            rule.replace("*", "a*b*"),
            rule.replace("*", "a&#10;b"),
            rule.replace("<AllowedMethod>GET</AllowedMethod>", ""),
            rule.replace("AllowedOrigin", "Unknown"),
        ] {
            assert!(with(&wrong).is_err(), "{wrong}");
        }
    }
}
