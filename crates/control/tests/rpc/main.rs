//! The gRPC door over the memory leaf, through a real connection on loopback.

mod admin;
mod authentication;
mod bounds;
mod carried;
mod deadlines;
mod execute;
mod grants;
mod harness;
mod lists;
mod memory;
mod modules;
mod namesakes;
mod objects;
mod sessions;
mod unread;
mod watch;
