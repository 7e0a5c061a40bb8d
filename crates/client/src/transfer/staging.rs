//! Memory through which files go to and from a server by the direct path.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use forebay_proto::direct::Status;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::direct::loans::Use;
use crate::direct::{Client as Direct, Path, Put, Region, Request, Window};
use crate::{Client, Crc64, Error, Part, PutOptions, Result, client::Call};

/// Moved between a file and registered memory at a time: it stays in the second-level cache in between.
const STEP_BYTES: usize = 256 << 10;

/// A direct client and registered memory of a fixed number of equal slots, one for each part in flight.
#[derive(Debug)]
pub struct Staging {
    client: Direct,
    region: Region,
    slot_bytes: usize,
    free: Mutex<Vec<usize>>,
    room: Arc<Semaphore>,
    /// Why the last part that went by HTTP did so.
    declined: Mutex<Option<String>>,
}

/// One slot, given back when dropped.
pub(super) struct Staged {
    staging: Arc<Staging>,
    index: usize,
    len: usize,
    _permit: OwnedSemaphorePermit,
}

impl Staging {
    /// Memory for `parallel` parts of at most `part_bytes`; pages are taken as they are first touched.
    ///
    /// # Errors
    /// [`Error::Local`] when there is no memory.
    pub fn new(client: Direct, part_bytes: usize, parallel: usize) -> Result<Arc<Staging>> {
        let parallel = parallel.max(1);
        let slot_bytes = part_bytes.max(1).next_multiple_of(4096);
        let whole = slot_bytes
            .checked_mul(parallel)
            .ok_or(std::io::ErrorKind::OutOfMemory.into());
        let region = whole
            .and_then(Region::alloc)
            .map_err(Error::local("getting memory to register"))?;
        Ok(Arc::new(Staging {
            client,
            region,
            slot_bytes,
            free: Mutex::new((0..parallel).collect()),
            room: Arc::new(Semaphore::new(parallel)),
            declined: Mutex::default(),
        }))
    }

    /// The client whose links are used.
    pub fn client(&self) -> &Direct {
        &self.client
    }

    /// Why the last part that went by HTTP did so, if one did.
    pub fn declined(&self) -> Option<String> {
        self.declined.lock().clone()
    }

