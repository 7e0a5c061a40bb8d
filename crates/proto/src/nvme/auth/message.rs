//! The messages.

use super::Hash;
use super::group::Group;

const TYPE_COMMON: u8 = 0;
const TYPE_DHCHAP: u8 = 1;
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

const AUTHID_DHCHAP: u8 = 1;
const DESCRIPTOR_BYTES: usize = 64;
/// Hashes, and likewise groups, of a descriptor.
const IDENTIFIERS_MAX: usize = 30;

/// Why it failed (Reason Code Explanation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Failure {
    /// The proof is wrong.
    #[error("authentication failed")]
    Failed = 1,
    /// The other side speaks no protocol of this one.
    #[error("authentication protocol not usable")]
    Protocol = 2,
    /// A secure channel was asked for.
    #[error("secure channel concatenation mismatch")]
    SecureChannel = 3,
    /// No hash function in common.
    #[error("hash function not usable")]
    Hash = 4,
    /// No Diffie-Hellman group in common.
    #[error("DH group not usable")]
    Group = 5,
    /// A message makes no sense.
    #[error("incorrect authentication payload")]
    Payload = 6,
    /// A message came out of turn.
    #[error("incorrect authentication message")]
    Message = 7,
}

impl Failure {
    fn from_wire(code: u8) -> Failure {
        match code {
            2 => Failure::Protocol,
            3 => Failure::SecureChannel,
            4 => Failure::Hash,
            5 => Failure::Group,
            6 => Failure::Payload,
            7 => Failure::Message,
            _ => Failure::Failed,
        }
    }
}

/// What a host offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Negotiate {
    pub(super) transaction: u16,
    pub(super) secure_channel: u8,
    /// Hash identifiers, as offered.
    pub(super) hashes: Vec<u8>,
    /// Group identifiers, as offered.
    pub(super) groups: Vec<u8>,
}

/// What is to be proved. (A host's own challenge is in its [`Reply`].)
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Challenge {
    pub(super) transaction: u16,
    pub(super) hash: Hash,
    pub(super) group: Group,
    pub(super) sequence: u32,
    pub(super) value: Vec<u8>,
    /// The controller's public value in the group.
    pub(super) public: Vec<u8>,
}

/// A host's proof, and its challenge if it wants one of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) transaction: u16,
    pub(super) sequence: u32,
    pub(super) response: Vec<u8>,
    pub(super) challenge: Option<Vec<u8>>,
    /// The host's public value in the group.
    pub(super) public: Vec<u8>,
}

/// Any message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Negotiate(Negotiate),
    Challenge(Challenge),
    Reply(Reply),
    Success1 {
        transaction: u16,
        hash_bytes: u8,
        response: Option<Vec<u8>>,
    },
    Success2 {
        transaction: u16,
    },
    Failure1 {
        transaction: u16,
        why: Failure,
    },
    Failure2 {
        transaction: u16,
        why: Failure,
    },
}

