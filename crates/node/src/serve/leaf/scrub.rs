//! Reading everything and checking it.

use std::collections::HashSet;
use std::time::Instant;

use bytes::Bytes;
use forebay_control::api::{Finding, ScrubReport};
use forebay_engine::Engine;
use forebay_store::{
    Address, After, Body, ByteRange, ErrorKind, ListOptions, Space, Store, StoreError, VersionId,
    VersionItem,
};

use crate::serve::device::Device;

/// Findings that are listed, as many as an engine remembers. All are counted.
const FINDINGS_MAX: usize = 1000;

/// A scrub of the engine, which knows its own blocks.
pub async fn scrub_engine(store: &Engine<Device>) -> Result<ScrubReport, StoreError> {
    let begun = Instant::now();
    let done = store.scrub(|_| {}).await?;
    let findings = store.findings().into_iter().map(|finding| Finding {
        namespace: finding.namespace,
        key: String::from_utf8_lossy(&finding.key).into_owned(),
        version: (finding.version != VersionId::NULL.0).then_some(finding.version),
        what: finding.what,
    });
    Ok(ScrubReport {
        objects: done.values,
        bytes: done.bytes,
        elapsed_ms: begun.elapsed().as_millis() as u64,
        damaged: done.damaged,
        findings: findings.collect(),
    })
}

/// A scrub through the waist alone: every version of every value is read, which checks it, and so is what is staged.
pub async fn read_everything<S: Store>(store: &S) -> Result<ScrubReport, StoreError> {
    let begun = Instant::now();
    let mut report = ScrubReport::default();
    for namespace in store.namespaces() {
        for space in [Space::Objects, Space::Staging] {
            match read_namespace(store, &namespace.name, space, &mut report).await {
                // It was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NoSuchNamespace => {}
                read => read?,
            }
        }
    }
    report.elapsed_ms = begun.elapsed().as_millis() as u64;
    Ok(report)
}

/// Adds what was passed over elsewhere, unless a value that was read has told of it: as far as that is listed.
pub fn add(report: &mut ScrubReport, passed_over: ScrubReport) {
    report.damaged += passed_over.damaged - passed_over.findings.len() as u64;
    let mut told = HashSet::new();
    let mut tell = |finding: &Finding| {
        let is_new = told.insert((finding.namespace.clone(), finding.what.clone()));
        // What is said of no namespace may have been said of any.
        told.insert((String::new(), finding.what.clone()));
        is_new
    };
    for known in &report.findings {
        tell(known);
    }
    for finding in passed_over.findings {
        if tell(&finding) {
            found(report, finding);
        }
    }
}

/// Counts it, and lists it while there is room.
pub fn found(report: &mut ScrubReport, finding: Finding) {
    report.damaged += 1;
    if report.findings.len() < FINDINGS_MAX {
        report.findings.push(finding);
    }
}

async fn read_namespace<S: Store>(
    store: &S,
    namespace: &str,
    space: Space,
    report: &mut ScrubReport,
) -> Result<(), StoreError> {
    let mut last: Option<(Bytes, VersionId)> = None;
    // Keys of which a version that is listed has told, as far as the page may pass over them.
    let mut told: HashSet<Bytes> = HashSet::new();
    loop {
        let options = ListOptions {
            after: After::last(&last),
            ..ListOptions::of(namespace, space)
        };
        let page = store.list_versions(options).await?;
        for item in &page.items {
            if let VersionItem::Value { key, meta, .. } = item {
                let address = Address {
                    namespace,
                    space,
                    key,
                };
                let damaged = report.damaged;
                read_one(store, address, meta.version, report).await?;
                if report.damaged > damaged {
                    told.insert(key.clone());
                }
            }
        }
        let untold = page.passed_over.iter().filter(|key| !told.contains(*key));
        for key in untold {
            let finding = Finding {
                namespace: namespace.to_owned(),
                key: String::from_utf8_lossy(key).into_owned(),
                version: None,
                what: "versions of it cannot be read, and are in no list".to_owned(),
            };
            found(report, finding);
        }
        last = page.last();
        match &last {
            Some((key, _)) => told.retain(|one| one == key),
            None => return Ok(()),
        }
    }
}

