//! The stores of a node, one over the other: the leaf that keeps the data below, the layers above it.
//!
//! Doors are generic over a store and are compiled for [`Stack`] alone, whatever leaf it ends in and whichever layers are on.

use std::sync::Arc;

use super::leaf::Leaf;

/// What doors speak to.
pub type Stack = Leaf;

/// The layers over a leaf.
pub fn stack(leaf: &Leaf) -> Arc<Stack> {
    Arc::new(leaf.clone())
}