impl Message {
    /// `None` when it makes no sense. Bytes behind the message are not looked at.
    pub(super) fn decode(bytes: &[u8]) -> Option<Message> {
        let u8_at = |at: usize| bytes.get(at).copied();
        let u16_at = |at: usize| Some(u16::from_le_bytes([u8_at(at)?, u8_at(at + 1)?]));
        let take = |at: usize, len: usize| bytes.get(at..at + len).map(<[u8]>::to_vec);
        let sequence = || Some(u32::from(u16_at(12)?) | u32::from(u16_at(14)?) << 16);
        let transaction = u16_at(4)?;
        let hash_bytes = usize::from(u8_at(6)?);
        Some(match (u8_at(0)?, u8_at(1)?) {
            (TYPE_COMMON, NEGOTIATE) => {
                let (descriptors, _) = bytes.get(8..)?.as_chunks::<DESCRIPTOR_BYTES>();
                let descriptors = descriptors.get(..usize::from(u8_at(7)?))?;
                let ours = descriptors.iter().find(|one| one[0] == AUTHID_DHCHAP);
                let (mut hashes, mut groups) = (Vec::new(), Vec::new());
                if let Some(one) = ours {
                    let list = |count: u8, at: usize| one.get(at..at + usize::from(count));
                    if usize::from(one[2].max(one[3])) > IDENTIFIERS_MAX {
                        return None;
                    }
                    hashes = list(one[2], 4)?.to_vec();
                    groups = list(one[3], 4 + IDENTIFIERS_MAX)?.to_vec();
                }
                Message::Negotiate(Negotiate {
                    transaction,
                    secure_channel: u8_at(6)?,
                    hashes,
                    groups,
                })
            }
            (TYPE_DHCHAP, CHALLENGE) => {
                let hash = Hash::from_wire(u8_at(8)?)?;
                let group = Group::from_wire(u8_at(9)?)?;
                let public_bytes = usize::from(u16_at(10)?);
                if public_bytes != group.bytes() || hash_bytes != hash.digest_bytes() {
                    return None;
                }
                Message::Challenge(Challenge {
                    transaction,
                    hash,
                    group,
                    sequence: sequence()?,
                    value: take(16, hash_bytes)?,
                    public: take(16 + hash_bytes, public_bytes)?,
                })
            }
            (TYPE_DHCHAP, REPLY) => {
                let response = take(16, hash_bytes)?;
                let challenge = match u8_at(8)? {
                    0 => None,
                    _ => Some(take(16 + hash_bytes, hash_bytes)?),
                };
                Message::Reply(Reply {
                    transaction,
                    sequence: sequence()?,
                    response,
                    challenge,
                    public: take(16 + 2 * hash_bytes, u16_at(10)?.into())?,
                })
            }
            (TYPE_DHCHAP, SUCCESS1) => Message::Success1 {
                transaction,
                hash_bytes: hash_bytes as u8,
                response: match u8_at(8)? {
                    0 => None,
                    _ => Some(take(16, hash_bytes)?),
                },
            },
            (TYPE_DHCHAP, SUCCESS2) => Message::Success2 { transaction },
            (TYPE_COMMON, FAILURE1) => Message::Failure1 {
                transaction,
                why: Failure::from_wire(u8_at(7)?),
            },
            (TYPE_COMMON, FAILURE2) => Message::Failure2 {
                transaction,
                why: Failure::from_wire(u8_at(7)?),
            },
            _ => return None,
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Message::Negotiate(negotiate) => {
                let mut bytes = head(TYPE_COMMON, NEGOTIATE, negotiate.transaction);
                bytes.extend([negotiate.secure_channel, 1]);
                let mut descriptor = [0; DESCRIPTOR_BYTES];
                descriptor[0] = AUTHID_DHCHAP;
                for (at, identifiers) in [&negotiate.hashes, &negotiate.groups]
                    .into_iter()
                    .enumerate()
                {
                    let count = identifiers.len().min(IDENTIFIERS_MAX);
                    descriptor[2 + at] = count as u8;
                    let place = 4 + at * IDENTIFIERS_MAX;
                    descriptor[place..place + count].copy_from_slice(&identifiers[..count]);
                }
                bytes.extend(descriptor);
                bytes
            }
            Message::Challenge(challenge) => {
                let mut bytes = head(TYPE_DHCHAP, CHALLENGE, challenge.transaction);
                let hash = challenge.hash;
                bytes.extend([
                    hash.digest_bytes() as u8,
                    0,
                    hash as u8,
                    challenge.group as u8,
                ]);
                bytes.extend((challenge.public.len() as u16).to_le_bytes());
                bytes.extend(challenge.sequence.to_le_bytes());
                bytes.extend(&challenge.value);
                bytes.extend(&challenge.public);
                bytes
            }
            Message::Reply(reply) => {
                let mut bytes = head(TYPE_DHCHAP, REPLY, reply.transaction);
                let valid = u8::from(reply.challenge.is_some());
                bytes.extend([reply.response.len() as u8, 0, valid, 0]);
                bytes.extend((reply.public.len() as u16).to_le_bytes());
                bytes.extend(reply.sequence.to_le_bytes());
                bytes.extend(&reply.response);
                match &reply.challenge {
                    Some(challenge) => bytes.extend(challenge),
                    None => bytes.resize(bytes.len() + reply.response.len(), 0),
                }
                bytes.extend(&reply.public);
                bytes
            }
            Message::Success1 {
                transaction,
                hash_bytes,
                response,
            } => {
                let mut bytes = head(TYPE_DHCHAP, SUCCESS1, *transaction);
                bytes.extend([*hash_bytes, 0, u8::from(response.is_some())]);
                bytes.resize(16, 0);
                bytes.extend(response.iter().flatten());
                bytes
            }
            Message::Success2 { transaction } => {
                let mut bytes = head(TYPE_DHCHAP, SUCCESS2, *transaction);
                bytes.resize(16, 0);
                bytes
            }
            Message::Failure1 { transaction, why } => failure(FAILURE1, *transaction, *why),
            Message::Failure2 { transaction, why } => failure(FAILURE2, *transaction, *why),
        }
    }
}

fn head(kind: u8, id: u8, transaction: u16) -> Vec<u8> {
    let [low, high] = transaction.to_le_bytes();
    vec![kind, id, 0, 0, low, high]
}

fn failure(id: u8, transaction: u16, why: Failure) -> Vec<u8> {
    /// Reason Code: authentication failure.
    const REASON: u8 = 1;
    let mut bytes = head(TYPE_COMMON, id, transaction);
    bytes.extend([REASON, why as u8]);
    bytes
}
