//! The access keys as the S3 door knows them.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_s3::{AccessKey, AccessKeys};
use parking_lot::RwLock;

/// The access keys as the S3 door asks for them, replaced whole at every change.
#[derive(Default)]
pub struct Keyring {
    keys: RwLock<HashMap<String, Arc<AccessKey>>>,
}

impl Keyring {
    /// Follows a change.
    pub fn replace(&self, keys: &[Arc<forebay_control::AccessKey>]) {
        let keys = keys.iter().map(|key| {
            let same = AccessKey {
                id: key.id.clone(),
                secret: key.secret.clone(),
                tenant: key.tenant.clone(),
            };
            (key.id.clone(), Arc::new(same))
        });
        *self.keys.write() = keys.collect();
    }
}

impl AccessKeys for Keyring {
    fn find(&self, access_key_id: &str) -> Option<Arc<AccessKey>> {
        self.keys.read().get(access_key_id).cloned()
    }
}
