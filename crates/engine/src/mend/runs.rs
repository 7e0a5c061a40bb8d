//! The space that entries refer to.

use crate::Result;
use crate::entry::{Entry, Place};
use crate::extent::{Extent, Run};
use crate::index::corrupt;
use crate::keys::Table;
use crate::view::{View, malformed};

/// Every run that an entry refers to, in no order.
///
/// # Errors
/// A row that tells of some is damaged, or is not there.
pub(crate) fn each_run(view: View<'_>, mut each: impl FnMut(Run)) -> Result<()> {
    for table in [Table::Current, Table::Kept] {
        let mut from = Vec::new();
        loop {
            let scan = view.scan(table, &from, None, 256)?;
            for (_, encoded) in scan.rows {
                let entry = Entry::adopt(encoded).map_err(malformed)?;
                runs_of(view, &entry, &mut each)?;
            }
            match scan.next {
                Some(next) => from = next,
                None => break,
            }
        }
    }
    Ok(())
}

/// Every run that one entry refers to.
///
/// # Errors
/// A row that tells of some is damaged, or is not there.
pub(super) fn runs_of(view: View<'_>, entry: &Entry, each: &mut impl FnMut(Run)) -> Result<()> {
    let gone = || corrupt("a layout");
    if entry.is_marker() {
        return Ok(());
    }
    let parts = match entry.place().map_err(malformed)? {
        Place::Joined(body) => view.parts(body)?.ok_or_else(gone)?,
        place => vec![(entry.size(), place)],
    };
    for (_, place) in parts {
        let is_laid_out = matches!(place, Place::Layout(_));
        match view.extents(place)? {
            Some((_, extents)) => extents.iter().map(Extent::run).for_each(&mut *each),
            None if is_laid_out => return Err(gone()),
            None => {}
        }
    }
    Ok(())
}
