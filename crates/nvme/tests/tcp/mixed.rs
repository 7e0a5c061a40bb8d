//! Conversations made from a seed: commands of all lengths side by side, their PDUs mixed, and the stream cut anywhere.

use std::collections::HashMap;

use forebay_proto::nvme::kv::KvCommand;
use forebay_proto::nvme::{SglDescriptor, Status};

use crate::host::{DIGESTS, Got, Host, Options, PLAIN, bytes, key, store};
use crate::world::{IN_CAPSULE_BYTES, KV, World};

/// The same numbers for the same seed.
struct Dice(u64);

impl Dice {
    /// Less than `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((self.0 >> 33) as usize) % bound
    }

    /// A length: short ones and long ones are as frequent.
    fn len(&mut self, max: usize) -> usize {
        let bits = self.below(max.ilog2() as usize + 1);
        self.below((2 << bits).min(max))
    }
}

fn send_in_pieces(host: &mut Host, dice: &mut Dice, mut all: &[u8]) {
    while !all.is_empty() {
        let (piece, rest) = all.split_at((1 + dice.len(200_000)).min(all.len()));
        host.send(piece);
        all = rest;
    }
}

fn converse(options: Options, seed: u64) {
    let world = World::new();
    let (_admin, mut io) = world.host(options);
    let mut dice = Dice(seed);
    let mut model = HashMap::new();
    for _ in 0..12 {
        // Values, of which some travel with their commands.
        let mut stored = HashMap::new();
        let mut burst = Vec::new();
        for number in 0..1 + dice.below(9) {
            let name = format!("value {number}");
            let value = bytes(dice.len(1 << 21), dice.below(1 << 30) as u32);
            let entry = io.numbered(store(&name, value.len()));
            let fits = value.len() <= IN_CAPSULE_BYTES && !value.is_empty();
            if fits && dice.below(4) > 0 {
                let sgl = SglDescriptor::in_capsule(value.len() as u32);
                burst.extend(io.capsule_bytes(&entry.with_sgl(sgl), &value));
            } else {
                let sgl = SglDescriptor::transport(value.len() as u32);
                burst.extend(io.capsule_bytes(&entry.with_sgl(sgl), &[]));
            }
            stored.insert(entry.cid(), (name, value));
        }
        send_in_pieces(&mut io, &mut dice, &burst);
        let (mut asked, mut done) = (Vec::new(), 0);
        while done < stored.len() {
            match io.get() {
                Got::Completion(completion) => {
                    assert_eq!(completion.status, Status::SUCCESS);
                    done += 1;
                }
                Got::R2T(r2t) => asked.push(r2t),
                other => panic!("{other:?}"),
            }
            if done + asked.len() < stored.len() || asked.is_empty() {
                continue;
            }
            // Everything else is answered: the data that was asked for, in pieces that take turns.
            let mut pieces: Vec<Vec<Vec<u8>>> = asked
                .drain(..)
                .map(|r2t| {
                    let value = &stored[&r2t.cccid].1;
                    let (mut at, mut pdus) = (0, Vec::new());
                    while at < value.len() {
                        let piece = (1 + dice.len(1 << 20)).min(value.len() - at);
                        let last = at + piece == value.len();
                        let part = &value[at..at + piece];
                        pdus.push(io.h2c_bytes(&r2t, at as u32, part, last));
                        at += piece;
                    }
                    pdus.reverse();
                    pdus
                })
                .collect();
            let mut mixed = Vec::new();
            while !pieces.is_empty() {
                let at = dice.below(pieces.len());
                match pieces[at].pop() {
                    Some(pdu) => mixed.extend(pdu),
                    None => drop(pieces.swap_remove(at)),
                }
            }
            send_in_pieces(&mut io, &mut dice, &mixed);
        }
        model.extend(stored.into_values());
        // All of them come back side by side.
        let (mut burst, mut awaited) = (Vec::new(), HashMap::new());
        for (name, value) in &model {
            let room = 1 + dice.len(2 << 20);
            let command = KvCommand::Retrieve {
                key: key(name),
                buffer_bytes: room as u32,
            };
            let entry = io.numbered(command.entry(0, KV));
            let sgl = SglDescriptor::transport(room as u32);
            burst.extend(io.capsule_bytes(&entry.with_sgl(sgl), &[]));
            awaited.insert(entry.cid(), (value, room, Vec::new()));
        }
        send_in_pieces(&mut io, &mut dice, &burst);
        while !awaited.is_empty() {
            match io.get() {
                Got::Data(header, data) => {
                    let (_, _, got) = awaited.get_mut(&header.cccid).unwrap();
                    assert_eq!(header.offset as usize, got.len());
                    got.extend(data);
                }
                Got::Completion(completion) => {
                    assert_eq!(completion.status, Status::SUCCESS);
                    let (value, room, got) = awaited.remove(&completion.cid).unwrap();
                    assert_eq!(completion.result, value.len() as u64);
                    assert!(got == value[..value.len().min(room)]);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn without_digests() {
    for seed in 1..4 {
        converse(PLAIN, seed);
    }
}

#[test]
fn with_digests() {
    for seed in 4..7 {
        converse(DIGESTS, seed);
    }
}
