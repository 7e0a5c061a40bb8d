//! Just enough of HTTP/1.1 (RFC 9112) to know where an answer ends, bytes in and progress out.

use std::borrow::Cow;

/// The longest head of an answer that is accepted, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The longest line before a chunk that is accepted, in bytes.
const CHUNK_LINE_BYTES_MAX: usize = 256;
/// How much of a refusal's body is kept for people, in bytes.
const TEXT_BYTES_MAX: usize = 300;

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadResponse {
    #[error("the answer's head is longer than 16 KiB")]
    HeadTooLong,
    #[error("the answer does not begin as HTTP/1.1 does")]
    StatusLine,
    #[error("the answer does not say how long it is")]
    Length,
    #[error("the answer's chunks are malformed")]
    Chunk,
    #[error("bytes follow the answer")]
    Excess,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Body { left: u64 },
    ChunkLine,
    ChunkData { left: u64 },
    ChunkEnd,
    Trailers,
    Done,
}

/// An answer being read.
#[derive(Debug)]
pub(crate) struct Response {
    state: State,
    /// The unfinished head or line.
    kept: Vec<u8>,
    without_body: bool,
    status: u16,
    closes: bool,
    body_bytes: u64,
    text: Vec<u8>,
}

impl Response {
    pub(crate) fn new() -> Response {
        Response {
            state: State::Done,
            kept: Vec::new(),
            without_body: false,
            status: 0,
            closes: false,
            body_bytes: 0,
            text: Vec::new(),
        }
    }

    /// Begins to read the next answer; one to HEAD has no body.
    pub(crate) fn restart(&mut self, to_head: bool) {
        self.state = State::Head;
        self.kept.clear();
        self.without_body = to_head;
        self.status = 0;
        self.closes = false;
        self.body_bytes = 0;
        self.text.clear();
    }

    /// Takes the next bytes; true when the answer has ended. `body` sees the body's bytes in order.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        body: &mut impl FnMut(&[u8]),
    ) -> Result<bool, BadResponse> {
        loop {
            match self.state {
                State::Head => {
                    let Some(rest) = self.take_head(bytes)? else {
                        return Ok(false);
                    };
                    bytes = rest;
                }
                State::Body { left } => {
                    let (left, rest) = self.take_body(left, bytes, body);
                    bytes = rest;
                    self.state = match left {
                        0 => State::Done,
                        left => State::Body { left },
                    };
                }
                State::ChunkData { left } => {
                    let (left, rest) = self.take_body(left, bytes, body);
                    bytes = rest;
                    self.state = match left {
                        0 => State::ChunkEnd,
                        left => State::ChunkData { left },
                    };
                }
                State::ChunkLine | State::ChunkEnd | State::Trailers => {
                    let Some(rest) = self.take_line(bytes)? else {
                        return Ok(false);
                    };
                    bytes = rest;
                }
                State::Done => {
                    return if bytes.is_empty() {
                        Ok(true)
                    } else {
                        Err(BadResponse::Excess)
                    };
                }
            }
            if bytes.is_empty() && self.state != State::Done {
                return Ok(false);
            }
        }
    }

    /// HTTP status of the answer.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Whether the connection ends after this answer.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// Bytes of body so far.
    pub(crate) fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// The beginning of a refusal's body.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }

    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, BadResponse> {
        let Some((head, rest)) = gather(&mut self.kept, bytes, b"\r\n\r\n", HEAD_BYTES_MAX)
            .ok_or(BadResponse::HeadTooLong)?
        else {
            return Ok(None);
        };
        self.read_head(&head)?;
        Ok(Some(rest))
    }

    fn read_head(&mut self, head: &[u8]) -> Result<(), BadResponse> {
        let mut lines = head
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii_end);
        let status = lines
            .next()
            .and_then(|line| line.strip_prefix(b"HTTP/1.1 "))
            .and_then(|line| std::str::from_utf8(line.get(..3)?).ok()?.parse().ok())
            .ok_or(BadResponse::StatusLine)?;
        let mut length = None;
        let mut chunked = false;
        for line in lines {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                let value = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok());
                length = Some(value.ok_or(BadResponse::Length)?);
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                chunked = value.eq_ignore_ascii_case(b"chunked");
            } else if name.eq_ignore_ascii_case(b"connection") {
                self.closes = value.eq_ignore_ascii_case(b"close");
            }
        }
        self.status = status;
        self.state = match (status, chunked, length) {
            (100, _, _) => State::Head,
            (204 | 304, _, _) => State::Done,
            _ if self.without_body => State::Done,
            (_, true, _) => State::ChunkLine,
            (_, _, Some(0)) => State::Done,
            (_, _, Some(left)) => State::Body { left },
            (_, _, None) => return Err(BadResponse::Length),
        };
        Ok(())
    }

    fn take_body<'a>(
        &mut self,
        left: u64,
        bytes: &'a [u8],
        body: &mut impl FnMut(&[u8]),
    ) -> (u64, &'a [u8]) {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let (taken, rest) = bytes.split_at(taken);
        self.body_bytes += taken.len() as u64;
        if self.status >= 300 {
            let room = TEXT_BYTES_MAX - self.text.len();
            self.text.extend_from_slice(&taken[..taken.len().min(room)]);
        }
        body(taken);
        (left - taken.len() as u64, rest)
    }

    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, BadResponse> {
        let Some((line, rest)) = gather(&mut self.kept, bytes, b"\r\n", CHUNK_LINE_BYTES_MAX)
            .ok_or(BadResponse::Chunk)?
        else {
            return Ok(None);
        };
        self.state = match self.state {
            State::ChunkEnd if line.is_empty() => State::ChunkLine,
            State::Trailers if line.is_empty() => State::Done,
            State::Trailers => State::Trailers,
            State::ChunkLine => match chunk_length(&line).ok_or(BadResponse::Chunk)? {
                0 => State::Trailers,
                left => State::ChunkData { left },
            },
            _ => return Err(BadResponse::Chunk),
        };
        Ok(Some(rest))
    }
}

