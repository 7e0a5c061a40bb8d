//! The store's conformance suite over a cluster, if there is one.

mod support;

use support::fresh;

macro_rules! areas {
    ($($area:ident)*) => {
        $(
            #[test]
            fn $area() {
                let Some(cluster) = support::cluster() else {
                    return;
                };
                let make = async |clock: forebay_store::suite::TestClock| (fresh(&cluster, clock), ());
                forebay_store::suite::Suite::new(make).with_cases(12).$area();
            }
        )*
    };
}

areas!(values conditions composing lists versioned namespaces quotas expiry away model concurrent);
