//! The target as a PCI device over a Unix socket.
