//! What a door may leave when it ends: what was stored, and nothing else.

use std::collections::BTreeSet;

use forebay_store::*;

/// An upload's name is the last of its staged key, and comes before the number of a part.
const UPLOAD_LEN: usize = 32;

/// What the process has open.
pub fn descriptors() -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").expect("procfs");
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.display().to_string())
        .collect()
}

/// Checks that all room that is taken is taken by what a list shows, and by parts only while their uploads go on.
pub async fn check_space(store: &MemoryStore) {
    for namespace in store.namespaces() {
        let name = namespace.name.as_str();
        let staged = staged(store, name).await;
        let parts = staged.iter().map(|(_, size)| *size);
        let parts = parts.map(|size| Usage::of(Space::Staging, size));
        let listed = parts.fold(objects(store, name).await, Usage::plus);
        let used = store.usage(Scope::Namespace(name)).expect("a namespace");
        assert_eq!(used, listed, "{name} takes more or less than it shows");
        check_parts(name, &staged);
        check_promises(store, &namespace).await;
    }
}

/// What all versions take.
async fn objects(store: &MemoryStore, namespace: &str) -> Usage {
    let options = everything(namespace, Space::Objects);
    let page = store.list_versions(options).await.expect("lists");
    assert!(!page.more, "{namespace} has more than a page");
    let weight = |item: &VersionItem| match item {
        VersionItem::Value { meta, .. } => Usage::of(Space::Objects, meta.size),
        VersionItem::Marker { .. } => Usage::MARKER,
        VersionItem::Prefix(_) => Usage::default(),
    };
    let weights = page.items.iter().map(weight);
    weights.fold(Usage::default(), Usage::plus)
}

/// The keys and sizes of uploads and parts.
async fn staged(store: &MemoryStore, namespace: &str) -> Vec<(Vec<u8>, u64)> {
    let options = everything(namespace, Space::Staging);
    let page = store.list(options).await.expect("lists");
    assert!(!page.more, "{namespace} has more than a page");
    let entry = |item: &Item| match item {
        Item::Value(key, meta) => Some((key.to_vec(), meta.size)),
        Item::Prefix(_) => None,
    };
    page.items.iter().filter_map(entry).collect()
}

fn everything(namespace: &str, space: Space) -> ListOptions<'_> {
    ListOptions {
        namespace,
        space,
        prefix: b"",
        delimiter: None,
        after: After::Start,
        limit: usize::MAX,
    }
}

fn check_parts(namespace: &str, staged: &[(Vec<u8>, u64)]) {
    let (uploads, parts): (Vec<_>, Vec<_>) = staged
        .iter()
        .map(|(key, _)| key.as_slice())
        .partition(|key| key.starts_with(b"u\0"));
    let uploads: BTreeSet<&[u8]> = uploads
        .iter()
        .map(|key| &key[key.len() - UPLOAD_LEN..])
        .collect();
    for part in parts {
        assert!(
            uploads.contains(&part[2..2 + UPLOAD_LEN]),
            "{namespace} has a part without its upload: {}",
            part.escape_ascii()
        );
    }
}

/// A store promises room to whoever begins to write: that the tenant has room for a byte beside what it holds, and takes one, says
/// that nobody has a promise still.
async fn check_promises(store: &MemoryStore, namespace: &NamespaceInfo) {
    let tenant = namespace.config.tenant.as_str();
    let held = store.usage(Scope::Tenant(tenant)).expect("a tenant");
    let quota = Quota {
        bytes: Some(held.bytes + 1),
        objects: Some(held.objects + 1),
    };
    store.set_tenant_quota(tenant, quota).await.expect("sets");
    let address = Address::object(&namespace.name, b"the last byte");
    let options = StoreOptions {
        size: Some(1),
        condition: Condition::None,
    };
    if let Err(error) = store.store(address, options).await {
        panic!("{tenant} was promised room that nobody gave back: {error}");
    }
}
