//! Rules read, written, refused and applied.

use super::*;

const BODY: &str = "<LifecycleConfiguration><Rule><ID>logs</ID><Filter><Prefix>logs/</Prefix>\
    </Filter><Status>Enabled</Status><Expiration><Days>2</Days></Expiration>\
    <AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation>\
    </AbortIncompleteMultipartUpload></Rule><Rule><Filter><And><Prefix>tmp/</Prefix><Tag>\
    <Key>keep</Key><Value>no</Value></Tag><ObjectSizeGreaterThan>10</ObjectSizeGreaterThan></And>\
    </Filter><Status>Enabled</Status><Expiration><Date>2030-01-01T00:00:00.000Z</Date></Expiration>\
    <NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
    <NewerNoncurrentVersions>2</NewerNoncurrentVersions></NoncurrentVersionExpiration></Rule>\
    <Rule><ID>off</ID><Prefix/><Status>Disabled</Status><Expiration><Days>1</Days></Expiration>\
    </Rule><Rule><ID>markers</ID><Filter/><Status>Enabled</Status><Expiration>\
    <ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration></Rule>\
    </LifecycleConfiguration>";

fn rules() -> Configuration {
    Configuration::from_xml(BODY.as_bytes()).expect("valid")
}

#[test]
fn documents_round_trip() {
    let rules = rules();
    assert_eq!(rules.rules[1].id, "rule-2");
    assert_eq!(
        Configuration::from_xml(rules.to_xml().as_bytes()),
        Ok(rules)
    );
}

#[test]
fn rules_without_an_id_get_one_that_is_free() {
    let rule = |id: &str| {
        format!(
            "<Rule>{id}<Filter/><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>"
        )
    };
    let of = |ids: &[&str]| {
        let rules: String = ids.iter().map(|id| rule(id)).collect();
        let body = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
        Configuration::from_xml(body.as_bytes()).map(|read| {
            read.rules
                .into_iter()
                .map(|rule| rule.id)
                .collect::<Vec<_>>()
        })
    };
    let named = of(&["", "<ID>rule-1</ID>", "<ID/>", "<ID>rule-2</ID>", ""]);
    assert_eq!(
        named.expect("valid"),
        ["rule-3", "rule-1", "rule-4", "rule-2", "rule-5"]
    );
    assert!(of(&["<ID>a</ID>", "", "<ID>a</ID>"]).is_err());
}

#[test]
fn ages_round_up_to_midnight() {
    let rules = rules();
    let none = Tags::default();
    let stored_s = 10 * DAY_S + 1;
    let log = Candidate {
        key: b"logs/a",
        tags: &none,
        size: 1,
        stored_s,
        standing: Standing::Current,
    };
    assert_eq!(rules.evaluate(&log, 13 * DAY_S - 1), None);
    assert_eq!(rules.evaluate(&log, 13 * DAY_S), Some(Action::Expire));
    assert_eq!(rules.expiry(&log), Some((13 * DAY_S, "logs")));
    let other = Candidate {
        key: b"log\xff",
        ..log
    };
    assert_eq!(rules.evaluate(&other, i64::MAX), None);
    assert!(!rules.aborts_upload(b"logs/\xff", stored_s, 12 * DAY_S - 1));
    assert!(rules.aborts_upload(b"logs/\xff", stored_s, 12 * DAY_S));
    assert!(!rules.aborts_upload(b"other", stored_s, i64::MAX));
    assert_eq!(due_s(i64::MAX, u32::MAX), i64::MAX);
}

#[test]
fn filters_want_all_of_their_parts() {
    let rules = rules();
    let tagged = Tags::parse_header("keep=no").expect("tag");
    let untagged = Tags::parse_header("keep=yes").expect("tag");
    let date_s = date::parse_iso8601("2030-01-01").expect("date");
    let good = Candidate {
        key: b"tmp/x",
        tags: &tagged,
        size: 11,
        stored_s: 0,
        standing: Standing::Current,
    };
    assert_eq!(rules.evaluate(&good, date_s), Some(Action::Expire));
    assert_eq!(rules.evaluate(&good, date_s - 1), None);
    assert_eq!(
        rules.evaluate(&Candidate { size: 10, ..good }, date_s),
        None
    );
    assert_eq!(
        rules.evaluate(
            &Candidate {
                tags: &untagged,
                ..good
            },
            date_s
        ),
        None
    );
    let old = |newer| Candidate {
        standing: Standing::Noncurrent { since_s: 0, newer },
        ..good
    };
    assert_eq!(rules.evaluate(&old(1), DAY_S), None, "the newest two stay");
    assert_eq!(rules.evaluate(&old(2), DAY_S - 1), None);
    assert_eq!(
        rules.evaluate(&old(2), DAY_S),
        Some(Action::RemoveNoncurrent)
    );
    let marker = |alone| Candidate {
        standing: Standing::DeleteMarker { alone },
        ..good
    };
    assert_eq!(
        rules.evaluate(&marker(true), 0),
        Some(Action::RemoveDeleteMarker)
    );
    assert_eq!(rules.evaluate(&marker(false), i64::MAX), None);
}

#[test]
fn wrong_rules_are_refused() {
    let good = "<Rule><ID>a</ID><Filter><Prefix>p</Prefix></Filter><Status>Enabled</Status>\
        <Expiration><Days>1</Days></Expiration></Rule>";
    let with =
        |rules: &str| Configuration::from_xml(format!("<{ROOT}>{rules}</{ROOT}>").as_bytes());
    assert!(with(good).is_ok());
    for wrong in [
        String::new(),
        good.repeat(2),
        good.replace("<Days>1", "<Days>0"),
        good.replace("<Days>1", "<Days>-1"),
        good.replace("<Days>1</Days>", "<Date>2030-01-01T01:00:00Z</Date>"),
        good.replace("<Days>1</Days>", "<Date>soon</Date>"),
        good.replace("<Days>1</Days>", ""),
        good.replace("<Expiration><Days>1</Days></Expiration>", ""),
        good.replace("Enabled", "enabled"),
        good.replace("<Filter><Prefix>p</Prefix></Filter>", ""),
        good.replace("<Prefix>p</Prefix>", "<Prefix>p</Prefix><Prefix>q</Prefix>"),
        good.replace("<ID>a", &format!("<ID>{}", "a".repeat(256))),
        good.replace("Expiration>", "Transition>"),
        good.replace(
            "<Prefix>p</Prefix>",
            "<And><ObjectSizeGreaterThan>9</ObjectSizeGreaterThan>\
             <ObjectSizeLessThan>9</ObjectSizeLessThan></And>",
        ),
    ] {
        assert!(with(&wrong).is_err(), "{wrong}");
    }
}
