//! Keys in order.

use forebay_fabric::{Link, Result};
use forebay_proto::direct::{List, ListAfter, Listed};
use forebay_store::{After, Item, ListOptions, Space, Store};

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
            limit: list.limit as usize,
        };
        let page = match self.store.list(options).await {
            Ok(page) => page,
            Err(error) => return replies.refuse(&Failure::from(error)).await,
        };
        if let Err(failure) = self.recheck(own) {
            return replies.refuse(&failure).await;
        }
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
}
