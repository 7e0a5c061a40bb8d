//! A host: namespaces of blocks and of keys and values elsewhere.
