//! Hosts that have to prove who they are.

use super::support::*;
use crate::nvme::auth::{Failure, Prover, Secret};
use crate::nvme::fabrics::{Property, Security};
use crate::nvme::opcode::{admin, kv};
use crate::nvme::property::*;
use crate::nvme::*;

/// Computes what a message of the host's asks for.
fn compute(controller: &mut Controller, now_ms: u64, qid: u16) {
    let mut asked = controller.authenticating(qid).unwrap();
    assert!(controller.authenticating(qid).is_none());
    asked.compute();
    controller.authenticated(now_ms, qid, asked);
}

#[test]
fn who_fails_to_prove_itself_again_learns_why() {
    let mut config = config(TCP);
    config.authentication = Some(authentication());
    let secret = authentication().host;
    let mut fixture = Fixture::disabled(config);
    let mut prover = Prover::new(HOST, SUBSYSTEM, &secret, None, 7);
    let send = |fixture: &mut Fixture, now_ms, message: &[u8]| {
        let entry = Security::send(message.len() as u32, 1);
        fixture.controller.fabrics(now_ms, 0, &entry, message);
        compute(&mut fixture.controller, now_ms + 300, 0);
    };
    let receive = |fixture: &mut Fixture, now_ms, room: u32| {
        let entry = Security::receive(room, 2).with_sgl(SglDescriptor::transport(room));
        let reply = fixture.controller.fabrics(now_ms, 0, &entry, &[]);
        done(reply).map(|(_, data)| data)
    };
    send(&mut fixture, 0, &prover.negotiate());
    // Whoever has too little room for a message can still fetch it.
    let refused = Err(Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(receive(&mut fixture, 0, 16), refused);
    let challenge = receive(&mut fixture, 0, 4096).unwrap();
    let reply = prover.challenged(&challenge, |bytes| bytes.fill(1));
    send(&mut fixture, 0, &reply.unwrap());
    assert_eq!(receive(&mut fixture, 0, 8), refused);
    assert!(!fixture.controller.is_authenticated());
    receive(&mut fixture, 0, 4096).unwrap();
    assert!(fixture.controller.is_authenticated());
    // An hour later, by another secret.
    let hour = 3_600_000;
    let other = Secret::parse("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:");
    let other = other.unwrap();
    let mut prover = Prover::new(HOST, SUBSYSTEM, &other, None, 8);
    send(&mut fixture, hour, &prover.negotiate());
    let deadline = fixture.controller.keep_alive_deadline_ms();
    assert_eq!(deadline, Some(hour + 300 + 10_000), "it has proved itself");
    let challenge = receive(&mut fixture, hour, 4096).unwrap();
    let reply = prover.challenged(&challenge, |bytes| bytes.fill(1));
    send(&mut fixture, hour, &reply.unwrap());
    assert!(!fixture.controller.is_authenticated());
    let deadline = fixture.controller.keep_alive_deadline_ms();
    assert_eq!(deadline, Some(hour + 300 + 100), "time to fetch the answer");
    let failure = receive(&mut fixture, hour + 350, 4096).unwrap();
    assert_eq!(prover.answered(&failure), Err(Failure::Failed));
}

#[test]
fn who_has_to_prove_itself_can_do_nothing_before() {
    let mut config = config(TCP);
    config.authentication = Some(authentication());
    let secret = authentication().host;
    let mut fixture = Fixture::disabled(config);
    assert_eq!(fixture.controller.connect_result(), 5 | 1 << 17);
    let required = Err(Status::AUTHENTICATION_REQUIRED);
    assert_eq!(fixture.result(Property::get(offset::CAP, 1)), required);
    let entry = fixture.command(admin::IDENTIFY, 0);
    assert_eq!(fixture.result(entry), required);
    assert_eq!(fixture.controller.keep_alive_deadline_ms(), Some(120_000));
    let prove = |fixture: &mut Fixture, qid: u16| {
        let mut prover = Prover::new(HOST, SUBSYSTEM, &secret, None, 7);
        let send = |fixture: &mut Fixture, message: &[u8]| {
            let entry = Security::send(message.len() as u32, 1);
            assert_eq!(Controller::data_in_bytes(&entry), message.len());
            let reply = fixture.controller.fabrics(0, qid, &entry, message);
            assert_eq!(reply, AdminReply::Authenticate { qid });
            // Nothing else is taken meanwhile.
            let reply = fixture.controller.fabrics(0, qid, &entry, message);
            assert_eq!(done(reply), Err(Status::COMMAND_SEQUENCE_ERROR));
            compute(&mut fixture.controller, 0, qid);
        };
        let receive = |fixture: &mut Fixture| {
            let entry = Security::receive(4096, 2).with_sgl(SglDescriptor::transport(4096));
            done(fixture.controller.fabrics(0, qid, &entry, &[])).map(|(_, data)| data)
        };
        assert_eq!(receive(fixture), Err(Status::COMMAND_SEQUENCE_ERROR));
        send(fixture, &prover.negotiate());
        let challenge = receive(fixture).unwrap();
        let reply = prover
            .challenged(&challenge, |bytes| bytes.fill(1))
            .unwrap();
        send(fixture, &reply);
        assert_eq!(prover.answered(&receive(fixture).unwrap()), Ok(None));
    };
    prove(&mut fixture, 0);
    fixture.enable(Configuration::ENABLE.0);
    assert_eq!(fixture.controller.keep_alive_deadline_ms(), Some(10_000));
    // Each queue for itself.
    assert_eq!(fixture.controller.connect_io(&connect(1)), Ok(()));
    let entry = fixture.command(kv::FLUSH, KV);
    let refused = fixture.controller.io(0, 1, &entry).unwrap_err();
    assert_eq!(refused.code(), Status::AUTHENTICATION_REQUIRED);
    prove(&mut fixture, 1);
    fixture.controller.io(0, 1, &entry).unwrap();
    // A connection that comes in its place has proved nothing.
    fixture.controller.disconnect_io(1);
    assert_eq!(fixture.controller.connect_io(&connect(1)), Ok(()));
    assert!(fixture.controller.io(0, 1, &entry).is_err());
    // Without a demand there is nothing to prove with.
    let mut open = Fixture::new(TCP);
    let entry = Security::send(4, 1);
    let reply = open.controller.admin(0, &entry, &[0; 4]);
    assert_eq!(done(reply), Err(Status::INVALID_OPCODE));
}
