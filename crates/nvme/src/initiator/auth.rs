//! Proving who is who: DH-HMAC-CHAP, right after Connect.

use super::host::Options;
use super::setup::{Line, Purpose};
use super::{Error, Result};

/// Proves this host to the controller, and the controller to this host when it has a secret of it.
pub(super) async fn authenticate(_: &mut Line, _: &Purpose, _: &Options) -> Result<()> {
    Err(Error::Denied("authentication is required".to_owned()))
}
