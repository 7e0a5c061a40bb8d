//! Lists of values.

use super::subject::{Subject, refused};
use crate::limits::LIST_ITEMS_MAX;
use crate::{After, ErrorKind, Item, ListOptions, ListPage, Result, Space, Store};

const SPACE: &str = "lists";
const KEYS: [&str; 12] = [
    "a", "a/", "a/1", "a/2/x", "a/2/y", "a/3", "a0", "b//c", "b/1", "c", "c\u{ff}", "d/e/f",
];

pub(super) async fn run<S: Store>(subject: &Subject<S>) {
    subject.namespace(SPACE).await;
    for key in KEYS.iter().rev() {
        subject.put(SPACE, key, key.as_bytes()).await;
        subject.stage(SPACE, &format!("staged/{key}"), b"").await;
    }
    what_is_found(subject).await;
    paging_is_complete(subject).await;
    beginnings(subject).await;
    spaces_are_apart(subject).await;
    bytes_beyond_ascii(subject).await;
    many_keys(subject).await;
    pages_follow_changes(subject).await;
}

fn all(prefix: &str) -> ListOptions<'_> {
    ListOptions {
        namespace: SPACE,
        space: Space::Objects,
        prefix: prefix.as_bytes(),
        delimiter: None,
        after: After::Start,
        limit: LIST_ITEMS_MAX,
    }
}

fn by_slash(prefix: &str) -> ListOptions<'_> {
    ListOptions {
        delimiter: Some(b"/"),
        ..all(prefix)
    }
}

/// Keys as they are, common prefixes between angle brackets.
fn names(page: &ListPage) -> Vec<String> {
    let name = |item: &Item| match item {
        Item::Value(key, _) => String::from_utf8_lossy(key).into_owned(),
        Item::Prefix(prefix) => format!("<{}>", String::from_utf8_lossy(prefix)),
    };
    page.items.iter().map(name).collect()
}

async fn list<S: Store>(subject: &Subject<S>, options: ListOptions<'_>) -> Vec<String> {
    let page = subject.store.list(options).await.unwrap();
    assert!(!page.more);
    names(&page)
}

async fn what_is_found<S: Store>(subject: &Subject<S>) {
    assert_eq!(list(subject, all("")).await, KEYS);
    assert_eq!(list(subject, all("a/")).await, &KEYS[1..6]);
    assert_eq!(list(subject, all("zzz")).await, Vec::<String>::new());
    let top = ["a", "<a/>", "a0", "<b/>", "c", "c\u{ff}", "<d/>"];
    assert_eq!(list(subject, by_slash("")).await, top);
    assert_eq!(
        list(subject, by_slash("a/")).await,
        ["a/", "a/1", "<a/2/>", "a/3"]
    );
    assert_eq!(list(subject, by_slash("a")).await, ["a", "<a/>", "a0"]);
    assert_eq!(list(subject, by_slash("b/")).await, ["<b//>", "b/1"]);
    let none = ListOptions {
        delimiter: Some(b""),
        ..all("")
    };
    assert_eq!(list(subject, none).await, KEYS);
    let long = ListOptions {
        delimiter: Some(b"2/"),
        ..all("")
    };
    let found = list(subject, long).await;
    assert_eq!(found[2..5], ["a/1", "<a/2/>", "a/3"]);
    let page = subject.store.list(all("a/1")).await.unwrap();
    let address = crate::Address::object(SPACE, b"a/1");
    let meta = subject.store.stat(address, None).await.unwrap();
    assert_eq!(page.items, [Item::Value("a/1".into(), meta)]);
    let elsewhere = ListOptions {
        namespace: "nowhere",
        ..all("")
    };
    let found: Result<ListPage> = subject.store.list(elsewhere).await;
    refused(found, ErrorKind::NoSuchNamespace);
}

async fn paging_is_complete<S: Store>(subject: &Subject<S>) {
    for options in [
        all(""),
        all("a/"),
        by_slash(""),
        by_slash("a/"),
        by_slash("b"),
    ] {
        let whole = list(subject, options).await;
        for limit in 1..=whole.len() + 1 {
            let mut found = Vec::new();
            let mut page = ListPage::default();
            loop {
                let after = page.next().unwrap_or_default();
                let next = subject
                    .store
                    .list(ListOptions {
                        after,
                        limit,
                        ..options
                    })
                    .await;
                page = next.unwrap();
                assert!(page.items.len() <= limit);
                found.extend(names(&page));
                assert!(found.len() <= whole.len(), "pages move on: {found:?}");
                if !page.more {
                    break;
                }
                assert_eq!(page.items.len(), limit, "a page that more follows is full");
            }
            assert_eq!(found, whole, "limit {limit}, {options:?}");
        }
    }
    let none = ListOptions {
        limit: 0,
        ..all("")
    };
    assert_eq!(subject.store.list(none).await.unwrap(), ListPage::default());
}

