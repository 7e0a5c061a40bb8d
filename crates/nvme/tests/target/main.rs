//! What a target does with commands, whatever the transport: a payload in this process stands for one.

mod admission;
mod blocks;
mod hostile;
mod model;
mod support;
mod values;
