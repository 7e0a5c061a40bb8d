//! The controller's side, for one queue.

use subtle::ConstantTimeEq;

use super::group::{Exchange, Group};
use super::message::{Challenge, Message, Negotiate, Reply};
use super::{
    Failure, Hash, MESSAGE_BYTES_MAX, NO_SECURE_CHANNEL, Proof, ROLE_CONTROLLER, ROLE_HOST, Secret,
};

/// What a controller demands of its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authentication {
    /// What the host proves to hold.
    pub host: Secret,
    /// What the controller proves to hold when the host wants that; without it such a host is refused.
    pub subsystem: Option<Secret>,
}

/// The names that are proved.
#[derive(Debug, Clone, Copy)]
pub(in crate::nvme) struct Names<'a> {
    pub(in crate::nvme) host: &'a str,
    pub(in crate::nvme) subsystem: &'a str,
}

/// The state of one queue.
#[derive(Debug, Default)]
pub struct Verifier {
    state: State,
    proved: bool,
    /// A message of the host's that is still to be taken.
    asked: Option<Vec<u8>>,
}

/// A message of a host's, and what is to be computed by it: that takes milliseconds, and nothing else of its controller is to wait for it.
#[derive(Debug)]
pub struct Authenticating {
    verifier: Verifier,
    message: Vec<u8>,
    demands: Authentication,
    host: String,
    subsystem: String,
    random: fn(&mut [u8]),
}

impl Authenticating {
    /// Computes it.
    pub fn compute(&mut self) {
        let names = Names {
            host: &self.host,
            subsystem: &self.subsystem,
        };
        let (demands, random) = (&self.demands, self.random);
        self.verifier.take(demands, names, &self.message, random);
    }
}

#[derive(Debug, Default)]
enum State {
    /// A host begins with Negotiate.
    #[default]
    Idle,
    /// The host fetches this.
    Challenging(Challenge, Option<Exchange>),
    /// The host replies to this.
    Challenged(Challenge, Option<Exchange>),
    /// The host fetches this; then it is done, or confirms.
    Answering {
        message: Message,
        confirm: bool,
    },
    /// The host confirms that the controller proved itself, too.
    Confirming {
        transaction: u16,
    },
    /// The host fetches this; there is no way on.
    Failing(Message),
    Failed,
    /// It is with an [`Authenticating`].
    Away,
}

impl Verifier {
    /// Whether the host has proved to hold its secret.
    pub fn is_proved(&self) -> bool {
        self.proved
    }

    /// Whether it has failed to: the connection has no future.
    pub fn is_failed(&self) -> bool {
        matches!(self.state, State::Failing(_) | State::Failed)
    }

    /// Keeps a message of the host's until it [goes away](Verifier::lend) with it; false while there is another.
    pub(in crate::nvme) fn ask(&mut self, message: &[u8]) -> bool {
        let free = self.asked.is_none() && !matches!(self.state, State::Away);
        if free {
            self.asked = Some(message.to_vec());
        }
        free
    }

    /// Goes away with the message that is to be taken, if there is one.
    pub(in crate::nvme) fn lend(
        &mut self,
        demands: &Authentication,
        names: Names<'_>,
        random: fn(&mut [u8]),
    ) -> Option<Authenticating> {
        let message = self.asked.take()?;
        let verifier = Verifier {
            state: std::mem::replace(&mut self.state, State::Away),
            proved: self.proved,
            asked: None,
        };
        Some(Authenticating {
            verifier,
            message,
            demands: demands.clone(),
            host: names.host.to_owned(),
            subsystem: names.subsystem.to_owned(),
            random,
        })
    }

    /// Comes back, unless it was forgotten meanwhile.
    pub(in crate::nvme) fn come_back(&mut self, from: Authenticating) {
        if matches!(self.state, State::Away) {
            *self = from.verifier;
        }
    }

    /// Takes a message of the host's.
    pub(in crate::nvme) fn take(
        &mut self,
        demands: &Authentication,
        names: Names<'_>,
        bytes: &[u8],
        random: fn(&mut [u8]),
    ) {
        let state = std::mem::take(&mut self.state);
        let message = Message::decode(bytes);
        let next = match (state, message) {
            (State::Failed | State::Failing(_) | State::Away, _) => Ok(State::Failed),
            (State::Idle, Some(Message::Negotiate(negotiate))) => {
                let begun = challenge(&negotiate, random);
                begun.map(|(challenge, exchange)| State::Challenging(challenge, exchange))
            }
            (State::Challenged(challenge, exchange), Some(Message::Reply(reply))) => {
                let answer = verify(demands, names, &challenge, exchange.as_ref(), &reply);
                answer.map(|message| State::Answering {
                    message,
                    confirm: reply.challenge.is_some(),
                })
            }
            (State::Confirming { transaction }, Some(Message::Success2 { transaction: of })) => {
                match transaction == of {
                    true => Ok(State::Idle),
                    false => Err((transaction, Failure::Payload)),
                }
            }
            // The host says why it goes.
            (_, Some(Message::Failure2 { .. })) => {
                self.proved = false;
                self.state = State::Failed;
                return;
            }
            (state, None) => Err((state.transaction(), Failure::Payload)),
            (state, Some(_)) => Err((state.transaction(), Failure::Message)),
        };
        self.state = next.unwrap_or_else(|(transaction, why)| {
            self.proved = false;
            State::Failing(Message::Failure1 { transaction, why })
        });
    }

