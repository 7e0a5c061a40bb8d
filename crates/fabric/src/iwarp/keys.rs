//! The secrets of a connection that the kernel encrypts, and the keys that follow from them (RFC 8446 section 7).
//!
//! A connection gives away its first keys, but not what the next ones are made of: that is told to whoever logs keys.

use std::fmt;
use std::io;

use forebay_io::kernel_tls::{self, Cipher, Direction, Key};
use parking_lot::Mutex;
use rustls::crypto::tls13::{HkdfExpander, OkmBlock};
use rustls::{CipherSuite, KeyLog, Tls13CipherSuite};
use tokio::net::TcpStream;

const CLIENTS: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVERS: &str = "SERVER_TRAFFIC_SECRET_0";
/// The longest key of a cipher.
const KEY_BYTES_MAX: usize = 32;

/// What one connection says of its secrets: the client's, the server's.
#[derive(Default)]
pub(super) struct Secrets(Mutex<(Option<OkmBlock>, Option<OkmBlock>)>);

impl Secrets {
    /// Those of the client and of the server, once they are agreed on by TLS 1.3.
    pub(super) fn take(&self) -> Option<(OkmBlock, OkmBlock)> {
        let (client, server) = std::mem::take(&mut *self.0.lock());
        client.zip(server)
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock();
        match label {
            CLIENTS => secrets.0 = Some(OkmBlock::new(secret)),
            SERVERS => secrets.1 = Some(OkmBlock::new(secret)),
            _ => {}
        }
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENTS | SERVERS)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

/// What protects one direction.
pub(super) struct Traffic {
    pub(super) suite: &'static Tls13CipherSuite,
    pub(super) direction: Direction,
    pub(super) secret: OkmBlock,
}

impl Traffic {
    /// Gives the kernel the key, from this record on.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn give(&self, tcp: &TcpStream, sequence: u64) -> io::Result<()> {
        let cipher = cipher(self.suite).ok_or(io::ErrorKind::Unsupported)?;
        let expander = self.suite.hkdf_provider.expander_for_okm(&self.secret);
        let (mut key, mut iv) = ([0; KEY_BYTES_MAX], [0; 12]);
        let key = &mut key[..cipher.key_bytes()];
        expand(expander.as_ref(), b"key", key)?;
        expand(expander.as_ref(), b"iv", &mut iv)?;
        let key = Key {
            cipher,
            key,
            iv,
            sequence,
        };
        kernel_tls::set_key(tcp, self.direction, &key)
    }

    /// Goes on to the next secret.
    ///
    /// # Errors
    /// None that a cipher of TLS 1.3 could give.
    pub(super) fn advance(&mut self) -> io::Result<()> {
        let expander = self.suite.hkdf_provider.expander_for_okm(&self.secret);
        let mut next = [0; OkmBlock::MAX_LEN];
        let next = &mut next[..expander.hash_len()];
        expand(expander.as_ref(), b"traffic upd", next)?;
        self.secret = OkmBlock::new(next);
        Ok(())
    }
}

/// What the kernel calls it, if it could know it.
pub(super) fn cipher(suite: &Tls13CipherSuite) -> Option<Cipher> {
    match suite.common.suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Cipher::Aes128Gcm),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Cipher::Aes256Gcm),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Cipher::ChaCha20Poly1305),
        _ => None,
    }
}

/// HKDF-Expand-Label without a context (RFC 8446 section 7.1).
fn expand(expander: &dyn HkdfExpander, label: &[u8], into: &mut [u8]) -> io::Result<()> {
    const PREFIX: &[u8] = b"tls13 ";
    let length = (into.len() as u16).to_be_bytes();
    let label_length = [(PREFIX.len() + label.len()) as u8];
    let info = [&length[..], &label_length, PREFIX, label, &[0]];
    expander
        .expand_slice(&info, into)
        .map_err(|_| io::ErrorKind::Unsupported.into())
}
