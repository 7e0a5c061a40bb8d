//! A way through all rows of a table that what cannot be read, or leads nowhere, does not end.

use forebay_store::{Result, StoreError};

use crate::index::is_damage;
use crate::keys::{self, Table};
use crate::tables::Scan;
use crate::view::View;

/// What is met next.
pub(crate) enum Met {
    Rows(Scan),
    /// Nothing tells what is there. It goes on with the next namespace.
    Damage(StoreError),
}

/// A way through table current or kept, some rows at a time.
pub(crate) struct Passage<'a> {
    view: View<'a>,
    table: Table,
    /// Where it may go on, in order.
    namespaces: Vec<u32>,
    from: Option<Vec<u8>>,
    /// Rows looked at in one step.
    step: usize,
    /// Before something that is in the way they are looked at one by one: so many times.
    single: usize,
}

impl<'a> Passage<'a> {
    /// In steps of so many rows. Behind damage it goes on with those of `namespaces` that come later.
    pub fn new(view: View<'a>, table: Table, mut namespaces: Vec<u32>, step: usize) -> Self {
        namespaces.sort_unstable();
        Passage {
            view,
            table,
            namespaces,
            from: Some(Vec::new()),
            step,
            single: 0,
        }
    }

    /// What comes next; `None` at the end.
    ///
    /// # Errors
    /// Those that say nothing of what is there: there is no way to it now.
    pub fn next(&mut self) -> Result<Option<Met>> {
        while let Some(from) = self.from.take() {
            let step = if self.single > 0 { 1 } else { self.step };
            match self.view.survey(self.table, &from, None, step) {
                Ok(mut scan) => {
                    self.single = self.single.saturating_sub(1);
                    self.from = scan.next.take();
                    return Ok(Some(Met::Rows(scan)));
                }
                Err(error) if !is_damage(&error) => return Err(error),
                Err(_) if self.single == 0 => {
                    self.single = self.step;
                    self.from = Some(from);
                }
                Err(error) => {
                    self.single = 0;
                    let id = from.first_chunk().map_or(0, |id| u32::from_be_bytes(*id));
                    let next = self.namespaces.iter().find(|next| **next > id);
                    self.from = next.map(|next| keys::namespace(*next).to_vec());
                    return Ok(Some(Met::Damage(error)));
                }
            }
        }
        Ok(None)
    }
}
