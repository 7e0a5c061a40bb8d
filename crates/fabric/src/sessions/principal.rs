//! Who opens sessions.

use std::fmt;

use super::proof::tag;

const CONTEXT: &[u8] = b"principal\0";

/// Who opens a session: an access key.
#[derive(Clone, Copy)]
pub struct Principal<'a> {
    /// Whose it is.
    pub tenant: &'a str,
    /// Its name.
    pub id: &'a str,
    /// What it proves to hold: another secret is another key, whatever its name.
    pub secret: &'a str,
}

impl Principal<'_> {
    /// What a session with this key keeps of the secret.
    pub(super) fn mark(&self, session_key: &[u8; 32]) -> [u8; 16] {
        tag(session_key, &[CONTEXT, self.secret.as_bytes()])
    }
}

impl fmt::Debug for Principal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the secret.
        write!(f, "Principal({} of {})", self.id, self.tenant)
    }
}