async fn beginnings<S: Store>(subject: &Subject<S>) {
    let after = |options: ListOptions<'static>, after| ListOptions { after, ..options };
    for (beginning, wanted) in [
        (After::Key(b"a/3"), &KEYS[6..]),
        (After::Key(b"a/2"), &KEYS[3..]),
        (After::Key(b"\0"), &KEYS[..]),
        (After::Key(b"zzz"), &[]),
        (After::Prefix(b"a"), &KEYS[7..]),
        (After::Prefix(b"a/"), &KEYS[6..]),
        (After::Prefix(b"\xff\xff"), &[]),
    ] {
        let found = list(subject, after(all(""), beginning)).await;
        assert_eq!(found, wanted, "{beginning:?}");
    }
    // A key inside a common prefix hides that prefix only when it is the last one in it.
    let found = list(subject, after(by_slash(""), After::Key(b"a/1"))).await;
    assert_eq!(found[..2], ["<a/>", "a0"]);
    let found = list(subject, after(by_slash(""), After::Prefix(b"a/"))).await;
    assert_eq!(found[..2], ["a0", "<b/>"]);
    let found = list(subject, after(all("b/"), After::Key(b"a"))).await;
    assert_eq!(found, ["b//c", "b/1"]);
    let found = list(subject, after(all("a/"), After::Key(b"b"))).await;
    assert_eq!(found, Vec::<String>::new());
}

async fn spaces_are_apart<S: Store>(subject: &Subject<S>) {
    let staged = ListOptions {
        space: Space::Staging,
        ..all("")
    };
    let found = list(subject, staged).await;
    assert_eq!(found.len(), KEYS.len());
    assert!(found.iter().all(|name| name.starts_with("staged/")));
}

async fn bytes_beyond_ascii<S: Store>(subject: &Subject<S>) {
    subject.namespace("lists-bytes").await;
    let keys: [&[u8]; 6] = [
        b"\0",
        b"\xfe\xff",
        b"\xff",
        b"\xff\0",
        b"\xff\xff",
        b"\xff\xff\x01",
    ];
    for key in keys {
        let address = crate::Address::object("lists-bytes", key);
        subject
            .try_put(address, b"", crate::Condition::None)
            .await
            .unwrap();
    }
    let found = async |prefix: &[u8], delimiter: Option<&[u8]>| {
        let options = ListOptions {
            namespace: "lists-bytes",
            prefix,
            delimiter,
            ..all("")
        };
        let page = subject.store.list(options).await.unwrap();
        let bytes = |item| match item {
            Item::Value(key, _) | Item::Prefix(key) => key.to_vec(),
        };
        page.items.into_iter().map(bytes).collect::<Vec<_>>()
    };
    assert_eq!(found(b"", None).await, keys);
    assert_eq!(found(b"\xff", None).await, &keys[2..]);
    // Nothing can follow a common prefix of the greatest bytes.
    assert_eq!(
        found(b"", Some(b"\xff")).await,
        &[keys[0], keys[1], keys[2]]
    );
    assert_eq!(
        found(b"\xff", Some(b"\xff")).await,
        &[keys[2], keys[3], keys[4]]
    );
}

async fn many_keys<S: Store>(subject: &Subject<S>) {
    subject.namespace("lists-many").await;
    let keys: Vec<String> = (0..LIST_ITEMS_MAX + 2).map(|n| format!("{n:05}")).collect();
    for key in &keys {
        subject.put("lists-many", key, b"").await;
    }
    let options = ListOptions {
        namespace: "lists-many",
        limit: usize::MAX,
        ..all("")
    };
    let page = subject.store.list(options).await.unwrap();
    assert_eq!(names(&page), &keys[..LIST_ITEMS_MAX], "a page is bounded");
    let after = page.next().unwrap();
    let page = subject
        .store
        .list(ListOptions { after, ..options })
        .await
        .unwrap();
    assert_eq!(
        (names(&page), page.more),
        (keys[LIST_ITEMS_MAX..].to_vec(), false)
    );
}

async fn pages_follow_changes<S: Store>(subject: &Subject<S>) {
    subject.namespace("lists-changed").await;
    for key in ["k1", "k2", "k3", "k4"] {
        subject.put("lists-changed", key, b"").await;
    }
    let options = ListOptions {
        namespace: "lists-changed",
        limit: 2,
        ..all("")
    };
    let first = subject.store.list(options).await.unwrap();
    for key in ["k1", "k2", "k3"] {
        subject.delete("lists-changed", key).await;
    }
    let after = first.next().unwrap();
    let second = subject
        .store
        .list(ListOptions { after, ..options })
        .await
        .unwrap();
    assert_eq!(
        (names(&second), second.more),
        (vec!["k4".to_owned()], false)
    );
}
