use sha2::{Digest, Sha256};

use super::group::Group;
use super::message::Message;
use super::verifier::Names;
use super::*;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const SUBSYSTEM: &str = "nqn.2026-01.example:pool";
/// As `nvme gen-dhchap-key` prints them: plain, and transformed by SHA-256, SHA-384, SHA-512.
const SECRETS: [&str; 4] = [
    "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
];

fn fixed(bytes: &mut [u8]) {
    bytes.fill(0x5a);
}

fn other(bytes: &mut [u8]) {
    bytes.fill(0xa5);
}

fn names() -> Names<'static> {
    Names {
        host: HOST,
        subsystem: SUBSYSTEM,
    }
}

/// The first message of a host that offers this group alone.
fn offer(prover: &Prover<'_>, group: u8) -> Vec<u8> {
    let mut message = prover.negotiate();
    let descriptor = &mut message[8..];
    descriptor[3] = 1;
    descriptor[34] = group;
    message
}

fn secret(text: &str) -> Secret {
    Secret::parse(text).unwrap()
}

#[test]
fn secrets_are_checked() {
    for text in SECRETS {
        secret(text);
    }
    for wrong in [
        "",
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR",
        "DHHC-1:04:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaS:",
        "DHHC-1:00:AAEC:",
        "DHHC-1:00:!:",
        "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    ] {
        assert!(Secret::parse(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn both_sides_prove_themselves() {
    for text in SECRETS {
        let (own, theirs) = (secret(text), secret(SECRETS[0]));
        for mutual in [false, true] {
            let demands = Authentication {
                host: own.clone(),
                subsystem: Some(theirs.clone()),
            };
            let mut verifier = Verifier::default();
            let mut prover = Prover::new(HOST, SUBSYSTEM, &own, mutual.then_some(&theirs), 7);
            verifier.take(&demands, names(), &prover.negotiate(), fixed);
            let challenge = verifier.give(4096).unwrap();
            let reply = prover.challenged(&challenge, other).unwrap();
            assert!(!verifier.is_proved());
            verifier.take(&demands, names(), &reply, fixed);
            let success = verifier.give(4096).unwrap();
            assert!(verifier.is_proved());
            let confirm = prover.answered(&success).unwrap();
            assert_eq!(confirm.is_some(), mutual);
            if let Some(confirm) = confirm {
                verifier.take(&demands, names(), &confirm, fixed);
            }
            assert!(verifier.is_proved() && !verifier.is_failed());
        }
    }
}

#[test]
fn a_controller_speaks_groups_that_cost_it_little() {
    let own = secret(SECRETS[1]);
    let demands = Authentication {
        host: own.clone(),
        subsystem: Some(own.clone()),
    };
    for group in 0..=6 {
        let mut verifier = Verifier::default();
        let mut prover = Prover::new(HOST, SUBSYSTEM, &own, Some(&own), 7);
        verifier.take(&demands, names(), &offer(&prover, group), fixed);
        let challenge = verifier.give(4096).unwrap();
        if group > Group::Ffdhe4096 as u8 {
            let refused = prover.challenged(&challenge, other);
            assert_eq!(refused, Err(Failure::Group));
            continue;
        }
        assert_eq!(challenge[9], group);
        let reply = prover.challenged(&challenge, other).unwrap();
        verifier.take(&demands, names(), &reply, fixed);
        let success = verifier.give(4096).unwrap();
        assert!(verifier.is_proved(), "{group}");
        assert!(prover.answered(&success).unwrap().is_some());
    }
    // The least that is more than nothing.
    let mut verifier = Verifier::default();
    let prover = Prover::new(HOST, SUBSYSTEM, &own, None, 7);
    verifier.take(&demands, names(), &prover.negotiate(), fixed);
    assert_eq!(verifier.give(4096).unwrap()[9], Group::Ffdhe2048 as u8);
}

#[test]
fn public_values_that_give_the_secret_away_fail() {
    let own = secret(SECRETS[1]);
    let demands = Authentication {
        host: own.clone(),
        subsystem: None,
    };
    let largest = bytes(super::primes::FFDHE2048);
    let value = |last: u8| {
        let mut value = largest.clone();
        value[255] = last;
        value
    };
    let mut one = vec![0; 256];
    one[255] = 1;
    // The prime ends with 255.
    let wrong = [
        vec![0; 256],
        one,
        value(254),
        value(255),
        vec![2; 255],
        Vec::new(),
    ];
    for public in wrong {
        let mut verifier = Verifier::default();
        let mut prover = Prover::new(HOST, SUBSYSTEM, &own, None, 7);
        verifier.take(&demands, names(), &prover.negotiate(), fixed);
        let challenge = verifier.give(4096).unwrap();
        let reply = prover.challenged(&challenge, other).unwrap();
        let with = |message: &[u8], decoded: fn(&mut Message) -> &mut Vec<u8>| {
            let mut message = Message::decode(message).unwrap();
            *decoded(&mut message) = public.clone();
            message.encode()
        };
        let reply = with(&reply, |message| match message {
            Message::Reply(reply) => &mut reply.public,
            other => panic!("{other:?}"),
        });
        verifier.take(&demands, names(), &reply, fixed);
        assert!(verifier.is_failed());
        let challenge = with(&challenge[..336], |message| match message {
            Message::Challenge(challenge) => &mut challenge.public,
            other => panic!("{other:?}"),
        });
        let refused = prover.challenged(&challenge, other);
        assert_eq!(refused, Err(Failure::Payload), "{}", public.len());
    }
}

#[test]
fn a_wrong_secret_a_wrong_name_and_a_reflected_challenge_fail() {
    let own = secret(SECRETS[1]);
    let demands = Authentication {
        host: own.clone(),
        subsystem: Some(own.clone()),
    };
    let negotiated = || {
        let mut verifier = Verifier::default();
        let prover = Prover::new(HOST, SUBSYSTEM, &own, None, 7);
        verifier.take(&demands, names(), &prover.negotiate(), fixed);
        let challenge = verifier.give(4096).unwrap();
        (verifier, challenge)
    };
    let wrong = secret(SECRETS[2]);
    let elsewhere = "nqn.2026-01.example:elsewhere";
    for mut prover in [
        Prover::new(HOST, SUBSYSTEM, &wrong, None, 7),
        Prover::new(HOST, elsewhere, &own, None, 7),
        Prover::new(elsewhere, SUBSYSTEM, &own, None, 7),
        // What the host would have proved is what it was asked.
        Prover::new(HOST, SUBSYSTEM, &own, Some(&own), 7),
    ] {
        let (mut verifier, challenge) = negotiated();
        let reply = prover.challenged(&challenge, fixed).unwrap();
        verifier.take(&demands, names(), &reply, fixed);
        assert!(verifier.is_failed() && !verifier.is_proved());
        let answer = verifier.give(4096).unwrap();
        assert_eq!(prover.answered(&answer), Err(Failure::Failed));
        assert_eq!(verifier.give(4096), None);
    }
}

#[test]
fn messages_out_of_turn_and_without_sense_fail() {
    let own = secret(SECRETS[0]);
    let demands = Authentication {
        host: own.clone(),
        subsystem: None,
    };
    let mut prover = Prover::new(HOST, SUBSYSTEM, &own, None, 7);
    let mut verifier = Verifier::default();
    assert_eq!(verifier.give(4096), None);
    verifier.take(&demands, names(), &prover.negotiate(), fixed);
    let challenge = verifier.give(4096).unwrap();
    let reply = prover.challenged(&challenge, other).unwrap();
    // A reply before any challenge, a replayed one, NAPD 255, and nothing.
    let mut many = prover.negotiate();
    many[7] = 255;
    for bytes in [&reply[..], &many, &[], &[1, 3, 0, 0, 7, 0, 32, 0, 0]] {
        let mut verifier = Verifier::default();
        verifier.take(&demands, names(), bytes, fixed);
        assert!(verifier.is_failed(), "{bytes:02x?}");
    }
    // The controller has nothing to prove with.
    let mut mutual = Prover::new(HOST, SUBSYSTEM, &own, Some(&own), 7);
    let reply = mutual.challenged(&challenge, other).unwrap();
    verifier.take(&demands, names(), &reply, fixed);
    assert!(verifier.is_failed());
}

#[test]
fn every_cut_of_every_message_decodes_or_not_without_panic() {
    let own = secret(SECRETS[3]);
    let mut prover = Prover::new(HOST, SUBSYSTEM, &own, Some(&own), 7);
    let demands = Authentication {
        host: own.clone(),
        subsystem: Some(own.clone()),
    };
    let mut verifier = Verifier::default();
    let negotiate = prover.negotiate();
    verifier.take(&demands, names(), &negotiate, fixed);
    let challenge = verifier.give(4096).unwrap();
    let reply = prover.challenged(&challenge, other).unwrap();
    for message in [negotiate, challenge[..336].to_vec(), reply] {
        let whole = Message::decode(&message).unwrap();
        assert_eq!(whole.encode(), message);
        for cut in 0..message.len() {
            assert_eq!(Message::decode(&message[..cut]), None, "{cut}");
        }
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// Two that are to prove themselves to each other.
fn demands() -> Authentication {
    Authentication {
        host: secret(SECRETS[1]),
        subsystem: Some(secret(SECRETS[0])),
    }
}

fn prover(both: &Authentication) -> Prover<'_> {
    Prover::new(HOST, SUBSYSTEM, &both.host, both.subsystem.as_ref(), 7)
}

/// The proofs of one exchange, computed by another implementation (Python's hmac) from the formula of section 8.13.5.5.
#[test]
fn known_answers() {
    let demands = demands();
    let (mut verifier, mut prover) = (Verifier::default(), prover(&demands));
    verifier.take(&demands, names(), &offer(&prover, 0), fixed);
    let challenge = verifier.give(80).unwrap();
    assert_eq!(
        challenge[..16],
        [1, 1, 0, 0, 7, 0, 64, 0, 3, 0, 0, 0, 0x5a, 0x5a, 0x5a, 0x5a]
    );
    let reply = prover.challenged(&challenge, other).unwrap();
    assert_eq!(
        reply[..16],
        [1, 2, 0, 0, 7, 0, 64, 0, 1, 0, 0, 0, 0xa5, 0xa5, 0xa5, 0xa5]
    );
    let response = bytes(concat!(
        "76e388dd0bbb0bbd03e3fdc5b850b8549dea5ebca2b7be356e76b42b293fd567",
        "33e182ffa6ed2c2e5056aba72aea932c318c63cf1355b6d75c0271b1464fd809"
    ));
    assert_eq!(reply[16..80], response);
    assert_eq!(reply[80..], [0xa5; 64]);
    verifier.take(&demands, names(), &reply, fixed);
    let success = verifier.give(80).unwrap();
    assert_eq!(success[..10], [1, 3, 0, 0, 7, 0, 64, 0, 1, 0]);
    let response = bytes(concat!(
        "be0534c85f52761880d0c3a8bb939482cc599024d06dea14fa86d487df5511ae",
        "af2e45baf3c29f0cc86e821889b4479d6677dcd79a241e38f1007926aafad812"
    ));
    assert_eq!(success[16..], response);
    let confirm = prover.answered(&success).unwrap().unwrap();
    assert_eq!(confirm[..6], [1, 4, 0, 0, 7, 0]);
    assert_eq!(prover.failure(Failure::Failed), [0, 0xf0, 0, 0, 7, 0, 1, 1]);
}

/// As above with ffdhe2048, the powers by Python's integers.
#[test]
fn known_answers_of_a_group() {
    let demands = demands();
    let (mut verifier, mut prover) = (Verifier::default(), prover(&demands));
    verifier.take(&demands, names(), &prover.negotiate(), fixed);
    let challenge = verifier.give(336).unwrap();
    assert_eq!(challenge[6..12], [64, 0, 3, 1, 0, 1]);
    let public = |message: &[u8]| Sha256::digest(&message[message.len() - 256..]).to_vec();
    assert_eq!(
        public(&challenge),
        bytes("128d5210732d85f77e39ad91fb0eef03c70ae7b8469edae9d7c7d1a7720bb3c5")
    );
    let reply = prover.challenged(&challenge, other).unwrap();
    assert_eq!(reply[6..12], [64, 0, 1, 0, 0, 1]);
    assert_eq!(
        public(&reply),
        bytes("35c16b05d214f812b4a753276906f370504bdd92ddd6c423bdaac5f9acee61e8")
    );
    let response = bytes(concat!(
        "2854325e1c58d2a19640da1372afafb52e8ff9999e3d2019d087a73f9c4bbc04",
        "886d7901d91da39243c9b321360b95dcd2682a909aa3ff9bad27d467d709c30c"
    ));
    assert_eq!(reply[16..80], response);
    verifier.take(&demands, names(), &reply, fixed);
    let success = verifier.give(80).unwrap();
    let response = bytes(concat!(
        "6a09c3767e998cebcd9862b310573b8ce3e28f87f7d8d12b55156dfafeb4978e",
        "7b0b6da68e1b6f7e801cfb358c6d011983751c486762a23317e04e760841be2c"
    ));
    assert_eq!(success[16..], response);
    assert!(prover.answered(&success).unwrap().is_some());
}
