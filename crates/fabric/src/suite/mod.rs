//! The conformance suite: what every [`Link`] is held to.
//!
//! Each area is one method of [`Suite`]; [`conformance!`](crate::conformance) makes a test of each. Every area runs on one thread and on
//! four. A fabric may refuse a range with an error of the call or, where the peer is the one who checks, by ending the link; what
//! counts is that no byte moves where it may not, and that no proof of placement is given.

mod ending;
mod messages;
mod racing;
mod reach;
mod subject;
mod transfers;

use tokio::runtime::{Builder, Runtime};

use self::subject::Subject;
use crate::{Access, Link};

/// The suite over one kind of link.
///
/// `make` makes the two ends of a new link, the server's first, and whatever must outlive them. Every method panics at the first breach
/// of the contract.
pub struct Suite<M> {
    make: M,
}

impl<M, L, G> Suite<M>
where
    M: AsyncFn() -> (L, L, G),
    L: Link,
{
    /// The suite over links from `make`.
    pub fn new(make: M) -> Suite<M> {
        Suite { make }
    }

    /// Messages: order, sizes, a receiver that is slow, futures that are dropped.
    pub fn messages(&self) {
        self.on_all(messages::run);
    }

    /// Remote writes and reads of odd sizes, beside bytes that stay as they are; the fence.
    pub fn transfers(&self) {
        self.on_all(transfers::run);
    }

    /// What is not exposed cannot be reached: old and foreign names, bounds, wrap-around, access.
    pub fn reach(&self) {
        for case in reach::CASES {
            for access in case.refused() {
                self.on_all(async |subject| reach::run(subject, case, access).await);
            }
        }
        for access in [Access::Read, Access::Write] {
            self.on_all(async |subject| reach::withdrawn(subject, access).await);
        }
    }

    /// Many calls at once, and regions that come and go meanwhile.
    pub fn racing(&self) {
        self.on_all(racing::run);
    }

    /// The end of a link, from either side, and what it leaves behind.
    pub fn ending(&self) {
        for case in ending::CASES {
            self.on_all(async |subject| ending::run(subject, case).await);
        }
    }

    /// Bounds on what one end exposes.
    pub fn bounds(&self) {
        self.on_all(racing::bounds);
    }

    fn on_all(&self, test: impl AsyncFn(Subject<L>)) {
        for runtime in [one_thread(), four_threads()] {
            runtime.block_on(async {
                let (server, client, guard) = (self.make)().await;
                test(Subject::new(server, client)).await;
                drop(guard);
            });
        }
    }
}

fn one_thread() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn four_threads() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Makes one `#[test]` of every area of the suite, for the [`Suite`](crate::suite::Suite) that the given expression makes.
#[macro_export]
macro_rules! conformance {
    ($suite:expr) => {
        $crate::conformance!(@tests $suite, messages transfers reach racing ending bounds);
    };
    (@tests $suite:expr, $($area:ident)*) => {
        $(
            #[test]
            fn $area() {
                $suite.$area();
            }
        )*
    };
}
