//! Keeps values in Ceph RADOS.
#![deny(unsafe_code)]

mod sys;
