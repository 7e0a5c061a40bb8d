//! Links over shared memory.
#![forbid(unsafe_code)]

mod ends;

use forebay_fabric::suite::Suite;

forebay_fabric::conformance!(Suite::new(ends::connections));
