//! Agreeing with the peer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_io::socket;
use forebay_proto::iwarp::mpa::{self, FRAME_BYTES_MAX, Frame, HEADER_BYTES, Kind, Rtr, Terms};
use forebay_proto::iwarp::{Fault, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::backlog::Share;
use super::link::IwarpLink;
use super::receiver::Receiver;
use super::sender::Sender;
use super::stream::Stream;
use super::wire::Wire;
use super::{FOREIGN_SEGMENT_BYTES_MAX, Options, READS_MAX, SEGMENT_BYTES_MAX};
use crate::sessions::MAGIC;
use crate::{Accepted, Connection, Error, ErrorKind, MESSAGE_BYTES_MAX, Result, Session, Sessions};

/// How long an initiator may take to send its request.
const REQUEST: Duration = Duration::from_secs(10);
/// How long a responder may take to reply.
const REPLY: Duration = Duration::from_secs(10);
/// A peer that nothing is heard of is asked so often whether its host is still there, and its link ends with the last answer that does not
/// come: one that lost its power says nothing, and who waits for nothing would not miss it.
const SILENCE: Duration = Duration::from_secs(30);
const PROBES: u32 = 4;
/// How whoever expects TLS answers what is none (RFC 8446 section 5.1).
const TLS_ALERT: [u8; 2] = [21, 3];
/// What is under way to a peer of this host, in bytes (the system takes twice as much): so little that it is still in the processor's
/// cache when the peer copies it, and so much that the peer finds something to do whenever it is woken.
const SAME_HOST_SEND_BYTES: usize = 384 << 10;

/// Answers the peer that connected. `admit` is given what it says about itself (its private data); `None` refuses it.
///
/// # Errors
/// [`ErrorKind::Closed`] when it was refused, broke the protocol, answers no reads, or took more than 10 s.
pub async fn accept<T>(
    stream: impl Into<Stream>,
    options: Options,
    admit: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<(IwarpLink, T)> {
    let made = in_time(hear(stream.into(), &options, admit, |_| None)).await?;
    made.link.answer(&made.reply)?;
    Ok((made.link, made.admitted))
}

/// Answers a peer that shows the [`proof`](crate::sessions::proof) of a session. Its link is the session's before it is told so: whatever
/// the peer says of it anywhere else finds it there.
///
/// # Errors
/// As [`accept`], and when the session has as many links as it may.
pub async fn accept_of(
    stream: impl Into<Stream>,
    options: Options,
    sessions: &Sessions,
) -> Result<Accepted> {
    let admit = |data: &[u8]| sessions.admit(data.try_into().ok()?);
    let share = |session: &Arc<Session>| Some(session.backlog());
    let made = in_time(hear(stream.into(), &options, admit, share)).await?;
    // Nothing is waited for while the peer was not answered, or an end of this call would leave the link there.
    let Made {
        link,
        reply,
        admitted: session,
    } = made;
    let iwarp = Arc::new(link);
    let link = Connection::Iwarp(iwarp.clone());
    let attached = session.attach(link.clone());
    let id = attached.map_err(|refused| Error::new(ErrorKind::Closed, refused.to_string()))?;
    if let Err(error) = iwarp.answer(&reply) {
        session.detach(id);
        return Err(error);
    }
    Ok(Accepted { session, link, id })
}

/// A link whose peer waits for the reply.
struct Made<T> {
    link: IwarpLink,
    reply: Vec<u8>,
    admitted: T,
}

async fn in_time<T>(hearing: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(REQUEST, hearing)
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "no MPA request came in time")))
}

/// Receives the peer's request, and refuses it or makes a link; `share` tells where is counted what waits for whom was admitted.
async fn hear<T>(
    mut stream: Stream,
    options: &Options,
    admit: impl FnOnce(&[u8]) -> Option<T>,
    share: impl FnOnce(&T) -> Option<Arc<Share>>,
) -> Result<Made<T>> {
    let terms = prepare(options, stream.tcp()).map_err(failed)?;
    let mut bytes = [0; FRAME_BYTES_MAX];
    let bytes = frame(&mut stream, Kind::Request, &mut bytes).await?;
    let request = Frame::parse(Kind::Request, bytes).map_err(fault)?;
    let refusal = mpa::reject(&request, b"").encode().unwrap_or_default();
    let speaks = speaks(&request);
    let said: &[u8] = if speaks { &MAGIC } else { b"" };
    // No read would ever be issued to a peer that answers none, and no fence end.
    let agreed = mpa::accept(&terms, &request, said).ok();
    let agreed = agreed.filter(|(agreed, _)| agreed.ord > 0);
    let admitted = match agreed {
        Some(agreed) => admit(request.private_data).map(|admitted| (agreed, admitted)),
        None => None,
    };
    let Some(((agreed, reply), admitted)) = admitted else {
        stream.write_all(&refusal).await.map_err(failed)?;
        stream.shutdown().await.map_err(failed)?;
        return Err(Error::new(ErrorKind::Closed, "the peer was refused"));
    };
    let segment_bytes = segment_bytes(options, speaks);
    let mut sender = Sender::new(agreed.crc, segment_bytes, agreed.ord, true);
    sender.refuses_with(refusal);
    let receiver = Receiver::new(limits(agreed.ird, agreed.rtr), agreed.crc);
    let share = share(&admitted);
    Ok(Made {
        link: IwarpLink::start(stream.into(), sender, receiver, options.stall, share),
        reply: reply.encode().unwrap_or_default(),
        admitted,
    })
}

