//! A new connection, until its queue may carry commands: ICReq, Connect, and authentication where it is asked for. One thing at a
//! time, with a time limit on the whole.

use std::io;
use std::time::Duration;

use forebay_io::socket;
use forebay_proto::nvme::fabrics::{CNTLID_DYNAMIC, Connect};
use forebay_proto::nvme::{CompletionQueueEntry, SglDescriptor, Status, SubmissionQueueEntry};
use forebay_proto::nvme_tcp::{
    Agreed, Crc32c, DIGEST_BYTES, Digests, Event, Fault, ICReq, Inbound, Pdu, Progress, Transfer,
    capsule_cmd,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::host::{Address, Options};
use super::{Error, Result, auth};
use crate::socket::{Socket, connect};

/// What is under way to a controller on this host, in bytes: so little that it is still in the processor's cache when it is received.
const SAME_HOST_SEND_BYTES: usize = 128 << 10;
/// Connect's result: authentication is required (ATR, ASCR).
const AUTHENTICATION_REQUIRED: u64 = 3 << 17;

/// What a connection is for.
#[derive(Debug, Clone)]
pub(super) struct Purpose {
    pub(super) address: Address,
    pub(super) subsystem: String,
    /// 0 is the admin queue.
    pub(super) qid: u16,
    /// The controller that the admin queue was connected to, or [`CNTLID_DYNAMIC`].
    pub(super) cntlid: u16,
    /// Entries of the submission queue, less one: as many commands may be in flight.
    pub(super) depth: u16,
}

/// A connection whose queue may carry commands.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) agreed: Agreed,
    pub(super) cntlid: u16,
    pub(super) depth: u16,
}

/// Makes a connection.
pub(super) async fn open(purpose: &Purpose, options: &Options) -> Result<Opened> {
    let address = &purpose.address;
    let opening = async {
        let stream = socket::connect(&address.host, address.port).await;
        let stream = stream.map_err(|error| unreachable(address, &error))?;
        // However this connection ends, with its process too: what the system has not sent by then is never carried out. An orderly end
        // has nothing left to send, for all that was sent has been answered.
        stream.set_zero_linger().map_err(lost)?;
        let mut line = Line::begin(stream, purpose, options)
            .await
            .map_err(|error| at(address, error))?;
        let cntlid = line
            .connect(purpose, options)
            .await
            .map_err(|error| at(address, error))?;
        Ok(Opened {
            socket: line.socket,
            agreed: line.agreed,
            cntlid,
            depth: purpose.depth,
        })
    };
    match timeout(options.connect_timeout, opening).await {
        Ok(opened) => opened,
        Err(_) => Err(Error::Unreachable(format!(
            "{address} did not answer within {}",
            seconds(options.connect_timeout)
        ))),
    }
}

/// A connection that carries one command at a time.
pub(super) struct Line {
    socket: Socket,
    agreed: Agreed,
    inbound: Inbound,
    received: Vec<u8>,
    cid: u16,
}

impl Line {
    async fn begin(stream: TcpStream, purpose: &Purpose, options: &Options) -> Result<Line> {
        let peer = stream.peer_addr().map_err(lost)?;
        if socket::is_within(peer, stream.local_addr().map_err(lost)?) {
            socket::set_send_buffer(&stream, SAME_HOST_SEND_BYTES).map_err(lost)?;
        }
        let socket = match &options.tls_key {
            None => Socket::from(stream),
            Some(key) => {
                let offers = key.offers(&options.host.nqn, &purpose.subsystem);
                let socket = connect(stream, &offers).await;
                socket.map_err(|error| Error::Denied(format!("no secure channel: {error}")))?
            }
        };
        let request = ICReq {
            hpda: 0,
            digests: Digests {
                header: options.header_digest,
                data: options.data_digest,
            },
            r2ts_max: 1,
        };
        let mut line = Line {
            socket,
            // Until it is agreed.
            agreed: Agreed {
                h2c: forebay_proto::nvme_tcp::Framing::PLAIN,
                c2h: forebay_proto::nvme_tcp::Framing::PLAIN,
                r2ts_max: 1,
                h2c_data_bytes_max: 0,
            },
            inbound: Inbound::host(),
            received: Vec::new(),
            cid: 0,
        };
        let sent = line.socket.send_all(&request.encode()).await;
        sent.map_err(lost)?;
        let pdu = line.next().await?;
        let Event::ICResp(response) = pdu.event else {
            return Err(Error::protocol("no ICResp"));
        };
        line.agreed = Agreed::new(&request, &response).map_err(broken)?;
        line.inbound.initialized(&line.agreed);
        line.received.drain(..pdu.head_bytes);
        Ok(line)
    }

