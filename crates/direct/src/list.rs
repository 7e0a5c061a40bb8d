//! Keys in order.

use forebay_fabric::{Link, Result};
use forebay_proto::direct::{List, ListAfter, Listed};
use forebay_store::limits::{KEY_BYTES_MAX, LIST_ITEMS_MAX};
use forebay_store::waiting::Held;
use forebay_store::{After, Attributes, Item, ListOptions, ListPage, Space, Store};

use crate::call::{Context, Own, Replies};
use crate::status::Failure;

impl<S: Store, L: Link> Context<'_, S, L> {
    /// One page, in as many replies as it needs.
    pub(crate) async fn list(
        &self,
        own: Own<'_>,
        list: &List<'_>,
        replies: &mut Replies<'_, L>,
    ) -> Result<()> {
        let found = self.page(own, list).await;
        self.counting.outcome(&found);
        let (page, _held) = match found {
            Ok(found) => found,
            Err(failure) => return replies.refuse(&failure).await,
        };
        for item in &page.items {
            let line = match item {
                Item::Value(key, meta) => Listed::Value {
                    key,
                    size: meta.size,
                    modified: meta.modified,
                    version: meta.version.0,
                    crc64nvme: meta.crc64nvme,
                    etag: meta.etag.as_str(),
                },
                Item::Prefix(prefix) => Listed::Prefix(prefix),
            };
            replies
                .put(&Ok(line), |writer, line| writer.listed(line))
                .await?;
        }
        replies.last(page.more).await
    }

    /// The page, as soon as the tenant may have it wait for the client.
    async fn page(
        &self,
        own: Own<'_>,
        list: &List<'_>,
    ) -> std::result::Result<(ListPage, Held), Failure> {
        let limit = list.limit as usize;
        let mut held = self
            .hold(limit.min(LIST_ITEMS_MAX) * LINE_BYTES_MAX)
            .await?;
        let options = ListOptions {
            namespace: own.name,
            space: Space::Objects,
            prefix: list.prefix,
            delimiter: (!list.delimiter.is_empty()).then_some(list.delimiter),
            after: match list.after {
                ListAfter::Start => After::Start,
                ListAfter::Key(key) => After::Key(key),
                ListAfter::Prefix(prefix) => After::Prefix(prefix),
            },
            limit,
        };
        self.turn.wait().await;
        let mut page = self.store.list(options).await?;
        self.turn.keys(page.items.len());
        self.recheck(own)?;
        let lines = page.items.iter_mut().map(|item| match item {
            Item::Value(key, meta) => {
                // Nobody is told of them, and they may be long.
                meta.attributes = Attributes::EMPTY;
                line_bytes(key)
            }
            Item::Prefix(prefix) => line_bytes(prefix),
        });
        held.shrink(lines.sum());
        Ok((page, held))
    }
}

/// What a line takes while it waits for the client.
const LINE_BYTES_MAX: usize = KEY_BYTES_MAX + size_of::<Item>();

fn line_bytes(key: &[u8]) -> usize {
    key.len() + size_of::<Item>()
}
