//! Tokens for S3 requests (docs/token.md section 7): the request is anybody's, the payload goes by this client's link.

use std::fmt;
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
/// How long after the request's head the server may begin to move bytes, if they are few.
const LEASE: Duration = Duration::from_secs(8);
/// However many they are: HTTP clients mostly wait 60 s for an answer.
const LEASE_MAX: Duration = Duration::from_secs(50);
/// Slower than this a link is no way for a request of many bytes.
const BYTES_PER_S_MIN: u64 = 256 << 10;

pub use forebay_proto::token::ort1::Covered as Request;

/// How much longer than its lease an unanswered token leaves its link alone: what was begun in time has mostly ended by then.
const GRACE: Duration = Duration::from_secs(8);

/// The header of one S3 request. Its bytes of the region are lent to the request until [`Token::answered`].
///
/// A token that is dropped instead, because no answer came, leaves its bytes lent until no server can touch them any more: until its
/// link ends, which is closed for it after a while. Other calls notice that as a lost link.
pub struct Token {
    /// The value of `x-amz-rdma-token`.
    pub value: String,
    /// What `x-amz-rdma-ack` repeats.
    pub sequence: u64,
    lent: Option<(Loan, Arc<Lane<Connection>>)>,
    lease: Duration,
}

impl Token {
    /// The server has answered the request, whatever it said, or the request was not sent and will not be: nobody else uses the bytes.
    pub fn answered(mut self) {
        self.lent = None;
    }
}

/// Without its value: whoever has that may use the memory.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("sequence", &self.sequence)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some((loan, lane)) = self.lent.take() {
            lane.give_up(loan, self.lease + GRACE);
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
        let mut tries = self.tries(0);
        loop {
            let connected = self.reaching(window.region.memory(), &tries).await;
            let minter = Minter {
                session: connected.session,
                key: &connected.key,
                sequence: &connected.sequence,
                checksum: self.options().checksum,
            };
            let minted = match connected.last_lane() {
                Some((rail, lane)) => minter.mint(rail, lane, request, &window, &tries).await,
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
    /// `rail`: which of its session's links the lane is, the last one. When any of them ends, the ones behind it move up: a token for
    /// the last then names none, and never memory of another link.
    pub(super) async fn mint(
        &self,
        rail: usize,
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
        let lease = lease(place.len);
        let token = OpenToken {
            transport,
            direction,
            flags: Flags::default(),
            session: self.session.0,
            sequence,
            expiry_s: u32::try_from((now + GOOD_FOR).as_secs()).unwrap_or(u32::MAX),
            lease_ms: lease.as_millis() as u32,
            address: place.offset,
            length: place.len,
            remote_key,
            dc: None,
            segments: Segments::default(),
            promise,
            memory: None,
            rail: Some(u8::try_from(rail).unwrap_or(u8::MAX)).filter(|rail| *rail > 0),
            slot,
        };
        let value = token.seal(self.key, request);
        Ok(Token {
            value: value.map_err(|error| Failure::Final(argument(error)))?,
            sequence,
            lent: Some((loan, lane.clone())),
            lease,
        })
    }
}

/// How long the server may begin to move so many bytes.
fn lease(bytes: u64) -> Duration {
    let moving = Duration::from_secs(bytes / BYTES_PER_S_MIN);
    (LEASE + moving).min(LEASE_MAX)
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

#[cfg(test)]
mod tests {
    use forebay_fabric::{Access, RemoteRange, Sessions};
    use forebay_proto::token;

    use super::*;
    use crate::direct::{Options, Region};

    const GET: Request<'_> = Request {
        method: "GET",
        path: "/bucket/key",
        query: "",
        range: "",
    };

    /// A client with so many links, which are one; and the server's end of it.
    async fn client(links: usize) -> (Client, Connection, Sessions) {
        let options = Options {
            links,
            ..Options::default()
        };
        Client::linked("http://127.0.0.1:1", options).await
    }

    #[tokio::test]
    async fn bytes_of_a_dropped_token_come_back_when_the_server_has_let_go() {
        let (client, server, _sessions) = client(1).await;
        let region = Region::alloc(4096).unwrap();
        let token = client.token(&GET, region.window(0..4096)).await.unwrap();
        // The server's device begins to write.
        let connected = client.connected();
        let remote = region.on(connected.lane().unwrap()).await.unwrap();
        let range = RemoteRange {
            stag: remote.stag,
            offset: remote.base,
            len: 4096,
        };
        let device = server.mapped(range, Access::Write).unwrap();
        tokio::time::pause();
        drop(token);
        tokio::select! {
            biased;
            () = region.idle() => panic!("the device is not done"),
            _ = server.closed() => {}
        }
        assert!(region.try_lend(0..1, Use::Target).is_none());
        drop(device);
        region.idle().await;
    }

    #[tokio::test]
    async fn bytes_of_an_answered_token_come_back_at_once() {
        let (client, _server, _sessions) = client(1).await;
        let region = Region::alloc(4096).unwrap();
        let token = client.token(&GET, region.window(0..4096)).await.unwrap();
        assert!(region.try_lend(0..1, Use::Source).is_none());
        token.answered();
        assert!(region.try_lend(0..4096, Use::Target).is_some());
        assert!(client.connected().lane().unwrap().ended().is_none());
    }

    #[test]
    fn a_lease_grows_with_what_is_moved_but_not_past_the_patience_of_http() {
        let seconds = |bytes| lease(bytes).as_secs();
        assert_eq!(
            [0, 1 << 20, 4 << 20, 16 << 20, u64::MAX].map(seconds),
            [8, 12, 24, 50, 50]
        );
    }

    #[tokio::test]
    async fn a_token_names_the_last_link() {
        for (links, rail) in [(1, None), (2, Some(1)), (3, Some(2))] {
            let (client, _server, _sessions) = client(links).await;
            let region = Region::alloc(4096).unwrap();
            let token = client.token(&GET, &region).await.unwrap();
            let token::Token::Ort1(sealed) = token::read(token.value.as_bytes()).unwrap() else {
                panic!("{token:?}");
            };
            assert_eq!(sealed.unverified().rail, rail);
        }
    }
}