    /// What the host fetches now; `None` when it is not its turn to, or has no room for it.
    pub(in crate::nvme) fn give(&mut self, room: usize) -> Option<Vec<u8>> {
        let mut bytes = match &self.state {
            State::Challenging(challenge, _) => Message::Challenge(challenge.clone()).encode(),
            State::Answering { message, .. } | State::Failing(message) => message.encode(),
            _ => return None,
        };
        let room = room.min(MESSAGE_BYTES_MAX);
        if bytes.len() > room {
            return None;
        }
        // Hosts ask for a whole buffer and expect it.
        bytes.resize(room, 0);
        self.state = match std::mem::take(&mut self.state) {
            State::Challenging(challenge, exchange) => State::Challenged(challenge, exchange),
            State::Answering { message, confirm } => {
                self.proved = true;
                match message {
                    Message::Success1 { transaction, .. } if confirm => {
                        State::Confirming { transaction }
                    }
                    _ => State::Idle,
                }
            }
            _ => State::Failed,
        };
        Some(bytes)
    }
}

impl State {
    fn transaction(&self) -> u16 {
        match self {
            State::Challenging(challenge, _) | State::Challenged(challenge, _) => {
                challenge.transaction
            }
            State::Confirming { transaction } => *transaction,
            State::Answering {
                message: Message::Success1 { transaction, .. },
                ..
            } => *transaction,
            _ => 0,
        }
    }
}

/// A group that costs more is not spoken with hosts that have proved nothing yet.
const GROUPS: [Group; 4] = [
    Group::Ffdhe2048,
    Group::Ffdhe3072,
    Group::Ffdhe4096,
    Group::Null,
];

/// What a host is asked, and with a group this side of the exchange.
fn challenge(
    negotiate: &Negotiate,
    random: fn(&mut [u8]),
) -> Result<(Challenge, Option<Exchange>), (u16, Failure)> {
    let fail = |why| Err((negotiate.transaction, why));
    if negotiate.secure_channel != NO_SECURE_CHANNEL {
        return fail(Failure::SecureChannel);
    }
    let offered = negotiate.hashes.iter();
    let Some(hash) = offered.filter_map(|id| Hash::from_wire(*id)).max() else {
        return fail(Failure::Hash);
    };
    let offered = |group: &Group| negotiate.groups.contains(&(*group as u8));
    let Some(group) = GROUPS.into_iter().find(offered) else {
        return fail(Failure::Group);
    };
    let mut value = vec![0; hash.digest_bytes()];
    random(&mut value);
    let mut sequence = [0; 4];
    random(&mut sequence);
    let exchange = Exchange::new(group, random);
    let challenge = Challenge {
        transaction: negotiate.transaction,
        hash,
        group,
        // 0 says that there is none.
        sequence: u32::from_le_bytes(sequence).max(1),
        value,
        public: exchange.as_ref().map(Exchange::public).unwrap_or_default(),
    };
    Ok((challenge, exchange))
}

/// The answer to a right proof.
fn verify(
    demands: &Authentication,
    names: Names<'_>,
    challenge: &Challenge,
    exchange: Option<&Exchange>,
    reply: &Reply,
) -> Result<Message, (u16, Failure)> {
    let transaction = challenge.transaction;
    let fail = |why| Err((transaction, why));
    let hash = challenge.hash;
    if reply.transaction != transaction || reply.response.len() != hash.digest_bytes() {
        return fail(Failure::Payload);
    }
    let Some(shared) = Exchange::end(exchange, &reply.public) else {
        return fail(Failure::Payload);
    };
    let shared = shared.as_deref();
    let expected = Proof {
        hash,
        key: &demands.host.key_of(names.host),
        challenge: &challenge.value,
        shared,
        sequence: challenge.sequence,
        transaction,
        role: ROLE_HOST,
        own_nqn: names.host,
        other_nqn: names.subsystem,
    };
    if !bool::from(expected.compute().ct_eq(&reply.response)) {
        return fail(Failure::Failed);
    }
    let response = match &reply.challenge {
        None => None,
        // Our own challenge sent back to us would have us prove what the host is to prove.
        Some(theirs) if *theirs == challenge.value => return fail(Failure::Failed),
        Some(theirs) => {
            let Some(secret) = &demands.subsystem else {
                return fail(Failure::Failed);
            };
            let proof = Proof {
                hash,
                key: &secret.key_of(names.subsystem),
                challenge: theirs,
                shared,
                sequence: reply.sequence,
                transaction,
                role: ROLE_CONTROLLER,
                own_nqn: names.subsystem,
                other_nqn: names.host,
            };
            Some(proof.compute())
        }
    };
    Ok(Message::Success1 {
        transaction,
        hash_bytes: hash.digest_bytes() as u8,
        response,
    })
}
