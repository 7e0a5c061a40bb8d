//! Values whose bytes a store let go, because a layer above keeps them elsewhere.
//!
//! Such a value is a value in every other respect: it is listed, counted, conditioned, versioned, amended, expired and deleted as before,
//! by its leaf, in the same atomic steps. What the leaf lacks is bytes: to read it is [`ErrorKind::Busy`](crate::ErrorKind::Busy),
//! an error that carries [`StoreError::away`](crate::StoreError::away), from which the layer knows where to go.

use std::fmt;

/// Where the bytes of a value are: a name that a layer gave, never twice. To a leaf it means nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Away(pub u128);

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Away({self})")
    }
}
