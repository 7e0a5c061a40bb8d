//! Proving who is who, right after Connect: DH-HMAC-CHAP (Base 2.0, section 8.13.5).

use forebay_proto::nvme::auth::{Failure, MESSAGE_BYTES_MAX, Prover, Secret};
use forebay_proto::nvme::fabrics::Security;

use super::host::{self, Options};
use super::setup::{Line, Purpose};
use super::{Error, Result};

/// Proves this host to the controller, and the controller to this host when it has a secret of it.
pub(super) async fn authenticate(
    line: &mut Line,
    purpose: &Purpose,
    options: &Options,
) -> Result<()> {
    let Some(secret) = &options.secret else {
        let why = match options.controller_secret {
            Some(_) => "only a host with a secret of its own can ask a controller for proof",
            None => "the controller asks for proof, and this host has no secret",
        };
        return Err(Error::Denied(why.to_owned()));
    };
    let secret = parse(secret)?;
    let controller = options.controller_secret.as_ref().map(parse).transpose()?;
    let mut id = [0; 2];
    forebay_io::random(&mut id)
        .map_err(|error| Error::Denied(format!("no randomness: {error}")))?;
    let mut prover = Prover::new(
        &options.host.nqn,
        &purpose.subsystem,
        &secret,
        controller.as_ref(),
        u16::from_le_bytes(id),
    );
    send(line, &prover.negotiate()).await?;
    let challenge = receive(line).await?;
    let reply = match prover.challenged(&challenge, random) {
        Ok(reply) => reply,
        Err(why) => return Err(give_up(line, &prover, why).await),
    };
    send(line, &reply).await?;
    let answer = receive(line).await?;
    match prover.answered(&answer) {
        Ok(Some(last)) => send(line, &last).await,
        Ok(None) => Ok(()),
        Err(why) => Err(give_up(line, &prover, why).await),
    }
}

fn parse(secret: &host::Secret) -> Result<Secret> {
    Secret::parse(&secret.0).ok_or_else(|| Error::invalid("a secret looks like DHHC-1:00:...:"))
}

async fn send(line: &mut Line, message: &[u8]) -> Result<()> {
    let entry = Security::send(message.len() as u32, 0);
    line.command(entry, message, &mut []).await.map(drop)
}

async fn receive(line: &mut Line) -> Result<Vec<u8>> {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    let entry = Security::receive(message.len() as u32, 0);
    let (_, received) = line.command(entry, &[], &mut message).await?;
    message.truncate(received);
    Ok(message)
}

/// Tells the controller that it is over, and what happened.
async fn give_up(line: &mut Line, prover: &Prover<'_>, why: Failure) -> Error {
    // A controller that gave up itself does not listen any more.
    let _ = send(line, &prover.failure(why)).await;
    Error::Denied(format!("authentication failed: {why}"))
}

/// Random bytes, of a system that gave some a moment ago.
fn random(bytes: &mut [u8]) {
    forebay_io::random(bytes).expect("randomness does not run out");
}