/// Asks the peer at the other end for a link, saying `private_data` about this side.
///
/// # Errors
/// [`ErrorKind::Closed`] when it refuses, breaks the protocol, or takes more than 10 s; [`ErrorKind::Invalid`] for more private
/// data than 508 bytes.
pub async fn connect(
    stream: impl Into<Stream>,
    private_data: &[u8],
    options: Options,
) -> Result<IwarpLink> {
    timeout(REPLY, connect_in_time(stream.into(), private_data, options))
        .await
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "no MPA reply came in time")))
}

async fn connect_in_time(
    mut stream: Stream,
    private_data: &[u8],
    options: Options,
) -> Result<IwarpLink> {
    let terms = prepare(&options, stream.tcp()).map_err(failed)?;
    let request = mpa::request(&terms, private_data)
        .encode()
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "too much private data"))?;
    stream.write_all(&request).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut bytes = [0; FRAME_BYTES_MAX];
    let bytes = frame(&mut stream, Kind::Reply, &mut bytes).await?;
    let reply = Frame::parse(Kind::Reply, bytes).map_err(fault)?;
    if reply.reject {
        return Err(Error::new(ErrorKind::Closed, "the peer refused"));
    }
    let segment_bytes = segment_bytes(&options, speaks(&reply));
    let agreed = match mpa::conclude(&terms, &reply) {
        Ok(agreed) if agreed.ord > 0 => agreed,
        refused => {
            let why = refused.err().unwrap_or(Fault::InsufficientIrd);
            let crc = terms.crc || reply.crc;
            let mut sender = Sender::new(crc, segment_bytes, 0, false);
            sender.terminate(why, &[], 0, &Wire::from(stream));
            return Err(fault(why));
        }
    };
    let mut sender = Sender::new(agreed.crc, segment_bytes, agreed.ord, false);
    match agreed.rtr {
        Some(Rtr::Write) => sender.ready(),
        Some(Rtr::Read) => sender.ready_by_read(),
        Some(Rtr::Send) | None => {}
    }
    let receiver = Receiver::new(limits(agreed.ird, None), agreed.crc);
    let wire = stream.into();
    Ok(IwarpLink::start(
        wire,
        sender,
        receiver,
        options.stall,
        None,
    ))
}

/// Receives one frame, and not a byte after it.
async fn frame<'a>(
    stream: &mut Stream,
    kind: Kind,
    bytes: &'a mut [u8; FRAME_BYTES_MAX],
) -> Result<&'a [u8]> {
    let mut header = [0; HEADER_BYTES];
    let mut filled = 0;
    while filled < HEADER_BYTES {
        match stream.read(&mut header[filled..]).await.map_err(failed)? {
            0 if header.starts_with(&TLS_ALERT) => {
                return Err(Error::new(ErrorKind::Closed, "the peer speaks TLS"));
            }
            0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
            received => filled += received,
        }
    }
    let length = mpa::frame_bytes(kind, &header).map_err(fault)?;
    let frame = &mut bytes[..length];
    frame[..HEADER_BYTES].copy_from_slice(&header);
    stream
        .read_exact(&mut frame[HEADER_BYTES..])
        .await
        .map_err(failed)?;
    Ok(frame)
}

/// Prepares a connection, and says what this side wants of it.
fn prepare(options: &Options, stream: &tokio::net::TcpStream) -> io::Result<Terms> {
    stream.set_nodelay(true)?;
    socket::set_keep_alive(stream, SILENCE, PROBES)?;
    let same_host = socket::is_within(stream.peer_addr()?, stream.local_addr()?);
    if same_host {
        socket::set_send_buffer(stream, SAME_HOST_SEND_BYTES)?;
    }
    Ok(terms(options, same_host))
}

fn terms(options: &Options, same_host: bool) -> Terms {
    Terms {
        crc: options.crc.unwrap_or(!same_host),
        ird: READS_MAX,
        ord: READS_MAX,
        peer_to_peer: options.peer_to_peer,
    }
}

fn limits(ird: u16, rtr: Option<Rtr>) -> Limits {
    Limits {
        message_bytes: MESSAGE_BYTES_MAX as u32,
        ird,
        rtr,
    }
}

/// Whether who sent this speaks as we do: a client shows a proof, and a server answers in kind.
fn speaks(frame: &Frame<'_>) -> bool {
    frame.private_data.starts_with(&MAGIC)
}

fn segment_bytes(options: &Options, speaks: bool) -> usize {
    let most = match speaks {
        true => SEGMENT_BYTES_MAX,
        false => FOREIGN_SEGMENT_BYTES_MAX,
    };
    options.segment_bytes.clamp(1, most)
}

fn fault(fault: Fault) -> Error {
    Error::new(
        ErrorKind::Closed,
        format!("the peer broke the protocol: {fault}"),
    )
}

fn failed(error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => ErrorKind::Closed,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("no link was made: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_checked_where_a_network_may_change_them() {
        for same_host in [false, true] {
            assert_eq!(terms(&Options::default(), same_host).crc, !same_host);
            for crc in [false, true] {
                let options = Options {
                    crc: Some(crc),
                    ..Options::default()
                };
                assert_eq!(terms(&options, same_host).crc, crc);
            }
        }
    }
}
