//! The begin and the end of a connection: ICReq, Connect, and the reasons for which it ends.

use std::io;
use std::time::Duration;

use forebay_proto::nvme::fabrics::{Connect, Refused, command_type};
use forebay_proto::nvme::opcode::{FABRICS, fabrics as fctype};
use forebay_proto::nvme::{CompletionQueueEntry, Status, SubmissionQueueEntry};
use forebay_proto::nvme_tcp::{Agreed, FatalErrorStatus, Fault, ICResp};
use tokio::io::Interest;
use tokio::task::consume_budget;
use tokio::time::timeout;

use super::end::End;
use super::payload::Pointer;
use super::receiver::{Capsule, Next};
use super::wire::Wire;

/// MAXH2CDATA.
const H2C_DATA_BYTES_MAX: u32 = 1 << 20;
/// How long the end of a connection may take: the host is to see what it was sent.
const FAREWELL: Duration = Duration::from_secs(2);
/// SQHD of a Connect's completion that grants a queue without flow control.
const NO_FLOW_CONTROL: u16 = 0xffff;

/// A queue that was granted.
pub(super) struct Granted<T> {
    pub(super) connect: Connect,
    pub(super) to: T,
}

/// Answers ICReq and then Connect, for each of which the host may take so long. `admit` judges the Connect: it gives what the queue
/// belongs to and the result of the command.
pub(super) async fn begin<T>(
    wire: &Wire,
    patience: Duration,
    admit: impl Fn(&Connect) -> Result<(T, u64), Refused>,
) -> Result<Granted<T>, End> {
    let late = |_| End::Stalled;
    timeout(patience, initialize(wire)).await.map_err(late)??;
    timeout(patience, connect(wire, admit))
        .await
        .map_err(late)?
}

async fn initialize(wire: &Wire) -> Result<(), End> {
    let Next::ICReq(request) = next(wire).await? else {
        let fault = Fault::of(FatalErrorStatus::PduSequenceError);
        return Err(End::Fault(fault));
    };
    let response = ICResp {
        cpda: 0,
        digests: request.digests,
        h2c_data_bytes_max: H2C_DATA_BYTES_MAX,
    };
    let agreed = Agreed::new(&request, &response).map_err(End::Fault)?;
    {
        let mut state = wire.state();
        state.receiver.initialized(&agreed);
        state.sender.icresp(&response, agreed.c2h);
    }
    flush(wire).await
}

async fn connect<T>(
    wire: &Wire,
    admit: impl Fn(&Connect) -> Result<(T, u64), Refused>,
) -> Result<Granted<T>, End> {
    loop {
        let capsule = match next(wire).await? {
            Next::Capsule(capsule) => capsule,
            Next::Terminated(request) => return Err(End::Terminated(request)),
            // Nothing was asked for, and more than one ICReq is refused before.
            Next::More | Next::Data(_) | Next::Over(_) | Next::ICReq(_) => {
                let fault = Fault::of(FatalErrorStatus::PduSequenceError);
                return Err(End::Fault(fault));
            }
        };
        let entry = SubmissionQueueEntry::from_bytes(&capsule.entry);
        let parsed = parse(wire, &entry, &capsule);
        wire.state().receiver.consume(&capsule);
        let judged = parsed.and_then(|connect| {
            let (to, result) = admit(&connect)?;
            Ok((Granted { connect, to }, result))
        });
        let completion = |result, sq_head, status| CompletionQueueEntry {
            result,
            sq_head,
            sq_id: 0,
            cid: entry.cid(),
            status,
        };
        let (granted, completion) = match judged {
            Ok((granted, result)) => {
                let sq_head = match granted.connect.no_sq_flow_control {
                    true => NO_FLOW_CONTROL,
                    false => 1,
                };
                let completion = completion(result, sq_head, Status::SUCCESS);
                (Some(granted), completion)
            }
            Err(refused) => {
                let status = refused.status.answered();
                (None, completion(refused.result, 1, status))
            }
        };
        wire.state().sender.completion(&completion.encode(false));
        match granted {
            // What the queue's loop sends first takes it along.
            Some(granted) => return Ok(granted),
            None => flush(wire).await?,
        }
    }
}

fn parse(wire: &Wire, entry: &SubmissionQueueEntry, capsule: &Capsule) -> Result<Connect, Refused> {
    if entry.opcode() != FABRICS || command_type(entry) != fctype::CONNECT {
        return Err(Status::COMMAND_SEQUENCE_ERROR.into());
    }
    if capsule.damaged {
        return Err(Status::TRANSIENT_TRANSPORT_ERROR.into());
    }
    match Pointer::of(entry, capsule.data.len())? {
        Pointer::Capsule(_) => {
            let state = wire.state();
            Connect::parse(entry, state.receiver.capsule_data(&capsule.data))
        }
        // It is too little to be asked for.
        _ => Err(Status::DATA_SGL_LENGTH_INVALID.into()),
    }
}

/// The next PDU.
async fn next(wire: &Wire) -> Result<Next, End> {
    loop {
        // What is thrown away may come without end, and sockets that are ready cost no budget: the clock is to be looked at, too.
        consume_budget().await;
        let next = {
            let state = &mut *wire.state();
            state.receiver.next(&mut state.transfers)
        };
        match next.map_err(End::Fault)? {
            Next::More => {}
            next => return Ok(next),
        }
        wire.socket.readable().await.map_err(End::Lost)?;
        let received = wire.state().receiver.receive(&wire.socket);
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(End::Closed),
            Err(error) => return Err(End::Lost(error)),
            Ok(_) => {}
        }
    }
}

async fn flush(wire: &Wire) -> Result<(), End> {
    while wire.state().sender.bytes() > 0 {
        wire.socket.writable().await.map_err(End::Lost)?;
        let mut state = wire.state();
        let sent = wire.socket.try_io(Interest::WRITABLE, || {
            match state.sender.flush(&wire.socket)? {
                true => Ok(()),
                false => Err(io::ErrorKind::WouldBlock.into()),
            }
        });
        match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return Err(End::Lost(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Tells the host why, as far as it listens, and waits a moment for it to have read that.
pub(super) async fn farewell(wire: &Wire, end: &End) {
    if let End::Fault(fault) = end {
        let mut state = wire.state();
        let offending = state.receiver.offending().to_vec();
        state.sender.terminate(fault, &offending);
    }
    // Whoever is gone hears nothing, and whoever stalled is not waited for again.
    if matches!(
        end,
        End::Closed | End::Lost(_) | End::Insecure(_) | End::Terminated(_) | End::Stalled
    ) {
        return;
    }
    // Whatever goes wrong now, the connection is over.
    let _ = timeout(FAREWELL, async {
        flush(wire).await.ok()?;
        wire.socket.finish().ok()?;
        let mut ignored = [0; 4096];
        loop {
            // A host that goes on sending is listened to no longer for it.
            consume_budget().await;
            wire.socket.readable().await.ok()?;
            match wire.socket.tcp().try_read(&mut ignored) {
                Ok(0) => return Some(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return None,
                _ => {}
            }
        }
    })
    .await;
}
