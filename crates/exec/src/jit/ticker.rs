//! Counts milliseconds while anything runs, and sleeps otherwise.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use wasmtime::Engine;

const TICK: Duration = Duration::from_millis(1);

/// The count, which is the engine's epoch.
pub(super) struct Ticker {
    running: Mutex<usize>,
    wake: Condvar,
    engine: Engine,
}

/// Something runs.
pub(super) struct Ticking<'t>(&'t Ticker);

impl Ticker {
    /// Starts its thread, which ends when the ticker is dropped.
    pub fn start(engine: Engine) -> std::io::Result<Arc<Ticker>> {
        let ticker = Arc::new(Ticker {
            running: Mutex::new(0),
            wake: Condvar::new(),
            engine,
        });
        let weak = Arc::downgrade(&ticker);
        std::thread::Builder::new()
            .name("forebay-exec-ms".to_owned())
            .spawn(move || count(&weak))?;
        Ok(ticker)
    }

    /// Counts until what is returned is dropped.
    pub fn tick(&self) -> Ticking<'_> {
        let mut running = self.running.lock();
        *running += 1;
        if *running == 1 {
            self.wake.notify_one();
        }
        Ticking(self)
    }
}

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
    }
}

/// How long the thread sleeps at most before it looks whether the ticker is still there.
const LOOK: Duration = Duration::from_secs(2);

fn count(ticker: &Weak<Ticker>) {
    while let Some(ticker) = ticker.upgrade() {
        let mut running = ticker.running.lock();
        if *running == 0 {
            ticker.wake.wait_for(&mut running, LOOK);
            continue;
        }
        drop(running);
        std::thread::sleep(TICK);
        ticker.engine.increment_epoch();
    }
}
