//! Policies that allow, deny, do not care, and that are refused.

use proptest::prelude::*;

use super::*;

fn policy(statements: &str) -> Result<Policy, S3Error> {
    let document = format!("{{\"Version\":\"2012-10-17\",\"Statement\":[{statements}]}}");
    Policy::parse(document.as_bytes(), "b")
}

fn access<'a>(
    account: Option<&'a str>,
    action: &'a str,
    resource: &'a str,
    context: &'a [(&'a str, &'a str)],
) -> Access<'a> {
    let principal = account.map(|account| Principal {
        account,
        arn: "arn:aws:iam::t1:user/ann",
    });
    Access {
        principal,
        action,
        resource,
        context,
    }
}

const PUBLIC_READ: &str = r#"{"Sid":"r","Effect":"Allow","Principal":"*","Action":"s3:GetObject",
    "Resource":"arn:aws:s3:::b/*"}"#;

#[test]
fn a_denial_wins() {
    let secret = r#"{"Effect":"Deny","Principal":{"AWS":["*"]},"Action":["s3:*"],
        "Resource":["arn:aws:s3:::b/secret/*"]}"#;
    let policy = policy(&format!("{PUBLIC_READ},{secret}")).expect("valid");
    let evaluate = |action, resource| policy.evaluate(&access(None, action, resource, &[]));
    assert_eq!(evaluate("s3:GetObject", "b/a"), Decision::Allow);
    assert_eq!(evaluate("s3:getobject", "b/a/../x"), Decision::Allow);
    assert_eq!(evaluate("s3:GetObject", "b/secret/a"), Decision::Deny);
    assert_eq!(evaluate("s3:PutObject", "b/a"), Decision::Neutral);
    assert_eq!(evaluate("s3:GetObject", "b"), Decision::Neutral);
    assert_eq!(evaluate("s3:GetObject", "bb/a"), Decision::Neutral);
    assert!(policy.is_public());
}

