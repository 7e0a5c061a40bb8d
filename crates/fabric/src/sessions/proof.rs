//! What a connection shows to prove the session it belongs to (docs/token.md section 7.3).

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::SessionId;

/// Length of a proof in bytes: `"ort1"`, the session's id, the first 16 bytes of a MAC.
pub const PROOF_BYTES: usize = 36;

/// How a proof begins; over iWARP the answer to one is this, too: each end knows by it what the other one speaks.
pub(crate) const MAGIC: [u8; 4] = *b"ort1";
const CONTEXT: &[u8] = b"ort1 cm\0";

/// The proof that a connection's maker knows the key of the session `id`.
pub fn proof(id: SessionId, key: &[u8; 32]) -> [u8; PROOF_BYTES] {
    let mut proof = [0; PROOF_BYTES];
    proof[..4].copy_from_slice(&MAGIC);
    proof[4..20].copy_from_slice(&id.0);
    proof[20..].copy_from_slice(&tag(key, &[CONTEXT, &id.0]));
    proof
}

/// Which session a proof names; `None` when it is no proof at all.
pub(super) fn claimed(proof: &[u8; PROOF_BYTES]) -> Option<SessionId> {
    let (magic, rest) = proof.split_first_chunk::<4>()?;
    (*magic == MAGIC).then_some(SessionId(*rest.first_chunk()?))
}

/// Whether it is the proof of `id` under `key`, in the same time for every wrong one.
pub(super) fn proves(proof: &[u8; PROOF_BYTES], id: SessionId, key: &[u8; 32]) -> bool {
    verifies(key, &[CONTEXT, &id.0], &proof[20..])
}

/// The first 16 bytes of HMAC-SHA256 over the parts.
pub(super) fn tag(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 16] {
    let mut tag = [0; 16];
    tag.copy_from_slice(&keyed(key, parts).finalize().into_bytes()[..16]);
    tag
}

/// Whether `tag` is that of the parts, in constant time.
pub(super) fn verifies(key: &[u8; 32], parts: &[&[u8]], tag: &[u8]) -> bool {
    tag.len() == 16 && keyed(key, parts).verify_truncated_left(tag).is_ok()
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC takes keys of any length.
    let mut mac = Hmac::new_from_slice(key).unwrap_or_else(|_| Hmac::new(&Default::default()));
    parts.iter().for_each(|part| mac.update(part));
    mac
}
