//! A server that does what a script says: refusals, lost connections, wrong bytes, answers that nobody could mean.

mod calls;
mod hostile;
mod script;
