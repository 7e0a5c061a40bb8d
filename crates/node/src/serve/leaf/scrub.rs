//! Reading everything and checking it.

use std::time::Instant;

use bytes::Bytes;
use forebay_control::api::{Finding, ScrubReport};
use forebay_engine::Engine;
use forebay_store::{
    Address, After, Body, ByteRange, ErrorKind, ListOptions, Space, Store, StoreError, VersionId,
    VersionItem,
};

use crate::serve::device::Device;

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

/// Adds what was passed over elsewhere, unless a value that was read has told of it.
pub fn add(report: &mut ScrubReport, passed_over: Vec<Finding>) {
    for finding in passed_over {
        let is_same = |known: &Finding| {
            known.what == finding.what
                && (finding.namespace.is_empty() || known.namespace == finding.namespace)
        };
        if !report.findings.iter().any(is_same) {
            found(report, finding);
        }
    }
}

fn found(report: &mut ScrubReport, finding: Finding) {
    report.damaged += 1;
    report.findings.push(finding);
}

async fn read_namespace<S: Store>(
    store: &S,
    namespace: &str,
    space: Space,
    report: &mut ScrubReport,
) -> Result<(), StoreError> {
    let mut last: Option<(Bytes, VersionId)> = None;
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
                read_one(store, address, meta.version, report).await?;
            }
        }
        for key in &page.passed_over {
            let finding = Finding {
                namespace: namespace.to_owned(),
                key: String::from_utf8_lossy(key).into_owned(),
                version: None,
                what: "versions of it cannot be read, and are in no list".to_owned(),
            };
            let is_of_it = |known: &Finding| {
                (&known.namespace, &known.key) == (&finding.namespace, &finding.key)
            };
            // The version that is listed all the same has told of it.
            if !report.findings.iter().any(is_of_it) {
                found(report, finding);
            }
        }
        last = page.last();
        if last.is_none() {
            return Ok(());
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
                // Of one something is listed all the same.
                page.passed_over = vec!["lost".into(), "torn".into()];
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
        let report = read_everything(&Damaged { below: store }).await.unwrap();
        assert_eq!((report.objects, report.damaged), (1, 3), "{report:?}");
        let keys = report.findings.iter().map(|finding| &finding.key[..]);
        assert_eq!(keys.collect::<Vec<_>>(), ["torn", "lost", "torn"]);
    }
}