    /// Whether parts of `bytes` fit its slots.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        bytes <= self.slot_bytes as u64
    }

    /// A slot for `len` bytes, as soon as one is free and lent to nobody: a call that was given up may still have its bytes, into which
    /// something lands, or out of which something is taken.
    pub(super) async fn take(self: &Arc<Staging>, len: usize) -> Result<Staged> {
        let closed = |_| Error::Protocol("no memory is registered".to_owned());
        let permit = self.room.clone().acquire_owned().await.map_err(closed)?;
        let index = self.pick();
        let index = index.ok_or_else(|| Error::Protocol("no slot is free".to_owned()))?;
        let staged = Staged {
            staging: self.clone(),
            index,
            len: len.min(self.slot_bytes),
            _permit: permit,
        };
        let (region, slot) = (&self.region, self.slot(index));
        drop(region.lend_patiently(slot, Use::Target).await);
        Ok(staged)
    }

    /// A free slot, if there is one that is lent to nobody.
    fn pick(&self) -> Option<usize> {
        let mut free = self.free.lock();
        let is_idle = |index: &usize| {
            self.region
                .try_lend(self.slot(*index), Use::Target)
                .is_some()
        };
        match free.iter().rposition(is_idle) {
            Some(at) => Some(free.swap_remove(at)),
            None => free.pop(),
        }
    }

    /// Where a slot lies in the region.
    fn slot(&self, index: usize) -> Range<usize> {
        let start = index * self.slot_bytes;
        start..start + self.slot_bytes
    }

    /// Gets bytes `range` of the value whose tag is `etag` and feeds them to `sink`, whole or not at all.
    pub(super) async fn fetch(
        self: &Arc<Staging>,
        namespace: &str,
        key: &str,
        etag: &str,
        range: Range<u64>,
        sink: impl FnOnce(&Staged) -> Result<()>,
    ) -> Result<(Crc64, Path)> {
        let len = range.end - range.start;
        let staged = self
            .take(usize::try_from(len).unwrap_or(usize::MAX))
            .await?;
        let got = self.client.get_into(namespace, key, range, staged.window());
        let got = got.await?;
        if got.etag != etag || got.bytes != len {
            return Err(Error::replaced(format_args!("{namespace}/{key}")));
        }
        sink(&staged)?;
        let crc = match got.checksum {
            Some(crc) => Crc64::known(crc, len),
            None => staged.crc()?,
        };
        Ok((crc, got.path))
    }

    /// Whether a request with a token may be made again with a body. Not where this way was to be taken or none.
    fn may_fall_back(&self, error: &Error) -> bool {
        is_of_link(error) && self.client.options().path.allows(Path::Http)
    }

    /// Whether `client` may do what failed so: links reach the namespaces of one's own tenant, S3 also what bucket policies grant in
    /// another's.
    pub(super) fn leaves_to(&self, client: &Client, error: &Error) -> bool {
        let none = Status::NoSuchNamespace.name();
        let unknown = matches!(error, Error::Refused(refusal) if refusal.code == none);
        let leaves =
            unknown && !client.is_missing() && self.client.options().path.allows(Path::Http);
        if leaves {
            self.note(&"links reach namespaces of one's own tenant only");
        }
        leaves
    }

    fn note(&self, why: &dyn std::fmt::Display) {
        *self.declined.lock() = Some(why.to_string());
    }
}

impl Staged {
    fn range(&self) -> Range<usize> {
        let start = self.staging.slot(self.index).start;
        start..start + self.len
    }

    pub(super) fn window(&self) -> Window<'_> {
        self.staging.region.window(self.range())
    }

    /// The checksum of its bytes.
    pub(super) fn crc(&self) -> Result<Crc64> {
        let crc = self.staging.region.crc64(self.range());
        crc.ok_or_else(|| Error::Protocol("registered memory has gone".to_owned()))
    }

    /// Its bytes on the heap.
    pub(super) fn bytes(&self) -> Result<Bytes> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes)?;
        Ok(bytes.into())
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        match self.staging.region.read(self.range().start + offset, into) {
            true => Ok(()),
            false => Err(Error::Protocol("registered memory has gone".to_owned())),
        }
    }

    /// The beginning of it, which is all that has been filled.
    pub(super) fn cut(mut self, bytes: u64) -> Staged {
        self.len = self.len.min(usize::try_from(bytes).unwrap_or(usize::MAX));
        self
    }

    /// Fills it with bytes that are in memory already.
    pub(super) fn fill(&self, bytes: &[u8]) -> Result<()> {
        match self.staging.region.write(self.range().start, bytes) {
            true => Ok(()),
            false => Err(Error::Protocol("registered memory has gone".to_owned())),
        }
    }

    /// Fills it from a file.
    pub(super) fn load(&self, file: &File, offset: u64) -> std::io::Result<()> {
        let mut step = vec![0; STEP_BYTES.min(self.len)];
        let mut at = 0;
        while at < self.len {
            let step = &mut step[..STEP_BYTES.min(self.len - at)];
            file.read_exact_at(step, offset + at as u64)?;
            self.fill_at(at, step)?;
            at += step.len();
        }
        Ok(())
    }

    fn fill_at(&self, at: usize, bytes: &[u8]) -> std::io::Result<()> {
        match self.staging.region.write(self.range().start + at, bytes) {
            true => Ok(()),
            false => Err(std::io::Error::other("registered memory has gone")),
        }
    }

    /// Feeds it, step by step with the offset of each, to `sink`.
    pub(super) fn each_step(&self, mut sink: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut step = vec![0; STEP_BYTES.min(self.len)];
        let mut at = 0;
        while at < self.len {
            let step = &mut step[..STEP_BYTES.min(self.len - at)];
            self.read(at, step)?;
            sink(at as u64, step)?;
            at += step.len();
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.staging.free.lock().push(self.index);
    }
}

