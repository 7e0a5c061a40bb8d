//! Memory for a program that speaks gRPC by itself: makes a link of a session that it has opened, and exposes a file on it.
//!
//! Usage: `exposed_file shm|iwarp ADDRESS SESSION KEY FILE`, session and key in hexadecimal. Says `ready STAG BASE LENGTH LINK`, which is
//! what `Sessions.RegisterRegion` asks for, and ends with its standard input.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Read;
use std::sync::Arc;

use forebay_fabric::sessions::proof;
use forebay_fabric::{Access, CloseReason, Connection, Link, SessionId, iwarp, shm};
use forebay_mem::Region;
use forebay_proto::hex;
use tokio::net::{TcpStream, UnixStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [fabric, address, session, key, file] = &arguments[..] else {
        return Err("usage: exposed_file shm|iwarp ADDRESS SESSION KEY FILE".into());
    };
    let session = SessionId::from_hex(session).ok_or("what is no session")?;
    let key = hex::decode(key.as_bytes()).ok_or("what is no key")?;
    let proof = proof(session, &key);
    let (link, id) = match fabric.as_str() {
        "shm" => {
            let link = shm::connect(UnixStream::connect(address).await?, &proof).await?;
            let id = link.id().map_or(0, |id| id.0);
            (Connection::Shm(Arc::new(link)), id)
        }
        "iwarp" => {
            let stream = TcpStream::connect(address).await?;
            let link = iwarp::connect(stream, &proof, iwarp::Options::default()).await?;
            (Connection::Iwarp(Arc::new(link)), 0)
        }
        other => return Err(format!("fabric {other:?}").into()),
    };
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let region = Region::from_fd(file.into())?;
    let all = region.slice(0..region.len()).ok_or("an empty file")?;
    let exposure = link.expose(all, Access::ReadWrite).await?;
    let (stag, base, len) = (exposure.stag.0, exposure.base, exposure.len);
    println!("ready {stag} {base} {len} {id}");
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    link.withdraw(exposure).await;
    link.close(CloseReason::Done);
    Ok(())
}
