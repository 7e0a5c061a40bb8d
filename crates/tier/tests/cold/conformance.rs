//! The contract, with the bytes of every value away before each call.

use std::sync::Arc;

use forebay_mem::Pool;
use forebay_store::suite::{Around, Detour, Suite, TestClock, check_layer};
use forebay_store::{Address, ErrorKind, MemoryStore, Store};
use forebay_tier::cold::Cold;

use crate::far::Far;
use crate::support::{over, versions};

type Tested = Cold<MemoryStore>;

/// Sends everything away whenever anybody asks for anything.
#[derive(Clone)]
struct Eager;

impl Eager {
    async fn send_away(&self, store: &Tested) {
        let mover = store.mover().expect("a bucket");
        for namespace in store.namespaces() {
            for (key, meta) in versions(store, &namespace.name).await {
                let address = Address::object(&namespace.name, &key);
                if meta.size == 0
                    || mover
                        .is_cold(address, Some(meta.version))
                        .await
                        .is_ok_and(|cold| cold)
                {
                    continue;
                }
                match mover.move_out(address, &meta).await {
                    Ok(()) => {}
                    // Others change the same values at the same time.
                    Err(error) => assert!(
                        matches!(
                            error.kind(),
                            ErrorKind::PreconditionFailed
                                | ErrorKind::NoSuchVersion
                                | ErrorKind::NotFound
                                | ErrorKind::NoSuchNamespace
                                | ErrorKind::Busy
                        ),
                        "{error:?}"
                    ),
                }
            }
        }
        assert!(mover.tidy().await);
    }
}

impl Detour<Tested> for Eager {
    async fn before(&self, store: &Tested) {
        self.send_away(store).await;
    }
}

async fn make(clock: TestClock) -> (Around<Tested, Eager>, ()) {
    let told = clock.clone();
    let hot = MemoryStore::new(Pool::new(64 << 20), move || told.now());
    let store = over(Arc::new(hot), &Far::default(), &clock);
    let detour = Eager;
    (Around { store, detour }, ())
}

async fn make_off(clock: TestClock) -> (Tested, ()) {
    let hot = MemoryStore::new(Pool::new(64 << 20), move || clock.now());
    (Cold::off(Arc::new(hot)), ())
}

mod all_away {
    use super::*;
    forebay_store::conformance!(Suite::new(make).with_cases(24));
}

mod off {
    use super::*;
    forebay_store::conformance!(Suite::new(make_off).with_cases(8));
}

#[tokio::test]
async fn what_the_layer_passes_on() {
    let clock = TestClock::default();
    let over = async |store| over(Arc::new(store), &Far::default(), &clock);
    check_layer(over, &["away", "let_go", "take_back", "forgotten"]).await;
    check_layer(async |store| Cold::off(Arc::new(store)), &[]).await;
}
