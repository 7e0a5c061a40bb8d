//! A client process that is killed while the server uses its memory.

use std::env;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use forebay_fabric::shm;
use forebay_fabric::{Access, CloseReason, ErrorKind, Link, RemoteRange, Stag};
use forebay_mem::{Pool, Region};
use tokio::net::{UnixListener, UnixStream};

use crate::ends;
use crate::run;

const SOCKET: &str = "FOREBAY_TEST_SOCKET";
const PROOF: &str = "FOREBAY_TEST_PROOF";
const LEN: usize = 8 << 20;

/// The child: exposes memory, says where, and answers until it is killed.
#[test]
fn child() {
    let (Ok(socket), Ok(proof)) = (env::var(SOCKET), env::var(PROOF)) else {
        return;
    };
    let digits = |at: usize| u8::from_str_radix(&proof[2 * at..2 * at + 2], 16).unwrap();
    let proof: Vec<u8> = (0..proof.len() / 2).map(digits).collect();
    run(async {
        let stream = UnixStream::connect(socket).await.unwrap();
        let link = shm::connect(stream, proof.as_slice().try_into().unwrap())
            .await
            .unwrap();
        let memory = Region::memfd(LEN).unwrap().slice(0..LEN).unwrap();
        let exposure = link.expose(memory, Access::ReadWrite).await.unwrap();
        loop {
            link.send(&exposure.stag.0.to_le_bytes()).await.unwrap();
        }
    });
}

fn spawn(socket: &PathBuf, proof: &[u8]) -> Child {
    let proof: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "killed::child"])
        .env(SOCKET, socket)
        .env(PROOF, proof)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn its_link_is_lost_and_another_is_not() {
    run(async {
        let socket = env::temp_dir().join(format!("forebay-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let sessions = ends::sessions();
        let pool = Pool::new(16 << 20);
        let other = ends::session_of(&sessions, "other");
        let (beside, beside_client) = ends::joined(&sessions, &other).await;
        for round in 0..5 {
            let session = ends::session_of(&sessions, "tenant");
            let mut child = spawn(&socket, &session.proof());
            let (stream, _) = listener.accept().await.unwrap();
            let accepted = shm::accept(stream, &sessions).await.unwrap();
            let link = &accepted.link;
            let mut message = Vec::new();
            let mut moves = 0;
            let (range, error) = loop {
                if let Err(error) = link.recv(&mut message).await {
                    break (None, error);
                }
                let range = RemoteRange {
                    stag: Stag(u32::from_le_bytes(*message.first_chunk().unwrap())),
                    offset: 0,
                    len: LEN as u64,
                };
                let device = link.mapped(range, Access::Write);
                let moved = match link.write(range, vec![vec![1; LEN].into()]).await {
                    Ok(()) => {
                        link.read(RemoteRange { len: 4096, ..range }, pool.take(4096).await)
                            .await
                    }
                    Err(error) => Err(error),
                };
                // What is mapped stays so, whatever became of its owner.
                assert!(device.is_none_or(|window| window.write(LEN - 1, &[9])));
                if let Err(error) = moved {
                    break (Some(range), error);
                }
                moves += 1;
                if moves == round + 1 {
                    child.kill().unwrap();
                }
                if moves > round + 1 {
                    child.wait().unwrap();
                }
            };
            let _ = child.kill();
            child.wait().unwrap();
            assert_eq!(error.kind, ErrorKind::Closed);
            assert_eq!(link.closed().await, CloseReason::Lost);
            if let Some(range) = range {
                assert!(link.mapped(range, Access::Write).is_none());
            }
            beside_client.send(b"still here").await.unwrap();
            beside.link.recv(&mut message).await.unwrap().unwrap();
        }
        std::fs::remove_file(socket).unwrap();
    });
}
