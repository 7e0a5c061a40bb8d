//! Calls that never touch data.

use forebay_fabric::Link;
use forebay_proto::direct::{Delete, Deleted, Elements, Key, Stat};
use forebay_store::{Address, DeleteOptions, Meta, Store, VersionId};

use crate::call::{Context, Own};
use crate::status::Failure;
use crate::store::condition;

/// Keys looked up before others get their turn, if it is theirs: half of a turn.
const EXIST_STEP: usize = 512;

/// Keys looked up before it is seen whether a prefix ends among them.
const PREFIX_STEP: usize = 64;

impl<S: Store, L: Link> Context<'_, S, L> {
    /// The name must have stood for the namespace that was admitted in the last of many look-ups, too.
    pub(crate) async fn exist(
        &self,
        own: Own<'_>,
        keys: Elements<'_, Key<'_>>,
    ) -> Result<Vec<Option<u64>>, Failure> {
        let addresses: Vec<_> = keys
            .map(|Key(key)| Address::object(own.name, key))
            .collect();
        let mut sizes = Vec::with_capacity(addresses.len());
        for step in addresses.chunks(EXIST_STEP) {
            self.turn.wait().await;
            self.turn.keys(step.len());
            let found = self.store.exist(step).await?;
            sizes.extend(found.into_iter().map(|meta| meta.map(|meta| meta.size)));
        }
        self.recheck(own)?;
        Ok(sizes)
    }

    /// The store finds the namespace by name in every step: it must be the one that was admitted before each, and after the last.
    pub(crate) async fn longest_prefix(
        &self,
        own: Own<'_>,
        keys: Elements<'_, Key<'_>>,
    ) -> Result<u64, Failure> {
        let addresses: Vec<_> = keys
            .map(|Key(key)| Address::object(own.name, key))
            .collect();
        let mut count = 0;
        for step in addresses.chunks(PREFIX_STEP) {
            self.turn.wait().await;
            self.turn.keys(step.len());
            self.recheck(own)?;
            let found = self.store.exist(step).await?;
            let present = found.iter().take_while(|meta| meta.is_some()).count();
            count += present as u64;
            if present < step.len() {
                break;
            }
        }
        self.recheck(own)?;
        Ok(count)
    }

    pub(crate) async fn stat(&self, own: Own<'_>, stat: Stat<'_>) -> Result<Meta, Failure> {
        self.meta(own, stat.key, stat.version.map(VersionId)).await
    }

    /// What is known of a value.
    pub(crate) async fn meta(
        &self,
        own: Own<'_>,
        key: &[u8],
        version: Option<VersionId>,
    ) -> Result<Meta, Failure> {
        let address = Address::object(own.name, key);
        let found = self.store.stat(address, version).await;
        self.recheck(own)?;
        Ok(found?)
    }

    pub(crate) async fn delete(
        &self,
        own: Own<'_>,
        delete: Delete<'_>,
    ) -> Result<Deleted, Failure> {
        let options = DeleteOptions {
            version: delete.version.map(VersionId),
            condition: condition(delete.condition)?,
        };
        let address = Address::object(own.name, delete.key);
        // Whoever lost a link deletes once more over another, and may have stored there since.
        self.still_asked()?;
        let deleted = self.store.delete(address, options).await?;
        Ok(Deleted {
            existed: deleted.existed,
            version: deleted.version.map(|version| version.0),
            marker: deleted.marker,
        })
    }
}