/// What came before a mark, and what came after it.
type Split<'a> = (Cow<'a, [u8]>, &'a [u8]);

/// The bytes up to `end`, from what was kept and what is new, and the rest; inside, none while `end` has not come: all is kept
/// then. None outside when more than `limit` bytes would have to be kept.
fn gather<'a>(
    kept: &mut Vec<u8>,
    bytes: &'a [u8],
    end: &[u8],
    limit: usize,
) -> Option<Option<Split<'a>>> {
    let find = |bytes: &[u8]| bytes.windows(end.len()).position(|window| window == end);
    let seen = &bytes[..bytes.len().min(limit)];
    if kept.is_empty() {
        if let Some(at) = find(seen) {
            return Some(Some((
                Cow::Borrowed(&bytes[..at]),
                &bytes[at + end.len()..],
            )));
        }
        kept.extend_from_slice(seen);
        return (seen.len() < limit).then_some(None);
    }
    // The end may have begun in what was kept.
    let before = kept.len();
    let from = before.saturating_sub(end.len() - 1);
    kept.extend_from_slice(seen);
    if let Some(at) = find(&kept[from..]) {
        let at = from + at;
        kept.truncate(at);
        return Some(Some((
            Cow::Owned(std::mem::take(kept)),
            &bytes[at + end.len() - before..],
        )));
    }
    (kept.len() < limit).then_some(None)
}

/// The length that a chunk's line gives; extensions are ignored.
fn chunk_length(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTH: &[u8] = b"HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKS: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
        2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nname: value\r\n\r\n";
    const REFUSED: &[u8] =
        b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 4\r\n\r\nwait";

    fn read(parts: &[&[u8]], to_head: bool) -> (Result<bool, BadResponse>, Response, Vec<u8>) {
        let mut response = Response::new();
        response.restart(to_head);
        let mut body = Vec::new();
        let mut ended = Ok(false);
        for part in parts {
            ended = response.feed(part, &mut |bytes| body.extend_from_slice(bytes));
            if ended.is_err() {
                break;
            }
        }
        (ended, response, body)
    }

    proptest! {
        #[test]
        fn an_answer_reads_the_same_however_it_is_cut(
            whole in prop::sample::select(vec![LENGTH, CHUNKS]),
            mut cuts in prop::collection::vec(0usize..120, 0..6),
        ) {
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(whole.len()));
            cuts.sort_unstable();
            let mut parts = Vec::new();
            let mut from = 0;
            for cut in cuts {
                if cut > from && cut < whole.len() {
                    parts.push(&whole[from..cut]);
                    from = cut;
                }
            }
            for part in &parts {
                prop_assert!(!part.is_empty());
            }
            prop_assert_eq!(read(&parts, false).0.unwrap_or(true), false);
            parts.push(&whole[from..]);
            let (ended, response, body) = read(&parts, false);
            prop_assert_eq!(ended, Ok(true));
            prop_assert_eq!(response.status(), 200);
            prop_assert_eq!(response.body_bytes(), 5);
            prop_assert_eq!(body, b"hello".to_vec());
        }

        #[test]
        fn no_answer_makes_it_panic(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..4)) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let (ended, response, body) = read(&parts, false);
            prop_assert!(ended.is_err() || response.body_bytes() == body.len() as u64);
        }
    }

    #[test]
    fn a_refusal_keeps_its_text() {
        let (ended, response, _) = read(&[REFUSED], false);
        assert_eq!(ended, Ok(true));
        assert_eq!((response.status(), response.text().as_str()), (503, "wait"));
        assert!(response.closes());
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        let head = &LENGTH[..LENGTH.len() - 5];
        assert_eq!(read(&[head], true).0, Ok(true));
        assert_eq!(read(&[head], false).0, Ok(false));
        assert_eq!(read(&[LENGTH], true).0, Err(BadResponse::Excess));
    }

    #[test]
    fn malformed_answers_are_told() {
        let long = vec![b'x'; HEAD_BYTES_MAX + 1];
        for (bytes, error) in [
            (b"SSH-2.0\r\n\r\n".as_slice(), BadResponse::StatusLine),
            (b"HTTP/1.1 200 OK\r\n\r\n", BadResponse::Length),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                BadResponse::Length,
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
                BadResponse::Chunk,
            ),
            (long.as_slice(), BadResponse::HeadTooLong),
        ] {
            assert_eq!(read(&[bytes], false).0, Err(error));
        }
    }
}
