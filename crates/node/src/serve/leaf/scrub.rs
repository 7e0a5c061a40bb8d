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

/// A scrub through the waist alone: every version of every value is read, which checks it.
pub async fn read_everything<S: Store>(store: &S) -> Result<ScrubReport, StoreError> {
    let begun = Instant::now();
    let mut report = ScrubReport::default();
    for namespace in store.namespaces() {
        match read_namespace(store, &namespace.name, &mut report).await {
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NoSuchNamespace => {}
            read => read?,
        }
    }
    report.elapsed_ms = begun.elapsed().as_millis() as u64;
    Ok(report)
}

async fn read_namespace<S: Store>(
    store: &S,
    namespace: &str,
    report: &mut ScrubReport,
) -> Result<(), StoreError> {
    let mut last: Option<(Bytes, VersionId)> = None;
    loop {
        let options = ListOptions {
            after: After::last(&last),
            ..ListOptions::of(namespace, Space::Objects)
        };
        let page = store.list_versions(options).await?;
        for item in &page.items {
            if let VersionItem::Value { key, meta, .. } = item {
                read_one(store, namespace, key, meta.version, report).await?;
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
    namespace: &str,
    key: &[u8],
    version: VersionId,
    report: &mut ScrubReport,
) -> Result<(), StoreError> {
    match read_value(store, Address::object(namespace, key), version).await {
        Ok(bytes) => {
            report.objects += 1;
            report.bytes += bytes;
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            report.damaged += 1;
            report.findings.push(Finding {
                namespace: namespace.to_owned(),
                key: String::from_utf8_lossy(key).into_owned(),
                version: (version != VersionId::NULL).then_some(version.0),
                what: error.message().to_owned(),
            });
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
