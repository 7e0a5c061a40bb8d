//! A namespace that is removed while a call opens what it names, and made anew for somebody else, is not the call's.

use forebay_exec::Exec;
use forebay_store::suite::{Around, Detour};
use forebay_store::{
    Address, ByteRange, Condition, ErrorKind, Execute, Input, MemoryStore, NamespaceConfig, Object,
    Output, Result, Seal, Store, StoreOptions, Upload, VersionId,
};

use crate::support::{MODULES, World, assert_kind, own};

/// Gives alice's namespace `hers` to bob, with a value in it, when something is first opened in this namespace.
#[derive(Debug, Clone, Copy)]
struct Passed(&'static str);

impl Passed {
    async fn on(self, store: &MemoryStore, opened: &str) -> Result<()> {
        if opened != self.0 || store.namespace("hers")?.config.tenant == "bob" {
            return Ok(());
        }
        store.delete_namespace("hers").await?;
        let config = NamespaceConfig {
            tenant: "bob".to_owned(),
            ..NamespaceConfig::default()
        };
        store.create_namespace("hers", config).await?;
        let secret = Address::object("hers", b"secret");
        let upload = store.store(secret, StoreOptions::default()).await?;
        upload.commit(Seal::default()).await?;
        Ok(())
    }
}

impl Detour<MemoryStore> for Passed {
    async fn retrieve(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        version: Option<VersionId>,
        range: ByteRange,
    ) -> Result<Object<<MemoryStore as Store>::Body>> {
        self.on(store, address.namespace).await?;
        store.retrieve(address, version, range).await
    }

    async fn store(
        &self,
        store: &MemoryStore,
        address: Address<'_>,
        options: StoreOptions,
    ) -> Result<<MemoryStore as Store>::Upload> {
        self.on(store, address.namespace).await?;
        store.store(address, options).await
    }
}

#[tokio::test]
async fn what_another_tenant_has_under_the_name_is_neither_read_nor_written() {
    for when in [MODULES, "also", "hers"] {
        for output in [None, Some("secret"), Some("new")] {
            let world = World::new().await;
            let config = NamespaceConfig {
                tenant: "alice".to_owned(),
                ..NamespaceConfig::default()
            };
            world.store.create_namespace("also", config).await.unwrap();
            world.put("also", "in", b"in").await;
            let module = world.module(&own("", "")).await;
            let store = Around {
                store: world.store.below().clone(),
                detour: Passed(when),
            };
            let store = Exec::new(store, world.store.executor().cloned());
            let inputs = [Input::whole("also", b"in"), Input::whole("hers", b"secret")];
            let inputs = match output {
                None => &inputs[..],
                Some(_) => &inputs[..1],
            };
            let mut call = Execute::inline("alice", module, inputs, b"", 1 << 10);
            if let Some(key) = output {
                call.output = Output::Store {
                    address: Address::object("hers", key.as_bytes()),
                    options: StoreOptions {
                        condition: Condition::IfAbsent,
                        ..StoreOptions::default()
                    },
                    seal: Seal::default(),
                };
            }
            let error = store.execute(call).await.unwrap_err();
            assert_kind(&error, ErrorKind::NoSuchNamespace);
            let new = Address::object("hers", b"new");
            let error = world.store.stat(new, None).await.unwrap_err();
            assert_kind(&error, ErrorKind::NotFound);
        }
    }
}
