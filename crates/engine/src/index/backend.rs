//! The index's file as the library wants it.
//!
//! Once its file refused it anything, the library answers nothing any more, of any row. So a look-up that cannot read never tells it:
//! the error goes past it. What it has to be told makes it useless, and the index is opened again.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use forebay_io::File;
use forebay_store::{ErrorKind, Result, StoreError};
use redb::StorageBackend;

use crate::replay::is_of_medium;

thread_local! {
    /// Whether what this thread asks of the library is a look-up: it holds no lock of the library while it reads.
    static LOOKING: Cell<bool> = const { Cell::new(false) };
    /// Where it could not read, and why, since its [`Tour`] began.
    static UNREAD: RefCell<Option<BTreeMap<u64, Why>>> = const { RefCell::new(None) };
}

/// Why the medium did not give something.
#[derive(Clone, Copy)]
struct Why {
    kind: io::ErrorKind,
    errno: Option<i32>,
}

impl Why {
    fn of(error: &io::Error) -> Why {
        Why {
            kind: error.kind(),
            errno: error.raw_os_error(),
        }
    }

    fn error(self) -> io::Error {
        match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => self.kind.into(),
        }
    }
}

/// Look-ups of this thread, one after the other, in the same index: where one of them could not read the others fail at once, since a read that
/// fails may take the device very long.
pub(crate) struct Tour {
    is_outermost: bool,
    stays: PhantomData<*const ()>,
}

impl Tour {
    pub fn begin() -> Tour {
        let is_outermost = UNREAD.with_borrow_mut(|unread| {
            let is_outermost = unread.is_none();
            unread.get_or_insert_default();
            is_outermost
        });
        Tour {
            is_outermost,
            stays: PhantomData,
        }
    }

    /// In how many places it could not read.
    pub fn unread(&self) -> usize {
        UNREAD.with_borrow(|unread| unread.as_ref().map_or(0, BTreeMap::len))
    }
}

impl Drop for Tour {
    fn drop(&mut self) {
        if self.is_outermost {
            UNREAD.set(None);
        }
    }
}

fn known_unread(offset: u64) -> Option<io::Error> {
    let why = UNREAD.with_borrow(|unread| unread.as_ref()?.get(&offset).copied());
    why.map(Why::error)
}

fn note_unread(offset: u64, error: &io::Error) {
    UNREAD.with_borrow_mut(|unread| {
        if let Some(unread) = unread {
            unread.insert(offset, Why::of(error));
        }
    });
}

/// A part of the file cannot be read. Of a look-up it unwinds through the library; else the library hands it on.
#[derive(Debug, thiserror::Error)]
#[error("the index cannot be read at byte {offset}")]
pub(super) struct Unread {
    offset: u64,
    #[source]
    error: io::Error,
}

impl Unread {
    pub fn into_store_error(self) -> StoreError {
        let kind = match self.error.kind() {
            // What leads there is wrong.
            io::ErrorKind::UnexpectedEof => ErrorKind::Corrupt,
            _ => ErrorKind::Io,
        };
        StoreError::new(kind, self.to_string()).with_source(self.error)
    }

    fn into_io_error(self) -> io::Error {
        io::Error::new(self.error.kind(), self)
    }
}

/// Whether a part of the index is damaged, or cannot be read although there is a way to it.
pub(crate) fn is_damage(error: &StoreError) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref());
    error.kind() == ErrorKind::Corrupt || cause.is_some_and(is_of_medium)
}

/// Looks something up. The library panics on some kinds of damage; here that is an error like any other.
pub(super) fn looking<T>(look: impl FnOnce() -> Result<T>) -> Result<T> {
    let outer = LOOKING.replace(true);
    let done = catch_unwind(AssertUnwindSafe(look));
    LOOKING.set(outer);
    done.unwrap_or_else(|panic| Err(of_panic(panic)))
}

/// Does something else with the library, which may panic too.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(of_panic(panic)))
}