    async fn connect(&mut self, purpose: &Purpose, options: &Options) -> Result<u16> {
        let keep_alive = match purpose.qid {
            0 => u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX),
            _ => 0,
        };
        let connect = Connect {
            qid: purpose.qid,
            entries: u32::from(purpose.depth) + 1,
            // Completions may then ride on data.
            no_sq_flow_control: true,
            kato_ms: keep_alive,
            host_id: options.host.id,
            cntlid: purpose.cntlid,
            subnqn: purpose.subsystem.clone(),
            hostnqn: options.host.nqn.clone(),
        };
        let (entry, data) = (connect.entry(0), connect.data());
        let result = match self.command(entry, &data, &mut []).await {
            Ok((result, _)) => result,
            Err(Error::Status(status)) => return Err(refused(status, purpose)),
            Err(error) => return Err(error),
        };
        if result & AUTHENTICATION_REQUIRED != 0 || options.controller_secret.is_some() {
            auth::authenticate(self, purpose, options).await?;
        }
        match result as u16 {
            CNTLID_DYNAMIC => Err(Error::protocol("a controller without identifier")),
            cntlid if purpose.qid > 0 && cntlid != purpose.cntlid => {
                Err(Error::protocol("an I/O queue of another controller"))
            }
            cntlid => Ok(cntlid),
        }
    }

    /// Makes one command, with payload to the controller in its capsule, or to the host; its result, and how much payload came.
    pub(super) async fn command(
        &mut self,
        entry: SubmissionQueueEntry,
        data_out: &[u8],
        data_in: &mut [u8],
    ) -> Result<(u64, usize)> {
        self.cid += 1;
        let cid = self.cid;
        let bytes = data_out.len() as u32;
        let sgl = match bytes {
            0 => SglDescriptor::transport(data_in.len() as u32),
            bytes => SglDescriptor::in_capsule(bytes),
        };
        let entry = entry.with_cid(cid).with_sgl(sgl);
        let framing = self.agreed.h2c;
        let mut capsule = Vec::new();
        capsule_cmd(&framing, entry.as_bytes(), bytes, &mut capsule);
        capsule.extend_from_slice(data_out);
        if framing.trailer_bytes(data_out.len()) > 0 {
            let mut digest = Crc32c::new();
            digest.update(data_out);
            capsule.extend_from_slice(&digest.field());
        }
        self.socket.send_all(&capsule).await.map_err(lost)?;
        let mut transfer = Transfer::answer(cid, data_in.len() as u32);
        loop {
            let pdu = self.next().await?;
            let whole = pdu.head_bytes + pdu.data_bytes + pdu.trailer_bytes;
            self.have(whole).await?;
            match pdu.event {
                Event::CapsuleResp(bytes) => {
                    let (completion, _) = CompletionQueueEntry::decode(&bytes);
                    self.received.drain(..whole);
                    if completion.cid != cid {
                        return Err(Error::protocol("a completion of no command"));
                    }
                    if !completion.status.is_success() {
                        return Err(Error::Status(completion.status));
                    }
                    return Ok((completion.result, transfer.next() as usize));
                }
                Event::Data(data) => {
                    let at = transfer.next() as usize;
                    transfer.accept(&data).map_err(broken)?;
                    let bytes = &self.received[pdu.head_bytes..pdu.head_bytes + pdu.data_bytes];
                    data_in[at..at + bytes.len()].copy_from_slice(bytes);
                    if pdu.trailer_bytes == DIGEST_BYTES {
                        let mut digest = Crc32c::new();
                        digest.update(bytes);
                        if !self.received[..whole].ends_with(&digest.field()) {
                            return Err(Error::Damaged);
                        }
                    }
                    self.received.drain(..whole);
                    if data.success {
                        return Ok((0, transfer.next() as usize));
                    }
                }
                _ => return Err(Error::protocol("an unexpected PDU before Connect was done")),
            }
        }
    }

    /// The next PDU's head, which stays in `received`.
    async fn next(&mut self) -> Result<Pdu> {
        loop {
            match self.inbound.pdu(&self.received).map_err(broken)? {
                Progress::Need(bytes) => self.have(bytes).await?,
                Progress::Pdu(pdu) => {
                    if let Event::Terminate(request) = pdu.event {
                        return Err(Error::protocol(format!(
                            "the controller ended the connection: {request}"
                        )));
                    }
                    return Ok(pdu);
                }
            }
        }
    }

    /// Receives until there are so many bytes, and not one more: what follows belongs to the queue.
    async fn have(&mut self, bytes: usize) -> Result<()> {
        let before = self.received.len();
        if before < bytes {
            if bytes > RECEIVED_BYTES_MAX {
                return Err(Error::protocol("a PDU too long"));
            }
            self.received.resize(bytes, 0);
            let rest = &mut self.received[before..];
            self.socket.receive_exact(rest).await.map_err(lost)?;
        }
        Ok(())
    }
}

/// No PDU before a queue is ready is longer.
const RECEIVED_BYTES_MAX: usize = 64 << 10;

fn refused(status: Status, purpose: &Purpose) -> Error {
    match status.code() {
        Status::CONNECT_INVALID_HOST => Error::Denied(format!(
            "{} does not let this host in ({status})",
            purpose.subsystem
        )),
        Status::CONNECT_INVALID_PARAMETERS => Error::Denied(format!(
            "there is no {} here, or it cannot be connected to like this ({status})",
            purpose.subsystem
        )),
        _ => Error::Status(status),
    }
}

fn unreachable(address: &Address, error: &io::Error) -> Error {
    Error::Unreachable(format!("{address}: {error}"))
}

fn at(address: &Address, error: Error) -> Error {
    match error {
        Error::Lost(why) => Error::Unreachable(format!("{address}: {why}")),
        Error::Protocol(why) => Error::Protocol(format!("{address}: {why}")),
        Error::Denied(why) => Error::Denied(format!("{address}: {why}")),
        other => other,
    }
}

fn lost(error: io::Error) -> Error {
    Error::Lost(error.to_string())
}

fn broken(fault: Fault) -> Error {
    Error::protocol(fault.to_string())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
