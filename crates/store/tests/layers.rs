//! The check of layers finds what they keep to themselves.
#![forbid(unsafe_code)]

use forebay_store::Store;
use forebay_store::suite::{Around, Detour, Noting, check_layer};

/// Says nothing to any call.
#[derive(Clone)]
struct Straight;

impl Detour<Noting> for Straight {}

fn straight(store: Noting) -> Around<Noting, Straight> {
    let detour = Straight;
    Around { store, detour }
}

fn run(check: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(check);
}

#[test]
fn a_layer_that_passes_everything_on() {
    run(check_layer(async |below| straight(below), &[]));
}

#[test]
#[should_panic(expected = "what the layer passes on")]
fn a_layer_that_says_more_than_it_does() {
    run(check_layer(async |below| straight(below), &["stat"]));
}

/// Keeps to itself whether what it shows is durable.
struct Forgetful {
    store: Noting,
}

impl Store for Forgetful {
    type Upload = <Noting as Store>::Upload;
    type Body = <Noting as Store>::Body;

    forebay_store::pass_on! {
        store: caps, retrieve, retrieve_into, exist, stat, store, compose, amend, delete, away, let_go, take_back, forgotten,
        execute, list, list_versions, create_namespace, delete_namespace, update_namespace, namespace, namespaces,
        usage, set_tenant_quota, tenant_quota, changes
    }
}

#[test]
#[should_panic(expected = "what the layer passes on")]
fn a_layer_that_forgets_a_method() {
    run(check_layer(async |store| Forgetful { store }, &[]));
}
