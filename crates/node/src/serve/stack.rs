//! The stores of a node, one over the other: the leaf that keeps the data below, the layers above it.
//!
//! Doors are generic over a store and are compiled for [`Stack`] alone, whatever leaf it ends in and whichever layers are on.

use std::sync::Arc;

use forebay_mem::Pool;
use forebay_tier::Tier;

use super::args::ServeArgs;
use super::leaf::Leaf;
use super::{UnixClock, cache};
use crate::exit::Outcome;

/// What doors speak to.
pub type Stack = Tier<Leaf>;

/// The layers over a leaf.
pub fn stack(leaf: &Leaf, args: &ServeArgs, pool: &Pool, clock: &UnixClock) -> Outcome<Arc<Stack>> {
    let tier = cache::open(Arc::new(leaf.clone()), &args.before, pool, clock.clone())?;
    Ok(Arc::new(tier))
}
