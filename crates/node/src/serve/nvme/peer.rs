//! Which user is at the other end of a connection within this host.
//!
//! TCP carries no credentials, but for two ends on one host the kernel's table of connections (proc_pid_net(5), `net/tcp`) has both,
//! each with the user that made it.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// The state of a connection that is open at its own end; one that was closed has no owner any more, and says 0.
const ESTABLISHED: &str = "01";

/// The user who made the other end; `None` when it is not open any more, or not on this host.
pub fn user(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    if !peer.ip().is_loopback() {
        return Ok(None);
    }
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = match fs::read_to_string(table) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if let Some(uid) = find(&text, peer, local) {
            return Ok(Some(uid));
        }
    }
    Ok(None)
}

/// The user of the connection from `from` to `to`.
fn find(table: &str, from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let ends = |ipv6| (written(from, ipv6), written(to, ipv6));
    let (four, six) = (ends(false), ends(true));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (own, other, state) = (fields.next()?, fields.next()?, fields.next()?);
        let same = |(from, to): &(String, String)| from == own && to == other;
        if state != ESTABLISHED || !(same(&four) || same(&six)) {
            return None;
        }
        // Queues, timer, retransmissions, uid.
        fields.nth(3)?.parse().ok()
    })
}

/// As the tables write it: words of four bytes in the machine's order, then the port.
fn written(address: SocketAddr, ipv6: bool) -> String {
    let bytes = match (address.ip(), ipv6) {
        (IpAddr::V4(ip), false) => ip.octets().to_vec(),
        (IpAddr::V4(ip), true) => ip.to_ipv6_mapped().octets().to_vec(),
        (IpAddr::V6(ip), _) => ip.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| {
        let word = word.try_into().map(u32::from_ne_bytes);
        format!("{:08X}", word.unwrap_or_default())
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_other_end_is_ours_while_it_is_open() {
        let me = fs::metadata("/proc/self").unwrap().uid();
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else {
                continue;
            };
            let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (theirs, peer) = listener.accept().unwrap();
            let local = theirs.local_addr().unwrap();
            assert_eq!(user(local, peer).unwrap(), Some(me));
            drop(ours);
            assert_eq!(user(local, peer).unwrap(), None);
            let elsewhere = "192.0.2.1:9".parse().unwrap();
            assert_eq!(user(local, elsewhere).unwrap(), None);
        }
    }

    #[test]
    fn a_line_is_read_as_the_kernel_writes_it() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:D431 0100007F:1144 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0 0\n\
            1: 0100007F:D431 0100007F:1144 01 00000000:00000000 00:00000000 00000000  1000        0 123 1 0 0\n\
            2: 0100007F:1144 0100007F:D431 01 00000000:00000000 00:00000000 00000000     7        0 124 1 0 0\n";
        if cfg!(target_endian = "big") {
            return;
        }
        let (client, server) = ("127.0.0.1:54321", "127.0.0.1:4420");
        let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
        assert_eq!(find(table, client, server), Some(1000));
        assert_eq!(find(table, server, client), Some(7));
        assert_eq!(find(table, client, client), None);
    }
}
