//! A server that does what a script says: refusals, lost connections, wrong bytes, answers that nobody could mean.

mod calls;
mod copies;
mod downloads;
mod hostile;
mod script;
mod uploads;
