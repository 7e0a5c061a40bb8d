//! Our client against our device, and clients that mean ill.

mod execute;
mod far;
mod far_hostile;
mod hostile;
mod initiator;
mod io;
#[path = "../../../exec/tests/doors/programs.rs"]
mod programs;
mod queues;
mod raw;
mod recorded;
mod relay;
mod support;
mod unmapping;
mod walks;
