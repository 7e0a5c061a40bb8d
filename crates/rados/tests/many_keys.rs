//! Lists of very many keys, some of them added by a gateway that was killed: pages, prefixes, and a delimiter that hides most.

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::time::Instant;

use forebay_rados::{Config, RadosStore};
use forebay_store::suite::TestClock;
use forebay_store::{Address, After, Item, ListOptions, Space, Store};
use futures_util::{StreamExt, stream};
use support::{Cluster, cluster, config, open, put, rados, runtime, space};

/// Set for the test that is started by the other one, to be killed by it.
const VICTIM: &str = "FOREBAY_RADOS_VICTIM";
/// How many keys there are to be.
const KEYS: &str = "FOREBAY_LISTED_KEYS";
const NS: &str = "many";
/// Changes at once.
const LANES: usize = 64;
/// What the victim has stored before it says so once more.
const SAID: u64 = 100;
const PAGE: usize = 1000;
const FOLDERS: u64 = 300;

fn keys() -> u64 {
    let asked = std::env::var(KEYS).ok();
    asked.map_or(20_000, |asked| asked.parse().expect("a number of keys"))
}

/// Most keys are in one folder, some in others, and a few in none.
fn key(number: u64) -> String {
    match number % 10 {
        0 if number.is_multiple_of(1000) => format!("none-{number:07}"),
        0 | 1 => format!("few/{:03}/{number:07}", number / 10 % FOLDERS),
        _ => format!("most/{number:07}"),
    }
}

/// Some are deleted again.
fn is_removed(number: u64) -> bool {
    number % 10 == 9
}

fn config_at(cluster: &Cluster, base: String) -> Config {
    Config {
        base,
        ..config(cluster)
    }
}

/// Stores the keys of these numbers, and removes those that are not to stay. Tells of each when it and all before it are done.
async fn add(store: &RadosStore, numbers: Range<u64>, mut done: impl FnMut(u64)) {
    let adding = stream::iter(numbers).map(async |number| {
        let key = key(number);
        let address = Address::object(NS, key.as_bytes());
        put(store, address, b"").await;
        if is_removed(number) {
            let gone = store.delete(address, Default::default()).await;
            assert!(gone.unwrap().existed, "{key}");
        }
        number
    });
    let mut adding = std::pin::pin!(adding.buffered(LANES));
    while let Some(number) = adding.next().await {
        done(number);
    }
}

/// Stores keys in their order until it is killed.
#[test]
#[ignore = "another test starts it, and kills it"]
fn victim() {
    let base = std::env::var(VICTIM).expect("the test that starts it says where");
    let cluster = cluster();
    runtime().block_on(async {
        let store = open(config_at(&cluster, base), TestClock::default());
        let said = |number: u64| {
            let stored = number + 1;
            if stored.is_multiple_of(SAID) {
                println!("stored {stored}");
            }
        };
        add(&store, 0..u64::MAX, said).await;
    });
}

/// Has a gateway store keys, and kills it among them, when it has stored so many.
fn kill_one_that_stores(base: &str, many: u64) {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "victim", "--nocapture"])
        .env(VICTIM, base)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let mut stored = lines.map_while(Result::ok).filter_map(|line| {
        let (_, stored) = line.split_once("stored ")?;
        stored.parse::<u64>().ok()
    });
    let enough = stored.any(|stored| stored >= many);
    assert!(enough, "the victim ended by itself");
    victim.kill().unwrap();
    let ended = victim.wait().unwrap();
    assert_eq!(ended.code(), None, "the victim ended by itself: {ended}");
}

/// What is asked for, from where on, in pages of so many.
#[derive(Clone, Copy)]
struct Asked<'a> {
    prefix: &'a str,
    delimiter: Option<&'a str>,
    after: Option<&'a str>,
    page: usize,
}

const ALL: Asked<'_> = Asked {
    prefix: "",
    delimiter: None,
    after: None,
    page: PAGE,
};

