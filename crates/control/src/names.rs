//! Which names are legal.

use crate::{Error, Kind, Result};

/// 1 to 63 of `a-z 0-9 - _ .`, beginning with a letter or digit: so a tenant can never be the system's own, which begins
/// with a dot.
pub(crate) fn check_tenant(name: &str) -> Result<()> {
    let legal = (1..=63).contains(&name.len())
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.')
        })
        && name.as_bytes()[0].is_ascii_alphanumeric();
    if legal {
        Ok(())
    } else {
        Err(Error::new(
            Kind::Invalid,
            format!(
                "{name:?} is not a tenant's name: 1 to 63 of a-z 0-9 - _ . that begin with a letter or digit"
            ),
        ))
    }
}

/// A namespace must be reachable through every door, so S3's rules for bucket names hold: 3 to 63 of `a-z 0-9 - .`, beginning
/// and ending with a letter or digit, no two dots together, not four numbers.
pub(crate) fn check_namespace(name: &str) -> Result<()> {
    let bytes = name.as_bytes();
    let edge = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let legal = (3..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
        })
        && edge(bytes.first())
        && edge(bytes.last())
        && !name.contains("..")
        && name.parse::<std::net::Ipv4Addr>().is_err();
    if legal {
        Ok(())
    } else {
        Err(Error::new(
            Kind::Invalid,
            format!(
                "{name:?} is not a namespace's name: 3 to 63 of a-z 0-9 - . that begin and end with a letter or digit"
            ),
        ))
    }
}

/// What SigV4 can carry: an id ends at `/` in a credential scope and at `,` in the header.
pub(crate) fn check_access_key(id: &str, secret: &str) -> Result<()> {
    let id_legal = (3..=128).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    let secret_legal =
        (8..=128).contains(&secret.len()) && secret.bytes().all(|byte| byte.is_ascii_graphic());
    if !id_legal {
        return Err(Error::new(
            Kind::Invalid,
            "an access key has 3 to 128 of A-Z a-z 0-9 - _ .",
        ));
    }
    if !secret_legal {
        return Err(Error::new(
            Kind::Invalid,
            "a secret key has 8 to 128 visible ASCII characters",
        ));
    }
    Ok(())
}