/// Reads one version, and reports what that told.
async fn read_one<S: Store>(
    store: &S,
    address: Address<'_>,
    version: VersionId,
    report: &mut ScrubReport,
) -> Result<(), StoreError> {
    match read_value(store, address, version).await {
        Ok(bytes) => {
            report.objects += 1;
            report.bytes += bytes;
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let finding = Finding {
                namespace: address.namespace.to_owned(),
                key: String::from_utf8_lossy(address.key).into_owned(),
                version: (version != VersionId::NULL).then_some(version.0),
                what: error.message().to_owned(),
            };
            found(report, finding);
        }
        // Its bytes are in the cold tier, which checks them itself.
        Err(error) if error.away().is_some() => report.objects += 1,
        // Deleted or replaced since it was listed.
        Err(error) if error.kind().is_absence() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn read_value<S: Store>(
    store: &S,
    address: Address<'_>,
    version: VersionId,
) -> Result<u64, StoreError> {
    let mut object = store
        .retrieve(address, Some(version), ByteRange::Full)
        .await?;
    let mut bytes = 0;
    while let Some(buf) = object.body.next().await? {
        bytes += buf.len() as u64;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_mem::Pool;
    use forebay_store::{
        MemoryStore, NamespaceConfig, Object, Result, Seal, StoreOptions, Upload, VersionPage,
    };

    use super::*;

    /// A store of which something cannot be read: the value of one key, and whatever is at another one.
    struct Damaged {
        below: Arc<MemoryStore>,
        passed_over: Vec<Bytes>,
    }

    impl Store for Damaged {
        type Upload = <MemoryStore as Store>::Upload;
        type Body = <MemoryStore as Store>::Body;

        async fn retrieve(
            &self,
            address: Address<'_>,
            version: Option<VersionId>,
            range: ByteRange,
        ) -> Result<Object<Self::Body>> {
            match address.key {
                b"torn" => Err(StoreError::new(ErrorKind::Corrupt, "as the test said")),
                _ => self.below.retrieve(address, version, range).await,
            }
        }

        async fn list_versions(&self, options: ListOptions<'_>) -> Result<VersionPage> {
            let objects = options.space == Space::Objects;
            let mut page = self.below.list_versions(options).await?;
            if objects {
                page.passed_over = self.passed_over.clone();
            }
            Ok(page)
        }

        forebay_store::pass_on! {
            below: caps, retrieve_into, exist, stat, store, compose, amend, delete, away, let_go, take_back, forgotten, execute, list,
            settle, create_namespace, delete_namespace, update_namespace, namespace, namespaces, usage, set_tenant_quota,
            tenant_quota, changes
        }
    }

    async fn put(store: &MemoryStore, address: Address<'_>) {
        let upload = store.store(address, StoreOptions::default()).await.unwrap();
        upload.commit(Seal::default()).await.unwrap();
    }

    #[tokio::test]
    async fn what_lists_pass_over_and_what_is_staged_is_found() {
        let store = Arc::new(MemoryStore::new(Pool::new(1 << 20), || 0));
        let config = NamespaceConfig {
            tenant: "t".to_owned(),
            ..NamespaceConfig::default()
        };
        store.create_namespace("n", config).await.unwrap();
        let torn = Address::object("n", b"torn");
        for address in [
            Address::object("n", b"whole"),
            torn,
            Address {
                space: Space::Staging,
                ..torn
            },
        ] {
            put(&store, address).await;
        }
        let store = Damaged {
            below: store,
            // Of one something is listed all the same.
            passed_over: vec!["lost".into(), "torn".into()],
        };
        let report = read_everything(&store).await.unwrap();
        assert_eq!((report.objects, report.damaged), (1, 3), "{report:?}");
        let keys = report.findings.iter().map(|finding| &finding.key[..]);
        assert_eq!(keys.collect::<Vec<_>>(), ["torn", "lost", "torn"]);
    }

    #[tokio::test]
    async fn all_that_is_found_is_counted_and_some_is_listed() {
        let below = Arc::new(MemoryStore::new(Pool::new(1 << 20), || 0));
        let config = NamespaceConfig {
            tenant: "t".to_owned(),
            ..NamespaceConfig::default()
        };
        below.create_namespace("n", config).await.unwrap();
        let keys = (0..10_000).map(|number| format!("{number:05}").into());
        let store = Damaged {
            below,
            passed_over: keys.collect(),
        };
        let mut report = read_everything(&store).await.unwrap();
        assert_eq!((report.damaged, report.findings.len()), (10_000, 1000));
        // Elsewhere the same was found, and something else.
        let elsewhere = |findings: Vec<Finding>| ScrubReport {
            damaged: findings.len() as u64,
            findings,
            ..ScrubReport::default()
        };
        let mut others = vec![report.findings[0].clone(); 2];
        others[1].what = "it is lost".to_owned();
        add(&mut report, elsewhere(others));
        assert_eq!((report.damaged, report.findings.len()), (10_001, 1000));
        // Of no namespace: that was told of one, and is told once.
        let mut others = vec![report.findings[0].clone(); 3];
        for other in &mut others {
            other.namespace.clear();
        }
        others[1].what = "a counter is".to_owned();
        others[2].what = "a counter is".to_owned();
        add(&mut report, elsewhere(others));
        assert_eq!(report.damaged, 10_002);
        // More than was listed there.
        let mut others = elsewhere(Vec::new());
        others.damaged = 5;
        add(&mut report, others);
        assert_eq!(report.damaged, 10_007);
    }
}
