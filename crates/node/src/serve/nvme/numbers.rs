//! Numbers for what the flags publish and export. Whatever names one goes first, so that nothing else is in its place.

use std::collections::BTreeMap;

use forebay_control::{Admin, Error, Identities, Kind, What};
use forebay_store::Store;

use super::flag;
use super::flags::{Export, Publish};
use crate::exit::{Failure, Outcome};

/// What a flag wants a number for.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    kind: Kept,
    name: &'a str,
    nsid: Option<u32>,
}

/// What lies under a number.
#[derive(Clone, Copy)]
enum Kept {
    Blocks,
    Values,
}

/// Gives each its number: the one that it names, else the one that it had, or any. Exports of nothing lose theirs before. A number that
/// something cannot have is refused before any is given.
pub async fn give<S: Store>(
    exports: &[Export],
    namespaces: &[Publish],
    admin: &Admin<S>,
    identities: &Identities<S>,
    store: &S,
) -> Outcome {
    let (opened, forgotten): (Vec<_>, Vec<_>) = exports.iter().partition(|one| one.place.is_some());
    let blocks = opened.iter().map(|one| Wanted {
        kind: Kept::Blocks,
        name: &one.name,
        nsid: one.nsid,
    });
    let values = namespaces.iter().map(|one| Wanted {
        kind: Kept::Values,
        name: &one.namespace,
        nsid: one.nsid,
    });
    let mut wanted: Vec<Wanted<'_>> = blocks.chain(values).collect();
    wanted.sort_by_key(|one| one.nsid.is_none());
    let mut held = BTreeMap::new();
    for one in identities.published() {
        let is_forgotten =
            |export: &&Export| matches!(&one.what, What::Block { name } if *name == export.name);
        if !forgotten.iter().any(is_forgotten) {
            held.insert(one.nsid, one.what.clone());
        }
    }
    for one in &wanted {
        one.take(&mut held, store)
            .map_err(|error| one.failed(error))?;
    }
    for export in forgotten {
        let forgotten = identities.unpublish_block(&export.name).await;
        forgotten.map_err(|error| flag("export", &export.name, error))?;
    }
    for one in wanted {
        let given = match one.kind {
            Kept::Blocks => identities.publish_block(one.name, one.nsid).await.map(drop),
            Kept::Values => admin.publish_namespace(one.name, one.nsid).await.map(drop),
        };
        given.map_err(|error| one.failed(error))?;
    }
    Ok(())
}

impl Wanted<'_> {
    /// Takes the number that it names, as far as those that are `held` let it.
    fn take<S: Store>(&self, held: &mut BTreeMap<u32, What>, store: &S) -> Result<(), Error> {
        let Some(nsid) = self.nsid else {
            return Ok(());
        };
        let what = match self.kind {
            Kept::Blocks => What::Block {
                name: self.name.to_owned(),
            },
            Kept::Values => What::KeyValue {
                namespace: self.name.to_owned(),
                // One that is not there has none yet.
                id: store.namespace(self.name).map_or(0, |there| there.id),
            },
        };
        match held.get(&nsid) {
            // Another gateway may have made it at this moment: publishing it finds out.
            Some(What::KeyValue { namespace, .. })
                if matches!(&what, What::KeyValue { id: 0, .. }) && namespace == self.name =>
            {
                Ok(())
            }
            Some(holder) if *holder != what => Err(Error::new(
                Kind::Exists,
                format!("namespace identifier {nsid} belongs to {holder}"),
            )),
            _ => {
                held.retain(|_, had| *had != what);
                held.insert(nsid, what);
                Ok(())
            }
        }
    }

    fn failed(&self, error: Error) -> Failure {
        let name = match self.kind {
            Kept::Blocks => "export",
            Kept::Values => "nvme-namespace",
        };
        flag(name, self.name, error)
    }
}
