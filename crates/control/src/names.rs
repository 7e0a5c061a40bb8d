//! Which names are legal.

use forebay_proto::nvme::auth::Secret;
use forebay_proto::nvme::psk::TlsKey;

use crate::{Error, Kind, Result};

/// No name is longer: an NVMe Qualified Name.
const NAME_BYTES_MAX: usize = 223;

/// A name that somebody asks for, as a refusal repeats it: of one that is longer than any no more than that.
pub(crate) fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// As [`is_label`], so a tenant can never be the system's own, which begins with a dot.
pub(crate) fn check_tenant(name: &str) -> Result<()> {
    check(is_label(name), name, "tenant")
}

/// As a tenant's, but nothing that is a module's digest.
pub(crate) fn check_module(name: &str) -> Result<()> {
    let digest = forebay_store::ModuleDigest::parse(name).is_some();
    check(is_label(name) && !digest, name, "module")
}

/// As a tenant's.
pub(crate) fn check_rule(name: &str) -> Result<()> {
    check(is_label(name), name, "rule")
}

/// 1 to 63 of `a-z 0-9 - _ .`, beginning with a letter or digit.
fn is_label(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.')
        })
        && name.as_bytes()[0].is_ascii_alphanumeric()
}

fn check(legal: bool, name: &str, whose: &str) -> Result<()> {
    if legal {
        return Ok(());
    }
    Err(Error::new(
        Kind::Invalid,
        format!(
            "{:?} is not a {whose}'s name: 1 to 63 of a-z 0-9 - _ . that begin with a letter or digit",
            shown(name)
        ),
    ))
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
                "{:?} is not a namespace's name: 3 to 63 of a-z 0-9 - . that begin and end with a letter or digit, no two dots together, not an IPv4 address",
                shown(name)
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

/// An NVMe Qualified Name (NVM Express Base, 4.7): at most 223 bytes. Of the many characters that it may hold, those that a path or
/// a log would misread are refused.
pub(crate) fn check_nqn(nqn: &str) -> Result<()> {
    let legal = (12..=NAME_BYTES_MAX).contains(&nqn.len())
        && nqn.starts_with("nqn.")
        && nqn.bytes().all(|byte| {
            byte.is_ascii_graphic() && !matches!(byte, b'/' | b'?' | b'#' | b'%' | b'\\' | b'"')
        });
    if legal {
        Ok(())
    } else {
        Err(Error::new(
            Kind::Invalid,
            format!(
                "{:?} is not a host's NVMe Qualified Name: it begins with nqn. and has 12 to {NAME_BYTES_MAX} visible ASCII characters but / ? # % \\ \"",
                shown(nqn)
            ),
        ))
    }
}

/// A key of TLS in its interchange format (NVMe TCP Transport, 3.6.1.5): `NVMeTLSkey-1:HH:BASE64:`.
pub(crate) fn check_tls_key(key: &str) -> Result<()> {
    if TlsKey::parse(key).is_some() {
        Ok(())
    } else {
        Err(Error::new(
            Kind::Invalid,
            "a TLS key is NVMeTLSkey-1:HH:BASE64: as `nvme gen-tls-key` prints it",
        ))
    }
}

/// A DH-HMAC-CHAP secret in its representation (NVM Express Base, 8.3.5.5.7): `DHHC-1:HH:BASE64:`.
pub(crate) fn check_chap_secret(secret: &str) -> Result<()> {
    if Secret::parse(secret).is_some() {
        Ok(())
    } else {
        Err(Error::new(
            Kind::Invalid,
            "a CHAP secret is DHHC-1:HH:BASE64: as `nvme gen-dhchap-key` prints it",
        ))
    }
}
