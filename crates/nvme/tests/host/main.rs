//! Our host against our target, over TCP: what both say of namespaces, authentication, connections that are cut, and an engine whose
//! data lies on the target.

mod engine;
mod relay;
mod support;
mod talk;
