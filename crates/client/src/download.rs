//! A value on its way here.

use std::ops::Range;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use crate::checksum::Running;
use crate::client::{Call, header, pause};
use crate::connect::Lease;
use crate::direct::Path;
use crate::{Client, Crc64, Error, ObjectInfo, Result};

/// The bytes of a value, or of a range of it, as they arrive.
pub struct Download {
    client: Client,
    info: ObjectInfo,
    range: Range<u64>,
    body: Incoming,
    lease: Option<Lease>,
    /// What it is of, for errors.
    about: String,
    /// How many bytes have come.
    len: u64,
    /// None when the caller compares, where the bytes end up.
    crc: Option<Running>,
}

impl Client {
    /// Asks for a value or for bytes `range` of it; with `etag`, only while that is still its tag.
    ///
    /// # Errors
    /// As every call.
    pub async fn get(
        &self,
        namespace: &str,
        key: &str,
        range: Option<Range<u64>>,
        etag: Option<&str>,
    ) -> Result<Download> {
        let mut call =
            Call::object(Method::GET, namespace, key)?.header("x-amz-checksum-mode", "ENABLED")?;
        if let Some(range) = &range {
            let last = range.end.saturating_sub(1);
            call = call.header("range", &format!("bytes={}-{last}", range.start))?;
        }
        if let Some(etag) = etag {
            call = call.header("if-match", &format!("\"{etag}\""))?;
        }
        let answer = self.call(self.versioned(call)).await?;
        let info = ObjectInfo::from_headers(&answer.headers)?;
        // What is read, and not what a header says beside a body that says its own.
        let len = answer.body.size_hint().exact();
        let len = len.ok_or_else(|| Error::Protocol("no length".to_owned()))?;
        let comes = match (range, answer.status.as_u16()) {
            (Some(asked), 206) => {
                let stated = header(&answer.headers, "content-range");
                part_of(&stated, &asked, len).ok_or_else(|| {
                    let Range { start, end } = asked;
                    Error::Protocol(format!(
                        "{len} bytes, {stated:?}, for those from {start} to before {end}"
                    ))
                })?
            }
            (None, 200) if info.size == len => 0..len,
            (None, 200) => return Err(Error::Protocol(format!("{len} bytes of {}", info.size))),
            (_, status) => {
                return Err(Error::Protocol(format!("status {status} to a GET")));
            }
        };
        Ok(Download {
            client: self.clone(),
            info,
            range: comes,
            body: answer.body,
            lease: Some(answer.lease),
            about: format!("{namespace}/{key}"),
            len: 0,
            crc: Some(Running::new()),
        })
    }

    /// Feeds bytes `range` of the value whose tag is `etag` to `sink` (with their offset), going on where a lost connection
    /// ended, and returns their checksum.
    ///
    /// # Errors
    /// As every call, and those of `sink`.
    pub async fn fetch(
        &self,
        namespace: &str,
        key: &str,
        etag: &str,
        range: Range<u64>,
        mut sink: impl FnMut(u64, &Bytes) -> Result<()>,
    ) -> Result<Crc64> {
        // What is asked for again is counted here.
        let once = self.trying_once();
        let mut crc = Running::new();
        let mut attempt = 1;
        loop {
            let at = range.start + crc.crc().len();
            if at == range.end {
                return Ok(crc.crc());
            }
            let step = async {
                let mut download = once
                    .get(namespace, key, Some(at..range.end), Some(etag))
                    .await?;
                if download.info().etag != etag {
                    return Err(Error::replaced(format_args!("{namespace}/{key}")));
                }
                let mut offset = at;
                while let Some(bytes) = download.next().await? {
                    sink(offset, &bytes)?;
                    crc.update(&bytes);
                    offset += bytes.len() as u64;
                }
                Ok::<(), Error>(())
            };
            match step.await {
                Ok(()) => {}
                Err(error) if error.is_transient() && attempt < self.attempts() => {
                    // Progress shows that the server lives: only attempts without any count.
                    attempt = match crc.crc().len() + range.start > at {
                        true => 1,
                        false => attempt + 1,
                    };
                    pause(attempt).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Download {
    /// What is known of the value.
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// Which bytes come.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The checksum of the bytes that come, when the server states one: those of a whole value alone have one.
    pub fn stated(&self) -> Option<u64> {
        let whole = self.wanted() == self.info.size;
        self.info.crc64nvme.filter(|_| whole)
    }

    /// The same for a caller that compares the bytes where it has put them.
    pub(crate) fn unsummed(mut self) -> Download {
        self.crc = None;
        self
    }

    /// The next bytes; `None` after the last, when length and (of a whole value) checksum have been found right.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::TimedOut`], [`Error::Transport`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let timeout = self.client.timeout();
        loop {
            let frame = tokio::time::timeout(timeout, self.body.frame())
                .await
                .map_err(|_| Error::TimedOut(timeout))?;
            match frame {
                Some(Ok(frame)) => {
                    let Ok(bytes) = frame.into_data() else {
                        continue;
                    };
                    self.len += bytes.len() as u64;
                    if self.len > self.wanted() {
                        return Err(self.other_length());
                    }
                    if let Some(crc) = &mut self.crc {
                        crc.update(&bytes);
                    }
                    return Ok(Some(bytes));
                }
                Some(Err(error)) => return Err(self.client.lost(crate::client::cause(&error))),
                None => {
                    if let Some(lease) = self.lease.take() {
                        lease.done();
                        self.check()?;
                    }
                    return Ok(None);
                }
            }
        }
    }

    fn wanted(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn other_length(&self) -> Error {
        let (about, len, wanted) = (&self.about, self.len, self.wanted());
        Error::Corrupt(format!("{about}: {len} bytes came of {wanted} (http)"))
    }

    fn check(&self) -> Result<()> {
        if self.len != self.wanted() {
            return Err(self.other_length());
        }
        let made = self.crc.as_ref().map(|crc| crc.crc().value());
        match made.zip(self.stated()) {
            Some((made, stated)) if made != stated => {
                Err(Error::of_download(&self.about, Path::Http, made, stated))
            }
            _ => Ok(()),
        }
    }
}

/// Which bytes come in answer to `asked`, if there are some and they are the first of those.
fn part_of(content_range: &str, asked: &Range<u64>, len: u64) -> Option<Range<u64>> {
    let (bytes, size) = content_range.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = bytes.split_once('-')?;
    let (first, last, size): (u64, u64, u64) =
        (first.parse().ok()?, last.parse().ok()?, size.parse().ok()?);
    let comes = first..last.checked_add(1)?;
    let fits = first == asked.start && comes.end <= asked.end && comes.end <= size;
    (fits && len > 0 && first.checked_add(len) == Some(comes.end)).then_some(comes)
}
