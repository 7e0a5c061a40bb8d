//! What a message about many windows needs before it can be sent: a slot, and the windows' bytes.
//!
//! # Why nobody waits in a circle
//! Bytes are borrowed before a slot is taken, as single calls do, and in one order, whatever the caller's. A call that has messages in
//! flight does not wait here at all: their slots and bytes come back only when it reads their replies.

use std::time::Instant;

use forebay_fabric::Link;

use super::lane::{Lane, Pending, Stopped};
use super::loans::Use;
use super::region::Loan;
use super::window::Window;

/// Loans, each with its window's number.
type Loans = Vec<(usize, Loan)>;

/// Takes a slot and all of the windows; none when that would have to wait and the call is not `patient`.
pub(crate) async fn needs<'l, L: Link>(
    lane: &'l Lane<L>,
    windows: &[&Window<'_>],
    what: Use,
    until: Instant,
    patient: bool,
) -> Result<Option<(Pending<'l, L>, Loans)>, Stopped> {
    if !patient {
        // The slot first: it is the cheaper to ask for.
        let Some(pending) = lane.try_begin()? else {
            return Ok(None);
        };
        return Ok(borrow_now(windows, what).map(|loans| (pending, loans)));
    }
    let loans = borrow(windows, what, until).await;
    let loans = loans.ok_or(Stopped::TimedOut)?;
    Ok(Some((lane.begin(until).await?, loans)))
}

async fn borrow(windows: &[&Window<'_>], what: Use, until: Instant) -> Option<Loans> {
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_by_key(|at| (windows[*at].region.place(), windows[*at].range.start));
    let mut loans = Vec::with_capacity(windows.len());
    for at in order {
        let Window { region, range } = windows[at];
        loans.push((at, region.lend(range.clone(), what, until).await?));
    }
    Some(loans)
}

fn borrow_now(windows: &[&Window<'_>], what: Use) -> Option<Loans> {
    let loans = windows.iter().enumerate().map(|(at, window)| {
        let loan = window.region.try_lend(window.range.clone(), what)?;
        Some((at, loan))
    });
    loans.collect()
}