/// All that a list tells, page by page: keys, and common prefixes.
async fn listed(store: &RadosStore, asked: Asked<'_>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut from = asked.after.map(|key| (key.to_owned(), false));
    loop {
        let after = match &from {
            None => After::Start,
            Some((key, false)) => After::Key(key.as_bytes()),
            Some((prefix, true)) => After::Prefix(prefix.as_bytes()),
        };
        let options = ListOptions {
            namespace: NS,
            space: Space::Objects,
            prefix: asked.prefix.as_bytes(),
            delimiter: asked.delimiter.map(str::as_bytes),
            after,
            limit: asked.page,
        };
        let page = store.list(options).await.unwrap();
        assert!(page.items.len() == asked.page || !page.more, "half a page");
        let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
        found.extend(page.items.iter().map(|item| match item {
            Item::Value(key, _) | Item::Prefix(key) => text(key),
        }));
        from = match page.next() {
            None => return found,
            Some(After::Key(key)) => Some((text(key), false)),
            Some(After::Prefix(prefix)) => Some((text(prefix), true)),
            Some(other) => panic!("{other:?}"),
        };
    }
}

/// The keys whose objects are there, as Ceph itself says.
fn there(cluster: &Cluster, base: &str) -> BTreeSet<String> {
    let names = rados(cluster, &format!("{base}/{NS}"), &["ls"]);
    let names = String::from_utf8(names).unwrap();
    names.lines().map(str::to_owned).collect()
}

fn same(found: &[String], expected: &[&String]) {
    let differs = found
        .iter()
        .zip(expected)
        .find(|(one, other)| one != *other);
    assert_eq!(differs, None, "the first that differs");
    assert_eq!(found.len(), expected.len());
}

#[test]
#[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
fn very_many_keys_are_listed_whoever_stored_them() {
    let cluster = cluster();
    let base = config(&cluster).base;
    let runtime = runtime();
    let store = open(config_at(&cluster, base.clone()), TestClock::default());
    runtime.block_on(space(&store, NS));
    let (all, half) = (keys(), keys() / 2);
    kill_one_that_stores(&base, half);

    // Nobody has cleaned up after it yet; what it sent last may arrive now.
    let found = loop {
        let before = there(&cluster, &base);
        let found = runtime.block_on(listed(&store, ALL));
        if there(&cluster, &base) == before {
            same(&found, &before.iter().collect::<Vec<_>>());
            break found;
        }
    };
    assert!(found.is_sorted());
    let found: BTreeSet<String> = found.into_iter().collect();
    for number in 0..half {
        let key = key(number);
        assert_ne!(found.contains(&key), is_removed(number), "{key}");
    }

    runtime.block_on(async {
        // What it had stored of these is replaced.
        add(&store, half..all, |_| ()).await;
        let stay = (0..all).filter(|number| !is_removed(*number));
        let known: BTreeSet<String> = stay.map(key).collect();
        let expected: Vec<&String> = known.iter().collect();
        let begun = Instant::now();
        same(&listed(&store, ALL).await, &expected);
        let whole = begun.elapsed();
        let odd = Asked { page: 333, ..ALL };
        same(&listed(&store, odd).await, &expected);

        // From the middle on, from a key that is there or from none.
        for after in [&key(all / 2)[..], "few/150", "most/0", "none-0000000", "z"] {
            let behind = known.range(after.to_owned()..);
            let behind: Vec<_> = behind.filter(|key| *key != after).collect();
            let asked = Asked {
                after: Some(after),
                ..ALL
            };
            same(&listed(&store, asked).await, &behind);
        }
        for prefix in ["most/", "most/00012", "few/007/", "none", "no", "nobody"] {
            let among = known.iter().filter(|key| key.starts_with(prefix));
            let among: Vec<_> = among.collect();
            assert_eq!(among.is_empty(), prefix == "nobody", "{prefix}");
            same(&listed(&store, Asked { prefix, ..ALL }).await, &among);
        }

        // Most keys are hidden.
        let top = Asked {
            delimiter: Some("/"),
            ..ALL
        };
        let folders = ["few/", "most/"].map(str::to_owned);
        let top_level = known.iter().filter(|key| !key.contains('/'));
        let at_top: BTreeSet<&String> = folders.iter().chain(top_level).collect();
        let at_top: Vec<_> = at_top.into_iter().collect();
        let begun = Instant::now();
        same(&listed(&store, top).await, &at_top);
        let folded = begun.elapsed();
        println!("{all} keys in {whole:?}, two folders instead of them in {folded:?}");
        let within = |page| Asked {
            prefix: "few/",
            delimiter: Some("/"),
            page,
            after: None,
        };
        let folders: BTreeSet<String> = (0..all)
            .step_by(10)
            .map(|number| format!("few/{:03}/", number / 10 % FOLDERS))
            .collect();
        for page in [1000, 7] {
            let found = listed(&store, within(page)).await;
            same(&found, &folders.iter().collect::<Vec<_>>());
        }
        store.close().await;
    });
}
