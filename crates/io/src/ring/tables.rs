//! The ring's tables of registered files and buffer regions, filled when something is first used.
//!
//! Neither table keeps its members alive: a place whose file or region is gone is given to the next. Names are never reused, so
//! a transfer can only find the place of its own file and region.
#![expect(unsafe_code, reason = "memory is registered by address")]

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};

use forebay_mem::{Region, RegionId};
use io_uring::Submitter;

use crate::files::{Handle, HandleId};

/// Which place belongs to whom.
struct Places<Id, T> {
    by_id: HashMap<Id, u32>,
    taken: Vec<(Id, Weak<T>)>,
    limit: u32,
}

impl<Id: Copy + Eq + Hash, T> Places<Id, T> {
    fn new(limit: u32) -> Places<Id, T> {
        Places {
            by_id: HashMap::new(),
            taken: Vec::new(),
            limit,
        }
    }

    /// A place for a newcomer: a new one, or one whose member is gone.
    fn assign(&mut self, id: Id, member: &Arc<T>) -> Option<u32> {
        let entry = (id, Arc::downgrade(member));
        let place = if self.taken.len() < self.limit as usize {
            self.taken.push(entry);
            self.taken.len() - 1
        } else {
            let gone = self
                .taken
                .iter()
                .position(|(_, member)| member.strong_count() == 0)?;
            self.by_id.remove(&self.taken[gone].0);
            self.taken[gone] = entry;
            gone
        };
        self.by_id.insert(id, place as u32);
        Some(place as u32)
    }

    /// No more newcomers: the kernel refuses them.
    fn close(&mut self, id: Id) {
        self.by_id.remove(&id);
        self.limit = 0;
    }
}

/// Registered files.
pub(super) struct Files {
    places: Places<HandleId, Handle>,
}

impl Files {
    pub(super) fn new(limit: u32, submitter: &Submitter<'_>) -> Files {
        let limit = if submitter.register_files_sparse(limit).is_ok() {
            limit
        } else {
            0
        };
        Files {
            places: Places::new(limit),
        }
    }

    /// The place of a file, registering it if there is room.
    pub(super) fn place(&mut self, handle: &Arc<Handle>, submitter: &Submitter<'_>) -> Option<u32> {
        if let Some(place) = self.places.by_id.get(&handle.id) {
            return Some(*place);
        }
        let place = self.places.assign(handle.id, handle)?;
        match submitter.register_files_update(place, &[handle.file.as_raw_fd()]) {
            Ok(_) => Some(place),
            Err(_) => {
                self.places.close(handle.id);
                None
            }
        }
    }

    /// Lets go of files that were closed: the table alone would keep their space taken.
    pub(super) fn sweep(&mut self, submitter: &Submitter<'_>) {
        for (place, (id, handle)) in self.places.taken.iter().enumerate() {
            if handle.strong_count() == 0 && self.places.by_id.remove(id).is_some() {
                // A file that cannot be let go stays until the ring goes.
                drop(submitter.register_files_update(place as u32, &[-1]));
            }
        }
    }
}

/// Registered buffer regions.
pub(super) struct Buffers {
    places: Places<RegionId, Region>,
}

impl Buffers {
    pub(super) fn new(limit: u16, submitter: &Submitter<'_>) -> Buffers {
        let limit = u32::from(limit);
        let limit = if submitter.register_buffers_sparse(limit).is_ok() {
            limit
        } else {
            0
        };
        Buffers {
            places: Places::new(limit),
        }
    }

    /// The place of a region, registering it if there is room.
    pub(super) fn place(&mut self, region: &Arc<Region>, submitter: &Submitter<'_>) -> Option<u16> {
        if let Some(place) = self.places.by_id.get(&region.id()) {
            return Some(*place as u16);
        }
        let place = self.places.assign(region.id(), region)?;
        match register(region, place, submitter) {
            Ok(()) => Some(place as u16),
            Err(error) => {
                self.places.close(region.id());
                tracing::info!(
                    %error,
                    registered = self.places.by_id.len(),
                    "no more buffers can be registered with the ring; is RLIMIT_MEMLOCK large enough?"
                );
                None
            }
        }
    }
}

fn register(region: &Region, place: u32, submitter: &Submitter<'_>) -> io::Result<()> {
    let whole = libc::iovec {
        iov_base: region.base().as_ptr().cast(),
        iov_len: region.len(),
    };
    // SAFETY: the kernel pins the pages themselves, so that they stay valid for it even when the region is unmapped before
    // the ring goes; transfers name a place only while they hold its region.
    unsafe { submitter.register_buffers_update(place, &[whole], None) }
}
