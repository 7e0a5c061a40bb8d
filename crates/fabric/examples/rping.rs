//! Speaks with `rping` of rdma-core, an independent implementation, from either side: `rping -s -a ADDRESS` or `rping -c -a ADDRESS`
//! on a machine whose kernel has iWARP over TCP (siw).
//!
//! `cargo run --example rping -- server ADDRESS:PORT [crc]` says where it listens and serves one client until it leaves;
//! `cargo run --example rping -- client ADDRESS:PORT COUNT BYTES [crc]` pings.
//!
//! A ping: the client names memory that it filled; the server reads it and says so; the client names other memory; the server writes
//! there what it read, and says so.
#![forbid(unsafe_code)]

use std::env::args;
use std::error::Error;
use std::time::Duration;

use forebay_fabric::iwarp::{IwarpLink, Options, accept, connect};
use forebay_fabric::{Access, CloseReason, Exposure, Link, RemoteRange, Stag};
use forebay_mem::{Pool, Region};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What either side sends: address, key and length of memory; the server's are not looked at.
const MESSAGE_BYTES: usize = 16;
/// How long a server may take to answer before it is sent more.
const UNHEARD: Duration = Duration::from_millis(200);
/// What a kernel's stack takes without question.
const SEGMENT_BYTES: usize = 61440;

fn main() -> Result<()> {
    let args: Vec<String> = args().collect();
    let args: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    let options = Options {
        crc: Some(args.last() == Some(&"crc")),
        segment_bytes: SEGMENT_BYTES,
        ..Options::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match args[..] {
            ["server", address, ..] => {
                let listener = TcpListener::bind(address).await?;
                println!("listening on {}", listener.local_addr()?);
                let (stream, peer) = listener.accept().await?;
                let (link, ()) = accept(stream, options, |_| Some(())).await?;
                let pings = serve(&link).await?;
                println!("{pings} pings answered to {}", peer.ip());
            }
            ["client", address, count, bytes, ..] => {
                let stream = TcpStream::connect(address).await?;
                let link = connect(stream, b"", options).await?;
                heard(&link).await?;
                ping(&link, count.parse()?, bytes.parse()?).await?;
                println!("{count} pings of {bytes} bytes came back whole");
                link.close(CloseReason::Done);
            }
            _ => return Err("server ADDRESS | client ADDRESS COUNT BYTES".into()),
        }
        Ok(())
    })
}

/// Waits until the peer reads what it is sent. siw (`siw_accept` in Linux 7.3) replies to a connection before it puts its receiver in
/// place. What arrives in between is not lost, but lies unread until more arrives: a client that sends at once and then waits for the
/// answer waits for ever, with peer-to-peer mode as without. So more is sent until something is answered.
async fn heard(link: &IwarpLink) -> Result<()> {
    loop {
        if let Ok(answered) = timeout(UNHEARD, link.fence()).await {
            let _placed = answered?;
            return Ok(());
        }
    }
}

async fn serve(link: &IwarpLink) -> Result<u64> {
    let pool = Pool::new(4 << 20);
    let mut message = Vec::new();
    let mut pings = 0;
    // A client that leaves may do so by ending its stream, or by closing its connection amid nothing.
    while let Ok(Some(())) = link.recv(&mut message).await {
        let source = range(&message)?;
        let got = link
            .read(source, pool.take(source.len as usize).await)
            .await?;
        link.send(&[0; MESSAGE_BYTES]).await?;
        link.recv(&mut message).await?.ok_or("the client left")?;
        let text = got
            .iter()
            .position(|byte| *byte == 0)
            .map_or(got.len(), |end| end + 1);
        link.write(range(&message)?, vec![got.freeze().slice(0..text)])
            .await?;
        link.send(&[0; MESSAGE_BYTES]).await?;
        pings += 1;
    }
    Ok(pings)
}

async fn ping(link: &IwarpLink, count: usize, bytes: usize) -> Result<()> {
    let region = Region::anonymous(2 * bytes)?;
    let part = |from| region.slice(from..from + bytes).ok_or("no memory");
    let (source, target) = (part(0)?, part(bytes)?);
    let read = link.expose(source.clone(), Access::Read).await?;
    let write = link.expose(target.clone(), Access::Write).await?;
    let mut message = Vec::new();
    for number in 0..count {
        let text = format!("rdma-ping-{number}: ").into_bytes();
        let letters = (0..).map(|at| b'A' + ((number + at) % 58) as u8);
        let mut sent: Vec<u8> = text.into_iter().chain(letters).take(bytes).collect();
        *sent.last_mut().ok_or("a ping has bytes")? = 0;
        assert!(source.write(0, &sent));
        for memory in [&read, &write] {
            link.send(&name(memory)).await?;
            link.recv(&mut message).await?.ok_or("the server left")?;
        }
        let mut got = vec![0; bytes];
        assert!(target.read(0, &mut got));
        if got != sent {
            return Err(format!("ping {number} came back changed").into());
        }
    }
    Ok(())
}

fn name(memory: &Exposure) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..8].copy_from_slice(&memory.base.to_be_bytes());
    message[8..12].copy_from_slice(&memory.stag.0.to_be_bytes());
    message[12..].copy_from_slice(&(memory.len as u32).to_be_bytes());
    message
}

fn range(message: &[u8]) -> Result<RemoteRange> {
    let message: &[u8; MESSAGE_BYTES] = message.try_into()?;
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| message[at + byte]));
    Ok(RemoteRange {
        stag: Stag(word(8)),
        offset: u64::from(word(0)) << 32 | u64::from(word(4)),
        len: u64::from(word(12)),
    })
}
