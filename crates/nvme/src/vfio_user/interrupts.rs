//! MSI-X vectors: eventfds that the client gave.

use std::collections::VecDeque;

use forebay_io::eventfd::Raise;
use forebay_io::passing::Passed;
use forebay_proto::vfio_user::{IRQ_MSIX, IRQS, IrqAction, IrqData, SetIrqs};

use super::VECTORS;
use super::errno::Errno;

/// Where interrupts go, by vector.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    vectors: Vec<Option<Raise>>,
}

impl Interrupts {
    /// How many of a kind there are.
    pub(super) fn count(index: u32) -> Result<u32, Errno> {
        match index {
            IRQ_MSIX => Ok(u32::from(VECTORS)),
            IRQS.. => Err(Errno::INVALID),
            _ => Ok(0),
        }
    }

    /// Changes where they go. Either each vector comes with a file or none does.
    pub(super) fn set(&mut self, set: &SetIrqs<'_>, files: VecDeque<Passed>) -> Result<(), Errno> {
        let there = Interrupts::count(set.index)?;
        // The sum was checked when the message was read.
        if set.start + set.count > there || set.action != IrqAction::Trigger {
            return Err(Errno::INVALID);
        }
        let start = set.start as usize;
        let end = start + set.count as usize;
        self.vectors.resize_with(usize::from(VECTORS), || None);
        match set.data {
            IrqData::Eventfd if files.is_empty() => self.vectors[start..end].fill_with(|| None),
            IrqData::Eventfd if files.len() == end - start => {
                let raises: Result<Vec<Raise>, _> =
                    files.into_iter().map(Raise::received).collect();
                let raises = raises.map_err(|_| Errno::INVALID)?;
                for (vector, raise) in self.vectors[start..end].iter_mut().zip(raises) {
                    *vector = Some(raise);
                }
            }
            IrqData::Eventfd => return Err(Errno::INVALID),
            // The end of all.
            IrqData::None if set.count == 0 => self.vectors.clear(),
            IrqData::None => (start..end).for_each(|vector| self.raise(vector)),
            IrqData::Bool(which) => {
                let raised = which
                    .iter()
                    .zip(start..end)
                    .filter(|(meant, _)| **meant != 0);
                raised.for_each(|(_, vector)| self.raise(vector));
            }
        }
        Ok(())
    }

    /// Interrupts the client, if it wants to be by this vector.
    pub(super) fn raise(&self, vector: usize) {
        if let Some(Some(raise)) = self.vectors.get(vector) {
            raise.raise();
        }
    }
}
