//! Bytes on their way to the server, from the heap or from registered memory.

use bytes::Bytes;

use super::staging::{Staged, Staging};
use super::{Moved, Moving};
use crate::client::{Call, header, pause};
use crate::direct::{Path, Put, Request};
use crate::{Crc64, Error, Part, PutOptions, Result};

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
            Piece::Staged(staged) => staged.len(),
        }
    }
}

impl Moving<'_> {
    /// Stores a value of one part; `crc` was made where its bytes come from.
    pub(super) async fn put(self, piece: Piece, crc: Crc64, put: &PutOptions) -> Result<Moved> {
        let bytes = piece.len();
        let path = match piece {
            Piece::Staged(staged) => self.put_staged(&staged, crc, put).await?,
            Piece::Heap(body) => {
                self.client.put(self.namespace, self.key, body, put).await?;
                Path::Http
            }
        };
        (self.options.progress)(bytes);
        Ok(Moved {
            bytes,
            resumed: 0,
            verified: true,
            path: Some(path),
        })
    }

    /// As a body where links do not reach. Says which way it took.
    async fn put_staged(self, staged: &Staged, crc: Crc64, options: &PutOptions) -> Result<Path> {
        let put = Put {
            condition: options.condition(),
            attributes: Some(&options.attributes),
            crc64nvme: Some(crc.value()),
            ..Put::new(self.key.as_bytes(), staged.window())
        };
        match staged.of().client().put(self.namespace, &put).await {
            Err(error) if staged.of().leaves_to(self.client, &error) => {
                let body = staged.bytes()?;
                self.client
                    .put(self.namespace, self.key, body, options)
                    .await?;
                Ok(Path::Http)
            }
            put => Ok(put?.path),
        }
    }

    /// Sends a part whose bytes are where the piece says: registered memory by a token in the request, unless the server declines
    /// that; then, and from the heap, as a body. `crc` was made where they come from.
    pub(super) async fn put_part(
        self,
        upload: &str,
        number: u32,
        piece: Piece,
        crc: Crc64,
    ) -> Result<(Part, Path)> {
        let body = match piece {
            Piece::Heap(body) => body,
            Piece::Staged(staged) => {
                let staging = staged.of();
                match self.put_part_staged(upload, number, &staged, crc).await {
                    Err(error) if staging.may_fall_back(&error) => {
                        staging.note(&error);
                        staged.bytes()?
                    }
                    sent => return Ok((sent?, staging.client().path())),
                }
            }
        };
        let Moving {
            client,
            namespace,
            key,
            ..
        } = self;
        let part = client.put_part(namespace, key, upload, number, body, crc);
        Ok((part.await?, Path::Http))
    }

    async fn put_part_staged(
        self,
        upload: &str,
        number: u32,
        staged: &Staged,
        crc: Crc64,
    ) -> Result<Part> {
        let Moving {
            client,
            namespace,
            key,
            ..
        } = self;
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
            let direct = staged.of().client();
            let token = direct.token(&request, staged.window()).await?;
            let call = call.header("x-amz-rdma-token", &token.value)?;
            match client.call_once_for_text(call).await {
                Ok((headers, _)) => {
                    token.answered();
                    return Ok(Part {
                        number,
                        size: staged.len(),
                        etag: header(&headers, "etag").trim_matches('"').to_owned(),
                        crc64nvme: Some(crc.value()),
                    });
                }
                Err(error) => {
                    if matches!(error, Error::Refused(_)) {
                        token.answered();
                    }
                    let again = is_worth_another_token(&error) && attempt < client.attempts();
                    if staged.of().may_fall_back(&error) || !again {
                        return Err(error.of_upload(namespace, key, direct.path()));
                    }
                    pause(attempt).await;
                    attempt += 1;
                }
            }
        }
    }
}

impl Staging {
    /// Whether a request with a token may be made again with a body. Not where this way was to be taken or none.
    fn may_fall_back(&self, error: &Error) -> bool {
        is_of_link(error) && self.client().options().path.allows(Path::Http)
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use forebay_fabric::Link;
    use forebay_proto::direct::{
        Call as Asked, Hop, Operation, ReplyWriter, Status, parse_request,
    };

    use super::*;
    use crate::direct::{Choice, Client as Direct, Options as Links};
    use crate::transfer::Options;
    use crate::{Client, Config, Credentials};

    fn moving<'a>(client: &'a Client, options: &'a Options) -> Moving<'a> {
        Moving {
            client,
            namespace: "ns",
            key: "key",
            options,
        }
    }

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
        let options = Links {
            path,
            ..Links::default()
        };
        let (direct, _server, _sessions) = Direct::linked(&endpoint, options).await;
        let client = http(&endpoint);
        let staging = Staging::new(direct, 4096, 1).unwrap();
        let staged = staging.take(4096).await.unwrap();
        let crc = staged.crc().unwrap();
        let options = Options::default();
        let sent = moving(&client, &options).put_part("upload", 1, Piece::Staged(staged), crc);
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
    async fn what_is_stored_is_what_was_loaded() {
        let linked = Direct::linked("http://127.0.0.1:1", Links::default());
        let (direct, server, _sessions) = linked.await;
        let staging = Staging::new(direct, 4096, 1).unwrap();
        let staged = staging.take(9).await.unwrap();
        staged.fill(0, b"123456789").unwrap();
        let crc = staged.crc().unwrap();
        // By somebody who should not.
        staged.fill(0, b"987654321").unwrap();
        let (options, put) = (Options::default(), PutOptions::default());
        let client = http("http://127.0.0.1:1");
        let put = moving(&client, &options).put_staged(&staged, crc, &put);
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
