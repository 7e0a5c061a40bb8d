//! Tokens for S3 requests (docs/token.md section 7): the request is anybody's, the payload goes by this client's link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_fabric::shm::REGIONS;
use forebay_fabric::{Connection, Fabric, Link, SessionId};
use forebay_proto::token::ort1::{Direction, Flags, OpenToken, Promise, Segments, Slot, Transport};

use super::attempt::{Failure, Tries, ended};
use super::client::Client;
use super::lane::Lane;
use super::loans::Use;
use super::options::Path;
use super::region::Loan;
use super::values::{lend, register};
use super::window::{Window, argument};
use crate::Result;

/// How long a token is good: enough for a request's way, too short to be worth stealing.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// How long after the request's head the server may begin to move bytes.
const LEASE: Duration = Duration::from_secs(8);

pub use forebay_proto::token::ort1::Covered as Request;

/// How much longer than its lease the bytes of an unanswered token stay lent: what was begun in time has then ended, too.
const GRACE: Duration = Duration::from_secs(8);

/// The header of one S3 request. Its bytes of the region are lent to the request until [`Token::answered`], or, when the token is
/// dropped, until no server may use it any more.
#[derive(Debug)]
pub struct Token {
    /// The value of `x-amz-rdma-token`.
    pub value: String,
    /// What `x-amz-rdma-ack` repeats.
    pub sequence: u64,
    loan: Option<Loan>,
    runtime: tokio::runtime::Handle,
}

impl Token {
    /// The server has answered the request, whatever it said: it is done with the bytes.
    pub fn answered(mut self) {
        self.loan = None;
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take() {
            self.runtime.spawn(async move {
                tokio::time::sleep(LEASE + GRACE).await;
                drop(loan);
            });
        }
    }
}

impl Client {
    /// A token for one request, whose payload will be the bytes of `window`: read for a `PUT` (with their checksum promised, if
    /// checksums are on), else written.
    ///
    /// # Errors
    /// [`crate::Error::Transport`] when payloads go by HTTP: send the request without a token. Else as every call.
    pub async fn token(
        &self,
        request: &Request<'_>,
        window: impl Into<Window<'_>>,
    ) -> Result<Token> {
        let window = window.into();
        window.check()?;
        let mut tries = self.tries();
        loop {
            let connected = self.reaching(window.region.memory(), &tries).await;
            let minter = Minter {
                session: connected.session,
                key: &connected.key,
                sequence: &connected.sequence,
                checksum: self.options().checksum,
            };
            // Tokens name the first link of their fabric unless they say otherwise.
            let minted = match connected.first_lane() {
                Some(lane) => minter.mint(lane, request, &window, &tries).await,
                None => Err(Failure::Unable("payloads go by HTTP".to_owned())),
            };
            match minted {
                Ok(token) => return Ok(token),
                Err(failure) => self.again(&connected, failure, true, &mut tries).await?,
            }
        }
    }
}

/// What a session's tokens are made with.
pub(super) struct Minter<'a> {
    pub(super) session: SessionId,
    pub(super) key: &'a [u8; 32],
    pub(super) sequence: &'a AtomicU64,
    pub(super) checksum: bool,
}

impl Minter<'_> {
    pub(super) async fn mint(
        &self,
        lane: &Arc<Lane<Connection>>,
        request: &Request<'_>,
        window: &Window<'_>,
        tries: &Tries,
    ) -> Result<Token, Failure> {
        let path = match lane.link().fabric() {
            Fabric::Shm => Path::Shm,
            Fabric::Iwarp => Path::Iwarp,
        };
        if let Some(reason) = lane.ended() {
            return Err(ended(path, reason));
        }
        let (direction, what) = match request.method {
            "PUT" => (Direction::Read, Use::Source),
            _ => (Direction::Write, Use::Target),
        };
        let place = register(lane, path, window, tries).await?;
        let loan = lend(window, what, tries).await?;
        let promise = match direction {
            Direction::Read if self.checksum => {
                let crc = window.region.crc64(window.range.clone());
                crc.map(|crc| Promise::Crc64Nvme(crc.value().to_be_bytes()))
            }
            Direction::Read | Direction::Write => None,
        };
        let (transport, remote_key, slot) = name(lane.link(), place.stag);
        let sequence = self.sequence.fetch_add(1, Relaxed) + 1;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let token = OpenToken {
            transport,
            direction,
            flags: Flags::default(),
            session: self.session.0,
            sequence,
            expiry_s: u32::try_from((now + GOOD_FOR).as_secs()).unwrap_or(u32::MAX),
            lease_ms: LEASE.as_millis() as u32,
            address: place.offset,
            length: place.len,
            remote_key,
            dc: None,
            segments: Segments::default(),
            promise,
            memory: None,
            rail: None,
            slot,
        };
        let value = token.seal(self.key, request);
        Ok(Token {
            value: value.map_err(|error| Failure::Final(argument(error)))?,
            sequence,
            loan: Some(loan),
            runtime: tokio::runtime::Handle::current(),
        })
    }
}

/// How a token names a region of a link. On shared memory a name is a slot with its generation.
fn name(link: &Connection, stag: u32) -> (Transport, u32, Option<Slot>) {
    match link.fabric() {
        Fabric::Iwarp => (Transport::Iwarp, stag, None),
        Fabric::Shm => {
            let slots = REGIONS as u32;
            let slot = Slot {
                slot: stag % slots,
                generation: stag / slots,
            };
            (Transport::Shm, slot.slot, Some(slot))
        }
    }
}
