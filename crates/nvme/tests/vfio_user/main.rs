//! Our client against our device, and clients that mean ill.

mod hostile;
mod io;
mod queues;
mod raw;
mod recorded;
mod support;
mod walks;