#[test]
fn what_is_too_long_to_compare_is_denied() {
    let only = |operator: &str| {
        let condition =
            format!(r#""Condition":{{"{operator}":{{"aws:Referer":["*b","c"]}}}},"Sid""#);
        policy(&PUBLIC_READ.replace("\"Sid\"", &condition)).expect("valid")
    };
    for (length, like, unlike) in [
        (4096, Decision::Neutral, Decision::Allow),
        (4097, Decision::Deny, Decision::Deny),
    ] {
        let referer = "a".repeat(length);
        let context = [("aws:referer", referer.as_str())];
        let access = access(None, "s3:GetObject", "b/a", &context);
        assert_eq!(only("StringLike").evaluate(&access), like);
        assert_eq!(only("StringNotLike").evaluate(&access), unlike);
    }
    // Of what nobody asks for it may have any length.
    let referer = "a".repeat(60_000);
    let context = [("aws:referer", referer.as_str())];
    let access = access(None, "s3:GetObject", "b/a", &context);
    assert_eq!(
        policy(PUBLIC_READ).expect("valid").evaluate(&access),
        Decision::Allow
    );
}

#[test]
fn no_member_is_named_twice() {
    let condition = |key: &str| format!(r#"{{"StringEquals":{{"{key}":"x"}}}}"#);
    let (first, second) = (condition("s3:prefix"), condition("aws:userid"));
    let with = |members: &str| PUBLIC_READ.replace("\"Sid\":\"r\"", members);
    for members in [
        format!(r#""Condition":{first},"Condition":{second}"#),
        r#""Condition":{"StringEquals":{"s3:prefix":"x"},"StringEquals":{"aws:userid":"x"}}"#
            .to_owned(),
        r#""Condition":{"StringEquals":{"s3:prefix":"x","s3:prefix":"y"}}"#.to_owned(),
        r#""Effect":"Deny""#.to_owned(),
        // The same, written otherwise.
        r#""Condition":{},"\u0043ondition":{}"#.to_owned(),
    ] {
        assert!(policy(&with(&members)).is_err(), "{members}");
    }
    let both = r#""Condition":{"StringEquals":{"s3:prefix":"x","aws:userid":"x"},"StringLike":{"s3:prefix":"x"}}"#;
    assert!(policy(&with(both)).is_ok());
    let doubled = format!(r#"{{"Statement":[{PUBLIC_READ}],"Statement":[{PUBLIC_READ}]}}"#);
    assert!(Policy::parse(doubled.as_bytes(), "b").is_err());
}

#[test]
fn principals_are_accounts_or_names() {
    for (principal, ann, other) in [
        ("t1", Decision::Allow, Decision::Neutral),
        ("arn:aws:iam::t1:root", Decision::Allow, Decision::Neutral),
        (
            "arn:aws:iam::t1:user/ann",
            Decision::Allow,
            Decision::Neutral,
        ),
        (
            "arn:aws:iam::t1:user/bob",
            Decision::Neutral,
            Decision::Neutral,
        ),
        ("*", Decision::Allow, Decision::Allow),
    ] {
        let text = PUBLIC_READ.replace("\"*\"", &format!("{{\"AWS\":\"{principal}\"}}"));
        let policy = policy(&text).expect("valid");
        let evaluate = |account| policy.evaluate(&access(account, "s3:GetObject", "b/a", &[]));
        assert_eq!(evaluate(Some("t1")), ann, "{principal}");
        assert_eq!(evaluate(None), other, "{principal}");
    }
    let all_but = PUBLIC_READ
        .replace("Allow", "Deny")
        .replace("\"Principal\":\"*\"", "\"NotPrincipal\":{\"AWS\":\"t1\"}");
    let policy = policy(&all_but).expect("valid");
    let evaluate = |account| policy.evaluate(&access(account, "s3:GetObject", "b/a", &[]));
    assert_eq!(
        (evaluate(Some("t1")), evaluate(None)),
        (Decision::Neutral, Decision::Deny)
    );
}

#[test]
fn conditions_hold_or_do_not() {
    for (condition, context, holds) in [
        (
            r#"{"StringEquals":{"s3:prefix":["a/","b/"]}}"#,
            &[("s3:prefix", "b/")][..],
            true,
        ),
        (
            r#"{"StringEquals":{"s3:prefix":"a/"}}"#,
            &[("s3:prefix", "A/")],
            false,
        ),
        (r#"{"StringEquals":{"s3:prefix":"a/"}}"#, &[], false),
        (r#"{"StringEqualsIfExists":{"s3:prefix":"a/"}}"#, &[], true),
        (r#"{"StringNotEquals":{"s3:prefix":"a/"}}"#, &[], true),
        (
            r#"{"StringNotEquals":{"s3:prefix":["a/","b/"]}}"#,
            &[("s3:prefix", "b/")],
            false,
        ),
        (
            r#"{"StringLike":{"S3:Prefix":"home/*"}}"#,
            &[("s3:prefix", "home/ann/x")],
            true,
        ),
        (
            r#"{"StringNotLike":{"s3:delimiter":"/"}}"#,
            &[("s3:delimiter", "/")],
            false,
        ),
        (
            r#"{"IpAddress":{"aws:SourceIp":["10.0.0.0/8","::1"]}}"#,
            &[("aws:SourceIp", "10.9.8.7")],
            true,
        ),
        (
            r#"{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#,
            &[("aws:SourceIp", "::ffff:10.0.0.1")],
            true,
        ),
        (
            r#"{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#,
            &[("aws:SourceIp", "11.0.0.1")],
            false,
        ),
        (
            r#"{"IpAddress":{"aws:SourceIp":"0.0.0.0/0"}}"#,
            &[("aws:SourceIp", "::1")],
            false,
        ),
        (
            r#"{"NotIpAddress":{"aws:SourceIp":"fe80::/10"}}"#,
            &[("aws:SourceIp", "fe80::1")],
            false,
        ),
        (
            r#"{"Bool":{"aws:SecureTransport":false}}"#,
            &[("aws:SecureTransport", "false")],
            true,
        ),
        (
            r#"{"Bool":{"aws:SecureTransport":"true"}}"#,
            &[("aws:SecureTransport", "false")],
            false,
        ),
        (
            r#"{"NumericLessThanEquals":{"s3:max-keys":10}}"#,
            &[("s3:max-keys", "10")],
            true,
        ),
        (
            r#"{"NumericLessThanEquals":{"s3:max-keys":"10"}}"#,
            &[("s3:max-keys", "x")],
            false,
        ),
        (
            r#"{"DateLessThan":{"aws:CurrentTime":"2030-01-01T00:00:00Z"}}"#,
            &[("aws:CurrentTime", "2029-12-31")],
            true,
        ),
        (r#"{"Null":{"s3:prefix":"true"}}"#, &[], true),
        (r#"{"Null":{"s3:prefix":"false"}}"#, &[], false),
        (
            r#"{"StringEquals":{"s3:ExistingObjectTag/a":"b"}}"#,
            &[("s3:ExistingObjectTag/a", "b")],
            true,
        ),
        (
            r#"{"StringEquals":{"S3:existingobjecttag/a":"b"}}"#,
            &[
                ("s3:ExistingObjectTag/A", "x"),
                ("s3:existingobjecttag/a", "b"),
            ],
            true,
        ),
        (
            r#"{"StringEquals":{"s3:ExistingObjectTag/A":"b"}}"#,
            &[("s3:ExistingObjectTag/a", "b")],
            false,
        ),
        (
            r#"{"StringEquals":{"s3:prefix":"a"},"Bool":{"aws:SecureTransport":"true"}}"#,
            &[("s3:prefix", "a")],
            false,
        ),
    ] {
        let text = PUBLIC_READ.replace("\"Sid\":\"r\"", &format!("\"Condition\":{condition}"));
        let policy = policy(&text).expect(condition);
        let expected = if holds {
            Decision::Allow
        } else {
            Decision::Neutral
        };
        let decision = policy.evaluate(&access(None, "s3:GetObject", "b/a", context));
        assert_eq!(decision, expected, "{condition}");
        assert!(!policy.is_public());
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    for (from, to) in [
        ("\"Allow\"", "\"allow\""),
        ("s3:GetObject", "ec2:Run"),
        ("\"s3:GetObject\"", "[]"),
        ("\"s3:GetObject\"", "[[]]"),
        ("arn:aws:s3:::b/*", "arn:aws:s3:::other/*"),
        ("arn:aws:s3:::b/*", "b/*"),
        ("b/*", "b/${aws:username}"),
        ("\"Principal\":\"*\"", "\"Principal\":\"t1\""),
        ("\"Principal\":\"*\"", "\"Principal\":{\"AWS\":\"t*\"}"),
        ("\"Principal\":\"*\"", "\"Principal\":{\"Service\":\"x\"}"),
        ("\"Principal\":\"*\",", ""),
        ("\"Principal\":\"*\"", "\"NotPrincipal\":\"*\""),
        ("\"Sid\":\"r\"", "\"NotAction\":\"s3:*\""),
        ("\"Sid\":\"r\"", "\"Other\":1"),
        (
            "\"Sid\":\"r\"",
            "\"Condition\":{\"StringEqual\":{\"s3:prefix\":\"a\"}}",
        ),
        (
            "\"Sid\":\"r\"",
            "\"Condition\":{\"ForAnyValue:StringEquals\":{\"s3:prefix\":\"a\"}}",
        ),
        (
            "\"Sid\":\"r\"",
            "\"Condition\":{\"StringEquals\":{\"s3:unknown\":\"a\"}}",
        ),
        (
            "\"Sid\":\"r\"",
            "\"Condition\":{\"StringEquals\":{\"s3:ExistingObjectTag/\":\"a\"}}",
        ),
        (
            "\"Sid\":\"r\"",
            "\"Condition\":{\"IpAddress\":{\"aws:SourceIp\":\"10.0.0.0/33\"}}",
        ),
        (
            "\"Sid\":\"r\"",
            "\"Condition\":{\"Bool\":{\"aws:SecureTransport\":\"yes\"}}",
        ),
    ] {
        let text = PUBLIC_READ.replace(from, to);
        assert_ne!(text, PUBLIC_READ, "{from}");
        let error = policy(&text).expect_err(to);
        assert_eq!(error.code, ErrorCode::MalformedPolicy, "{to}");
    }
    let deep = format!("{{\"Statement\":{}", "[".repeat(10_000));
    let long = format!("{{\"Id\":\"{}\"}}", "a".repeat(MAX_POLICY));
    for body in [
        "",
        "[]",
        "{}",
        "{\"Statement\":[]}",
        " {}",
        "{\"Version\":\"x\"}",
        &deep,
        &long,
    ] {
        assert!(Policy::parse(body.as_bytes(), "b").is_err());
    }
    let wildcard = PUBLIC_READ.replace("s3:::b/*", "s3:::*");
    assert!(policy(&wildcard).is_ok());
}

proptest! {
    #[test]
    fn no_document_panics(body in "[{}\\[\\]\":,a-zA-Z0-9*?./]{0,60}") {
        let _ = Policy::parse(body.as_bytes(), "b");
        let text = PUBLIC_READ.replace("\"Sid\":\"r\"", &format!("\"Condition\":{body}"));
        let _ = policy(&text);
    }
}