/// Where the bytes of a part are before they are sent.
pub(super) enum Piece {
    /// On the heap.
    Heap(Bytes),
    /// In registered memory.
    Staged(Staged),
}

impl Piece {
    pub(super) fn len(&self) -> u64 {
        match self {
            Piece::Heap(bytes) => bytes.len() as u64,
            Piece::Staged(staged) => staged.len as u64,
        }
    }
}

impl Client {
    /// Sends a part whose bytes are where the piece says: registered memory by a token in the request, unless the server declines
    /// that; then, and from the heap, as a body. `crc` was made where they come from.
    pub(super) async fn upload_piece(
        &self,
        namespace: &str,
        key: &str,
        upload: &str,
        number: u32,
        piece: Piece,
        crc: Crc64,
    ) -> Result<(Part, Path)> {
        let staged = match piece {
            Piece::Heap(body) => {
                let part = self.put_part(namespace, key, upload, number, body, crc);
                return Ok((part.await?, Path::Http));
            }
            Piece::Staged(staged) => staged,
        };
        match self
            .upload_staged(namespace, key, upload, number, &staged, crc)
            .await
        {
            Err(error) if staged.staging.may_fall_back(&error) => {
                staged.staging.note(&error);
                let body = staged.bytes()?;
                let part = self.put_part(namespace, key, upload, number, body, crc);
                Ok((part.await?, Path::Http))
            }
            sent => Ok((sent?, staged.staging.client.path())),
        }
    }

    async fn upload_staged(
        &self,
        namespace: &str,
        key: &str,
        upload: &str,
        number: u32,
        staged: &Staged,
        crc: Crc64,
    ) -> Result<Part> {
        let mut attempt = 1;
        loop {
            let mut call = Call::object(http::Method::PUT, namespace, key)?
                .query("partNumber", &number.to_string())
                .query("uploadId", upload)
                .header("x-amz-checksum-crc64nvme", &crc.to_header())?;
            // A token is good for one request only.
            call.repeatable = false;
            let path = call.path();
            let request = Request {
                method: "PUT",
                path: &path,
                query: &call.query,
                range: "",
            };
            let direct = &staged.staging.client;
            let token = direct.token(&request, staged.window()).await?;
            let call = call.header("x-amz-rdma-token", &token.value)?;
            match self.call_once_for_text(call).await {
                Ok((headers, _)) => {
                    token.answered();
                    return Ok(Part {
                        number,
                        size: staged.len as u64,
                        etag: crate::client::header(&headers, "etag")
                            .trim_matches('"')
                            .to_owned(),
                        crc64nvme: Some(crc.value()),
                    });
                }
                Err(error) => {
                    if matches!(error, Error::Refused(_)) {
                        token.answered();
                    }
                    let again = is_worth_another_token(&error) && attempt < self.attempts();
                    if staged.staging.may_fall_back(&error) || !again {
                        return Err(error.of_upload(namespace, key, direct.path()));
                    }
                    crate::client::pause(attempt).await;
                    attempt += 1;
                }
            }
        }
    }
}

/// Whether a body could fare better: the server declined the token, the link failed or was too slow, or there is none any more.
fn is_of_link(error: &Error) -> bool {
    match error {
        Error::Refused(refusal) => {
            matches!(refusal.status, 403 | 409 | 501) || refusal.code == "RDMATransferFailed"
        }
        Error::Transport { .. } => true,
        Error::TimedOut(_) | Error::Corrupt(_) | Error::Protocol(_) | Error::Local { .. } => false,
    }
}

