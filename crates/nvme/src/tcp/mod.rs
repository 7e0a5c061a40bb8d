//! The target over TCP.
