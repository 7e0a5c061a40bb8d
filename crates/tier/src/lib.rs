//! A cache before another store.
#![forbid(unsafe_code)]