fn of_panic(panic: Box<dyn Any + Send>) -> StoreError {
    match panic.downcast::<Unread>() {
        Ok(unread) => unread.into_store_error(),
        Err(_) => StoreError::new(ErrorKind::Corrupt, "the index is damaged"),
    }
}

/// What the file refused, however often it was opened.
#[derive(Debug, Default)]
pub(super) struct Health {
    refused: AtomicBool,
    unknown: AtomicBool,
    opening: AtomicBool,
    /// How often the file was opened.
    opened: AtomicU64,
}

impl Health {
    /// Whether the library was refused something since [`Health::renew`].
    pub fn is_refused(&self) -> bool {
        self.refused.load(SeqCst)
    }

    /// Whether a write or a sync failed, and not for want of room: what is in the file is not known then.
    pub fn is_unknown(&self) -> bool {
        self.unknown.load(SeqCst)
    }

    /// The library is of no use until its file is opened again.
    pub fn refuse(&self) {
        self.refused.store(true, SeqCst);
    }

    pub fn renew(&self) {
        self.refused.store(false, SeqCst);
    }

    /// The file is opened once more: whoever opened it before writes nothing to it from here on. What number this one has.
    pub fn next(&self) -> u64 {
        self.opened.fetch_add(1, SeqCst) + 1
    }

    /// Whether the library is opening the file.
    pub fn set_opening(&self, opening: bool) {
        self.opening.store(opening, SeqCst);
    }

    /// For a file that is not to be written. Opening it says there that it is open, and that may be left out.
    fn leave_out(&self) -> io::Result<()> {
        match self.opening.load(SeqCst) {
            true => Ok(()),
            false => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        }
    }

    fn note<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() {
            self.unknown.store(true, SeqCst);
        }
        self.note_read(done)
    }

    /// The same of what writes nothing.
    fn note_read<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if done.is_err() {
            self.refuse();
        }
        done
    }

    /// The same of what needs room, of which nothing counts before a sync.
    fn note_room<T>(&self, done: io::Result<T>) -> io::Result<T> {
        match &done {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                self.refuse();
                done
            }
            _ => self.note(done),
        }
    }
}

pub(super) struct Backend<F> {
    pub file: F,
    pub health: Arc<Health>,
    /// Nothing is written.
    pub frozen: bool,
    /// How often the file had been opened when it was for this.
    pub number: u64,
}

impl<F> Backend<F> {
    /// Writes, unless nothing is to be written. What was opened before others is closed after they have begun, and would put its own end under
    /// theirs.
    fn write_by(&self, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self.frozen {
            _ if self.number != self.health.opened.load(SeqCst) => {
                Err(io::ErrorKind::ReadOnlyFilesystem.into())
            }
            true => self.health.leave_out(),
            false => write(),
        }
    }
}

impl<F> fmt::Debug for Backend<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backend")
    }
}

impl<F: File> StorageBackend for Backend<F> {
    fn len(&self) -> io::Result<u64> {
        self.health.note(self.file.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if LOOKING.get()
            && let Some(error) = known_unread(offset)
        {
            resume_unwind(Box::new(Unread { offset, error }));
        }
        let mut read = self.file.read_exact_at(offset, out);
        if let Err(error) = &read
            && is_of_medium(error)
        {
            tracing::warn!(offset, %error, "reading the index failed, and is tried again");
            read = self.file.read_exact_at(offset, out);
        }
        if let Err(error) = &read
            && is_of_medium(error)
        {
            note_unread(offset, error);
        }
        match read.map_err(|error| Unread { offset, error }) {
            Err(unread) if LOOKING.get() => resume_unwind(Box::new(unread)),
            read => self.health.note_read(read.map_err(Unread::into_io_error)),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.write_by(|| self.health.note_room(self.file.set_len(len)))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.write_by(|| self.health.note(self.file.sync_data()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_by(|| self.health.note_room(self.file.write_all_at(offset, data)))
    }
}
