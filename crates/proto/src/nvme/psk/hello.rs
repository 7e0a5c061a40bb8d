//! What of a ClientHello (RFC 8446, section 4.1.2) tells which keys the client has.

/// Extension: pre_shared_key.
const PRE_SHARED_KEY: u16 = 41;
/// Session identifiers at their longest, the random and the version.
const VERSION_AND_RANDOM_BYTES: usize = 2 + 32;

/// The identities that a ClientHello offers, in the client's order. `hello` is the message without its header of type and length. What
/// is no ClientHello, or is cut off, offers as many as can be read: judging it is the business of whoever speaks TLS.
pub fn offered(hello: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut left = identities(hello).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let identity = vector_16(&mut left)?;
        // The ticket's age.
        take(&mut left, 4)?;
        Some(identity)
    })
}

/// The list of identities of the last pre_shared_key extension; a second one is an error that is found elsewhere.
fn identities(hello: &[u8]) -> Option<&[u8]> {
    let mut left = hello;
    take(&mut left, VERSION_AND_RANDOM_BYTES)?;
    vector_8(&mut left)?;
    vector_16(&mut left)?;
    vector_8(&mut left)?;
    let mut extensions = vector_16(&mut left)?;
    let mut found = None;
    while let Some(kind) = take(&mut extensions, 2) {
        let mut content = vector_16(&mut extensions)?;
        if kind == PRE_SHARED_KEY.to_be_bytes() {
            found = vector_16(&mut content);
        }
    }
    found
}

fn take<'a>(from: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, left) = from.split_at_checked(bytes)?;
    *from = left;
    Some(taken)
}

fn vector_8<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take(from, 1)?;
    take(from, usize::from(length[0]))
}

fn vector_16<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take(from, 2)?;
    take(
        from,
        usize::from(u16::from_be_bytes([length[0], length[1]])),
    )
}
