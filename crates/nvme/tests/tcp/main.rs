//! The door over TCP, driven by a plain host that speaks the protocol PDU by PDU, as it should and otherwise.

mod again;
mod commands;
mod durable;
mod first;
mod gone;
mod greedy;
mod host;
mod hostile;
mod landing;
mod mixed;
mod restarted;
mod secure;
mod world;