/// Whether another token could: a new one may go by a new link.
fn is_worth_another_token(error: &Error) -> bool {
    let declined = matches!(error, Error::Refused(refusal) if refusal.status == 501);
    !declined && (error.is_transient() || is_of_link(error))
}

/// Puts a whole value; as a body where links do not reach. `crc` was made where its bytes come from. Says which way it took.
pub(super) async fn put_staged(
    client: &Client,
    staged: &Staged,
    crc: Crc64,
    namespace: &str,
    key: &str,
    options: &PutOptions,
) -> Result<Path> {
    let put = Put {
        condition: options.condition(),
        attributes: Some(&options.attributes),
        crc64nvme: Some(crc.value()),
        ..Put::new(key.as_bytes(), staged.window())
    };
    match staged.staging.client.put(namespace, &put).await {
        Err(error) if staged.staging.leaves_to(client, &error) => {
            client.put(namespace, key, staged.bytes()?, options).await?;
            Ok(Path::Http)
        }
        put => Ok(put?.path),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use forebay_fabric::{Access, Link, RemoteRange};
    use forebay_proto::direct::{
        Call as Asked, Hop, Operation, ReplyWriter, Status, parse_request,
    };
    use futures_util::future::poll_immediate;

    use super::*;
    use crate::direct::{Choice, Options};
    use crate::{Config, Credentials};

    /// An S3 door that refuses tokens with this and takes bodies; its address.
    fn door(status: u16, code: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let mut stream = BufReader::new(stream);
                loop {
                    let head: Vec<String> = (&mut stream)
                        .lines()
                        .map_while(|line| line.ok().filter(|line| !line.is_empty()))
                        .collect();
                    let Some(length) = head
                        .iter()
                        .find_map(|line| line.strip_prefix("content-length: "))
                    else {
                        break;
                    };
                    stream
                        .read_exact(&mut vec![0; length.parse().unwrap()])
                        .unwrap();
                    let token = head.iter().any(|line| line.starts_with("x-amz-rdma-token"));
                    let (status, body) = match token {
                        true => (
                            status,
                            format!("<Error><Code>{code}</Code><Message>m</Message></Error>"),
                        ),
                        false => (200, String::new()),
                    };
                    write!(
                        stream.get_mut(),
                        "HTTP/1.1 {status} X\r\netag: \"tag\"\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    )
                    .unwrap();
                }
            }
        });
        endpoint
    }

    fn http(endpoint: &str) -> Client {
        let credentials = Credentials {
            access_key: "KEY".to_owned(),
            secret_key: "secret".to_owned(),
        };
        let mut config = Config::new(endpoint.parse().unwrap(), credentials);
        config.attempts = 2;
        Client::new(config).unwrap()
    }

    /// What becomes of a part that such a door gets.
    async fn part(status: u16, code: &'static str, path: Choice) -> Result<Path> {
        let endpoint = door(status, code);
        let options = Options {
            path,
            ..Options::default()
        };
        let (direct, _server, _sessions) = Direct::linked(&endpoint, options).await;
        let client = http(&endpoint);
        let staging = Staging::new(direct, 4096, 1).unwrap();
        let staged = staging.take(4096).await.unwrap();
        let crc = staged.crc().unwrap();
        let sent = client.upload_piece("ns", "key", "upload", 1, Piece::Staged(staged), crc);
        sent.await.map(|(_, path)| path)
    }

    #[tokio::test]
    async fn a_part_that_no_link_carries_goes_as_a_body() {
        for (status, code) in [
            (403, "AccessDenied"),
            (409, "RDMATokenReplayed"),
            (500, "RDMATransferFailed"),
            (501, "RDMANotSupported"),
        ] {
            let path = part(status, code, Choice::Auto).await.unwrap();
            assert_eq!(path, Path::Http, "{code}");
            let forced = part(status, code, Choice::Only(Path::Shm)).await;
            let Err(Error::Refused(refusal)) = forced else {
                panic!("{code}: {forced:?}");
            };
            assert_eq!(refusal.code, code);
        }
    }

    #[tokio::test]
    async fn what_no_body_would_mend_is_told() {
        let sent = part(507, "InsufficientStorage", Choice::Auto).await;
        assert!(matches!(sent, Err(Error::Refused(_))), "{sent:?}");
        let sent = part(400, "BadDigest", Choice::Auto).await;
        let Err(Error::Corrupt(text)) = sent else {
            panic!("{sent:?}");
        };
        let told = "ns/key: bytes changed between the client's memory and the server (shm): m";
        assert_eq!(text, told);
    }

    #[tokio::test]
    async fn a_slot_is_given_out_when_nobody_has_its_bytes_any_more() {
        let linked = Direct::linked("http://127.0.0.1:1", Options::default());
        let (direct, server, _sessions) = linked.await;
        let staging = Staging::new(direct, 4096, 1).unwrap();
        let staged = staging.take(4096).await.unwrap();
        let get = Request {
            method: "GET",
            path: "/ns/key",
            query: "",
            range: "",
        };
        let token = staging.client().token(&get, staged.window()).await.unwrap();
        // The server's device begins to write.
        let connected = staging.client().connected();
        let lane = connected.lane().unwrap();
        let remote = staging.region.on(lane).await.unwrap();
        let range = RemoteRange {
            stag: remote.stag,
            offset: remote.base,
            len: 4096,
        };
        let device = server.mapped(range, Access::Write).unwrap();
        tokio::time::pause();
        drop((token, staged));
        tokio::select! {
            biased;
            _ = staging.take(4096) => panic!("the device is not done"),
            _ = server.closed() => {}
        }
        drop(device);
        staging.take(4096).await.unwrap();
    }

    #[tokio::test]
    async fn a_slot_that_is_lent_keeps_nobody_from_the_others() {
        let linked = Direct::linked("http://127.0.0.1:1", Options::default());
        let (direct, _server, _sessions) = linked.await;
        let staging = Staging::new(direct, 4096, 2).unwrap();
        let staged = staging.take(4096).await.unwrap();
        let range = staged.range();
        let loan = staging.region.try_lend(range.clone(), Use::Target).unwrap();
        drop(staged);
        let other = poll_immediate(staging.take(4096)).await;
        assert_ne!(other.expect("at once").unwrap().range(), range);
        drop(loan);
    }

    #[tokio::test]
    async fn what_is_stored_is_what_was_loaded() {
        let linked = Direct::linked("http://127.0.0.1:1", Options::default());
        let (direct, server, _sessions) = linked.await;
        let staging = Staging::new(direct, 4096, 1).unwrap();
        let staged = staging.take(9).await.unwrap();
        staged.fill(b"123456789").unwrap();
        let crc = staged.crc().unwrap();
        // By somebody who should not.
        staged.fill(b"987654321").unwrap();
        let options = PutOptions::default();
        let client = http("http://127.0.0.1:1");
        let put = put_staged(&client, &staged, crc, "ns", "key", &options);
        let serve = async {
            let mut message = Vec::new();
            server.recv(&mut message).await.unwrap();
            let request = parse_request(&message).unwrap();
            let Asked::Store(mut puts) = request.call else {
                panic!("{request:?}");
            };
            let told = puts.next().unwrap().crc64nvme;
            let mut writer = ReplyWriter::begin(Vec::new(), Operation::Store, request.id, 0);
            let bad = writer.failed(Status::Corrupt, Hop::ToServer, "other bytes");
            bad.unwrap();
            server.send(writer.finish(true, false)).await.unwrap();
            told
        };
        let (put, told) = tokio::join!(put, serve);
        assert_eq!(told, Some(crc.value()));
        assert!(matches!(put, Err(Error::Corrupt(_))), "{put:?}");
    }
}
