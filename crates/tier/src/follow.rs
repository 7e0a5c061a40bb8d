//! What others change: their notices put what is held in doubt.

use forebay_store::{Address, Notice, Store};

use crate::cache::Cache;
use crate::metrics::count;

/// Follows the store's notices; ends when there are none.
pub(crate) async fn follow<S: Store>(cache: &Cache<S>, store: &S) {
    let Some(mut changes) = store.changes() else {
        return;
    };
    while let Some(notice) = changes.next().await {
        match notice {
            Notice::Changed { namespace, key } => {
                count(&cache.counters.notices);
                let address = Address::object(&namespace, &key);
                if let Ok(Some(place)) = cache.place(store, address, None) {
                    // What is being read may be the old value; what is held is compared before it is served.
                    cache.stripes.disturb(place.hash);
                    cache.index.doubt(&place);
                }
            }
            Notice::Lost => {
                count(&cache.counters.notices_lost);
                cache.stripes.disturb_all();
                cache.index.doubt_all();
            }
        }
    }
}
