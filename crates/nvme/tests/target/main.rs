//! What a target does with commands, whatever the transport: a payload in this process stands for one.

mod admission;
mod anew;
mod blocks;
mod discovery;
mod durable;
mod execute;
mod hostile;
mod model;
#[path = "../../../exec/tests/doors/programs.rs"]
mod programs;
mod scarce;
mod support;
mod values;
