//! The door over TCP, driven by a plain host that speaks the protocol PDU by PDU, as it should and otherwise.

mod again;
mod commands;
mod durable;
mod execute;
mod first;
mod gone;
mod greedy;
mod host;
mod hostile;
mod landing;
mod mixed;
#[expect(dead_code, reason = "functions run within bounds of their own here")]
#[path = "../../../exec/tests/doors/programs.rs"]
mod programs;
mod restarted;
mod secure;
mod world;
