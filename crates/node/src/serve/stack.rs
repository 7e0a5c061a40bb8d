//! The stores of a node, one over the other: the leaf that keeps the data below, the layers above it.
//!
//! Doors are generic over a store and are compiled for [`Stack`] alone, whatever leaf it ends in and whichever layers are on.

use std::sync::Arc;

use forebay_exec::Exec;
use forebay_mem::Pool;
use forebay_tier::Tier;
use forebay_tier::cold::Cold;

use super::args::ServeArgs;
use super::held::aside;
use super::leaf::Leaf;
use super::{UnixClock, cache, exec};
use crate::exit::Outcome;

/// What doors speak to.
pub type Stack = Exec<Tier<Cold<Leaf>>>;

/// The layers over a leaf and its cold side. A cache may have a journal to replay, too.
pub async fn stack(
    cold: &Cold<Leaf>,
    args: &ServeArgs,
    pool: &Pool,
    clock: &UnixClock,
) -> Outcome<Arc<Stack>> {
    let (cold, args) = (Arc::new(cold.clone()), args.clone());
    let (pool, clock) = (pool.clone(), clock.clone());
    aside(move || {
        let tier = cache::open(cold, &args, &pool, clock)?;
        let executor = exec::open(&args, &pool)?;
        Ok(Arc::new(Exec::new(tier, executor)))
    })
    .await?
}
