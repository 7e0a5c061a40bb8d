//! PDUs as they stand on the wire, and what is refused.
