//! The store's conformance suite over a cluster.

mod support;

use support::fresh;

/// How many random runs there are of each kind.
const CASES: &str = "FOREBAY_CEPH_CASES";

fn cases() -> u32 {
    let asked = std::env::var(CASES).ok();
    asked.map_or(12, |asked| asked.parse().expect("a number of runs"))
}

macro_rules! areas {
    ($($area:ident)*) => {
        $(
            #[test]
            #[ignore = "needs FOREBAY_CEPH_CONF: cargo xtask ceph"]
            fn $area() {
                let cluster = support::cluster();
                let make = async |clock: forebay_store::suite::TestClock| (fresh(&cluster, clock), ());
                forebay_store::suite::Suite::new(make).with_cases(cases()).$area();
            }
        )*
    };
}

areas!(values conditions composing lists versioned namespaces quotas expiry away model concurrent);
