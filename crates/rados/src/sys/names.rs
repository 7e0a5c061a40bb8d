//! Names as the library takes them: bytes that end with a NUL, which none of ours holds.

use std::ffi::{CStr, CString, c_char};

use super::operation::Errno;

/// The name, or `EINVAL` when a NUL is in it.
pub(super) fn name(bytes: &[u8]) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno(libc::EINVAL))
}

/// Names for one call, and where they are.
pub(super) struct Names {
    pointers: Vec<*const c_char>,
    _names: Vec<CString>,
}

impl Names {
    /// All of them.
    pub(super) fn new<'n>(names: impl IntoIterator<Item = &'n [u8]>) -> Result<Names, Errno> {
        let names: Vec<CString> = names.into_iter().map(name).collect::<Result<_, _>>()?;
        Ok(Names {
            pointers: names.iter().map(|name| CStr::as_ptr(name)).collect(),
            _names: names,
        })
    }

    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.pointers.len()
    }
}
