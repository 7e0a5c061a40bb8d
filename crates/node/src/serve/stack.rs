//! The stores of a node, one over the other: the leaf that keeps the data below, the layers above it.
//!
//! Doors are generic over a store and are compiled for [`Stack`] alone, whatever leaf it ends in and whichever layers are on.

use std::sync::Arc;

use forebay_exec::Exec;
use forebay_mem::Pool;
use forebay_tier::Tier;
use forebay_tier::cold::Cold;

use super::args::ServeArgs;
use super::leaf::Leaf;
use super::{UnixClock, cache, exec};
use crate::exit::Outcome;

/// What doors speak to.
pub type Stack = Exec<Tier<Cold<Leaf>>>;

/// The layers over a leaf and its cold side.
pub fn stack(
    cold: &Cold<Leaf>,
    args: &ServeArgs,
    pool: &Pool,
    clock: &UnixClock,
) -> Outcome<Arc<Stack>> {
    let tier = cache::open(Arc::new(cold.clone()), args, pool, clock.clone())?;
    let executor = exec::open(&args.exec, &args.dir, pool)?;
    Ok(Arc::new(Exec::new(tier, executor)))
}
