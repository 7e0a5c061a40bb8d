//! What an NVMe host reads of a controller that it does not trust.

use forebay_proto::nvme::auth::{Prover, Secret};
use forebay_proto::nvme::discovery::{DiscoveryLog, ENTRY_BYTES};
use forebay_proto::nvme::identify::{
    Descriptors, IdentifyBlocks, IdentifyController, IdentifyKv, list_entries,
};
use forebay_proto::nvme::kv::{ListReader, ListWriter};

const HOST: &str = "nqn.2026-01.example:host";
const SUBSYSTEM: &str = "nqn.2026-01.example:pool";
const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
/// What tells the host's exchange from others.
const TRANSACTION: u16 = 7;

/// The first byte chooses what is read.
pub fn nvme_host(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 8 {
        0 => controller(bytes),
        1 => blocks(bytes),
        2 => kv(bytes),
        3 => descriptors(bytes),
        4 => namespaces(bytes),
        5 => discovery(bytes),
        6 => keys(bytes),
        _ => {
            let _ = proves(bytes);
        }
    }
}

fn controller(bytes: &[u8]) {
    let Some(found) = IdentifyController::decode(bytes) else {
        return;
    };
    let again = |about: &IdentifyController| IdentifyController::decode(&about.encode());
    let written = again(&found).expect("what is written is whole");
    // Texts lose what is not ASCII, once.
    assert_eq!(again(&written).as_ref(), Some(&written));
    let numbers = IdentifyController {
        serial: written.serial.clone(),
        model: written.model.clone(),
        firmware: written.firmware.clone(),
        subnqn: written.subnqn.clone(),
        ..found
    };
    assert_eq!(numbers, written);
}

fn blocks(bytes: &[u8]) {
    if let Some(found) = IdentifyBlocks::decode(bytes) {
        assert!(found.blocks == 0 || (9..=16).contains(&found.lba_shift));
        assert_eq!(IdentifyBlocks::decode(&found.encode()), Some(found));
    }
}

fn kv(bytes: &[u8]) {
    if let Some(found) = IdentifyKv::decode(bytes) {
        assert_eq!(IdentifyKv::decode(&found.encode()), Some(found));
    }
}

fn descriptors(bytes: &[u8]) {
    let found = Descriptors::decode(bytes);
    assert_eq!(Descriptors::decode(&found.encode()), found);
}

fn namespaces(bytes: &[u8]) {
    let nsids: Vec<u32> = list_entries(bytes).collect();
    assert!(nsids.len() <= bytes.len() / 4 && !nsids.contains(&0));
}

fn discovery(bytes: &[u8]) {
    let Some(found) = DiscoveryLog::decode(bytes) else {
        return;
    };
    assert!(found.entries.len() < bytes.len() / ENTRY_BYTES);
    let again = |log: &DiscoveryLog| DiscoveryLog::decode(&log.encode());
    let written = again(&found).expect("what is written is whole");
    assert_eq!(written.generation, found.generation);
    assert_eq!(again(&written).as_ref(), Some(&written));
}

fn keys(bytes: &[u8]) {
    let Some(mut reader) = ListReader::new(bytes) else {
        return;
    };
    let said = reader.left();
    let keys: Vec<&[u8]> = reader.by_ref().collect();
    assert_eq!(
        keys.len() as u64 + u64::from(reader.left()),
        u64::from(said)
    );
    // The last one's padding may be missing, but for which a list has one form.
    let mut again = vec![0; bytes.len() + 3];
    let mut writer = ListWriter::new(&mut again).expect("room for the number");
    assert!(keys.iter().all(|key| writer.push(key)));
    let reader = ListReader::new(&again).expect("a list");
    assert!(reader.eq(keys));
}

/// The host's side of DH-HMAC-CHAP. Bit 0 of the first byte has the controller prove itself, too; its challenge follows, with its length
/// before it, and its answer. Whether the host is done well; `None`: too short for a challenge.
pub fn proves(bytes: &[u8]) -> Option<bool> {
    let (flags, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (challenge, answer) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    let secret = Secret::parse(SECRET).expect("a secret");
    let mutual = flags & 1 != 0;
    let demanded = mutual.then_some(&secret);
    let mut prover = Prover::new(HOST, SUBSYSTEM, &secret, demanded, TRANSACTION);
    // An answer that nothing came before.
    if mutual {
        assert!(prover.answered(answer).is_err());
    }
    if prover
        .challenged(challenge, |bytes| bytes.fill(0x5a))
        .is_err()
    {
        return Some(false);
    }
    let last = prover.answered(answer);
    if let Ok(last) = &last {
        assert_eq!(last.is_some(), mutual);
        // Nor is one taken twice for the same challenge.
        assert!(!mutual || prover.answered(answer).is_err());
    }
    Some(last.is_ok())
}
