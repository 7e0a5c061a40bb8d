//! The direct door by its messages, over a link inside the process.

mod any;
mod attributes;
mod ends;
mod greetings;
mod hostile;
mod model;
mod namesakes;
mod pipe;
mod shares;
mod support;
mod transfers;
mod turns;
