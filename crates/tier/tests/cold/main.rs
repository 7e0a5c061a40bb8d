//! The cold tier: the contract with every value's bytes away, crashes at any step, a far side that fails and lies.
#![forbid(unsafe_code)]

mod conformance;
mod crashes;
mod crowding;
mod failures;
mod far;
mod policies;
mod power_loss;
mod reading;
mod sharing;
mod support;
mod sweeping;
