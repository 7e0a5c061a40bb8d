//! The host's side, for one queue.

use subtle::ConstantTimeEq;

use super::group::{Exchange, Group};
use super::message::{Challenge, Message, Negotiate, Reply};
use super::{Failure, Hash, NO_SECURE_CHANNEL, Proof, ROLE_CONTROLLER, ROLE_HOST, Secret};

/// Proves to a controller that the host holds its secret, and has the controller prove that it holds one.
///
/// Send [`negotiate`](Prover::negotiate); fetch and give to [`challenged`](Prover::challenged), send what it returns; fetch and give to
/// [`answered`](Prover::answered), send what it returns, if anything. Where one fails, send [`failure`](Prover::failure) and go.
#[derive(Debug)]
pub struct Prover<'a> {
    /// This host.
    pub host_nqn: &'a str,
    /// The subsystem.
    pub subsystem_nqn: &'a str,
    /// What the host proves to hold.
    pub secret: &'a Secret,
    /// What the subsystem has to prove to hold; `None`: nothing.
    pub subsystem_secret: Option<&'a Secret>,
    /// Tells this exchange from the connection's other ones.
    pub transaction: u16,
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    hash: Hash,
    sequence: u32,
    value: Vec<u8>,
    shared: Option<Vec<u8>>,
}

impl<'a> Prover<'a> {
    /// A new exchange.
    pub fn new(
        host_nqn: &'a str,
        subsystem_nqn: &'a str,
        secret: &'a Secret,
        subsystem_secret: Option<&'a Secret>,
        transaction: u16,
    ) -> Prover<'a> {
        Prover {
            host_nqn,
            subsystem_nqn,
            secret,
            subsystem_secret,
            transaction,
            asked: None,
        }
    }

    /// The first message to send.
    pub fn negotiate(&self) -> Vec<u8> {
        let hashes = [Hash::Sha256, Hash::Sha384, Hash::Sha512];
        Message::Negotiate(Negotiate {
            transaction: self.transaction,
            secure_channel: NO_SECURE_CHANNEL,
            hashes: hashes.map(|hash| hash as u8).to_vec(),
            groups: Group::ALL.map(|group| group as u8).to_vec(),
        })
        .encode()
    }

    /// The message to send after this one came. `random` fills bytes with random ones.
    ///
    /// # Errors
    /// Why the exchange is over.
    pub fn challenged(&mut self, bytes: &[u8], random: fn(&mut [u8])) -> Result<Vec<u8>, Failure> {
        let challenge = match Message::decode(bytes) {
            Some(Message::Challenge(challenge)) => challenge,
            Some(Message::Failure1 { why, .. }) => return Err(why),
            Some(_) => return Err(Failure::Message),
            None => return Err(Failure::Payload),
        };
        if challenge.transaction != self.transaction {
            return Err(Failure::Payload);
        }
        let exchange = Exchange::new(challenge.group, random);
        let shared = Exchange::end(exchange.as_ref(), &challenge.public).ok_or(Failure::Payload)?;
        let response = self.proof(&challenge, shared.as_deref());
        let mut asked = None;
        if self.subsystem_secret.is_some() {
            let mut value = vec![0; challenge.hash.digest_bytes()];
            random(&mut value);
            let mut sequence = [0; 4];
            random(&mut sequence);
            asked = Some(Asked {
                hash: challenge.hash,
                sequence: u32::from_le_bytes(sequence).max(1),
                value,
                shared,
            });
        }
        let reply = Message::Reply(Reply {
            transaction: self.transaction,
            sequence: asked.as_ref().map_or(0, |asked| asked.sequence),
            response,
            challenge: asked.as_ref().map(|asked| asked.value.clone()),
            public: exchange.as_ref().map(Exchange::public).unwrap_or_default(),
        });
        self.asked = asked;
        Ok(reply.encode())
    }

    fn proof(&self, challenge: &Challenge, shared: Option<&[u8]>) -> Vec<u8> {
        Proof {
            hash: challenge.hash,
            key: &self.secret.key_of(self.host_nqn),
            challenge: &challenge.value,
            shared,
            sequence: challenge.sequence,
            transaction: self.transaction,
            role: ROLE_HOST,
            own_nqn: self.host_nqn,
            other_nqn: self.subsystem_nqn,
        }
        .compute()
    }

    /// The host has proved itself, and the controller too if it had to: then this is the message to send, the last one.
    ///
    /// # Errors
    /// Why the exchange is over.
    pub fn answered(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let (transaction, response) = match Message::decode(bytes) {
            Some(Message::Success1 {
                transaction,
                response,
                ..
            }) => (transaction, response),
            Some(Message::Failure1 { why, .. }) => return Err(why),
            Some(_) => return Err(Failure::Message),
            None => return Err(Failure::Payload),
        };
        if transaction != self.transaction {
            return Err(Failure::Payload);
        }
        let (Some(secret), Some(asked)) = (self.subsystem_secret, self.asked.take()) else {
            return match self.subsystem_secret {
                None => Ok(None),
                Some(_) => Err(Failure::Message),
            };
        };
        let expected = Proof {
            hash: asked.hash,
            key: &secret.key_of(self.subsystem_nqn),
            challenge: &asked.value,
            shared: asked.shared.as_deref(),
            sequence: asked.sequence,
            transaction,
            role: ROLE_CONTROLLER,
            own_nqn: self.subsystem_nqn,
            other_nqn: self.host_nqn,
        }
        .compute();
        let response = response.unwrap_or_default();
        match bool::from(expected.ct_eq(&response)) {
            true => Ok(Some(Message::Success2 { transaction }.encode())),
            false => Err(Failure::Failed),
        }
    }

    /// What to send when the exchange is over on this side.
    pub fn failure(&self, why: Failure) -> Vec<u8> {
        let transaction = self.transaction;
        Message::Failure2 { transaction, why }.encode()
    }
}
