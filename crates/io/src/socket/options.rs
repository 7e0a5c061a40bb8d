//! How connections are made, and how they are to behave.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use tokio::net::TcpSocket;

/// Every kernel has it, and everybody may use it. It sends what the other end has room for, without a pace of its own.
const UNPACED: &str = "reno";

/// Connects to `host`, by the first of its addresses that answers. What is written is sent at once ([`unpaced`]).
///
/// # Errors
/// The system's, for the last address; [`io::ErrorKind::NotFound`] when there is none.
pub async fn connect(host: &str, port: u16) -> io::Result<tokio::net::TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in tokio::net::lookup_host((host, port)).await? {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_nodelay(true)?;
        unpaced(&socket, address.ip());
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The same, blocking, to one address.
///
/// # Errors
/// The system's.
pub fn connect_blocking(address: SocketAddr) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    unpaced(&socket, address.ip());
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// Has a socket do without the system's congestion control if the other end is on this machine, as `ip` says: nothing has to be shared
/// with anybody there, and one that spreads packets over time (as BBR does) costs both ends timers. It counts for connections that are
/// made afterwards: those of a listener on the loopback address, too.
pub fn unpaced(socket: impl AsFd, ip: IpAddr) {
    if ip.to_canonical().is_loopback() {
        // Where that is not allowed, everything goes on as the system has it.
        let _ = sockopt::set_tcp_congestion(socket.as_fd(), UNPACED);
    }
}

/// Whether both ends of a connection are on this machine.
pub fn is_within(peer: SocketAddr, local: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback() || peer.ip() == local.ip()
}

/// Bounds what the system keeps of what was sent, instead of letting that grow with the way to the peer.
///
/// # Errors
/// The system's.
pub fn set_send_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_send_buffer_size(socket.as_fd(), bytes)?)
}

/// Has the system ask whether the peer's is still there when nothing came for `silence`, and as often again; a connection ends with the
/// last of `probes` that is not answered. One whose peer was sent something ends as soon after that: the system does not ask then, and
/// sends it again, many times.
///
/// # Errors
/// The system's.
pub fn set_keep_alive(socket: impl AsFd, silence: Duration, probes: u32) -> io::Result<()> {
    let socket = socket.as_fd();
    let patience = silence.saturating_mul(probes.saturating_add(1)).as_millis();
    sockopt::set_tcp_user_timeout(socket, u32::try_from(patience).unwrap_or(u32::MAX))?;
    sockopt::set_tcp_keepidle(socket, silence)?;
    sockopt::set_tcp_keepintvl(socket, silence)?;
    sockopt::set_tcp_keepcnt(socket, probes)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_ends_of_one_machine_are_known() {
        for (peer, local, within) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.2", "127.0.0.1", true),
            ("::1", "::1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("2001:db8::1", "2001:db8::2", false),
        ] {
            let end = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 1);
            assert_eq!(is_within(end(peer), end(local)), within, "{peer} {local}");
        }
    }

    #[tokio::test]
    async fn connections_within_the_machine_are_not_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        unpaced(&listener, address.ip());
        let blocking = connect_blocking(address).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let waiting = connect("127.0.0.1", address.port()).await.unwrap();
        for end in [blocking.as_fd(), accepted.as_fd(), waiting.as_fd()] {
            assert_eq!(sockopt::tcp_congestion(end).unwrap(), UNPACED);
        }
        assert!(blocking.nodelay().unwrap() && waiting.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_connection_that_is_refused_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let refused = connect("127.0.0.1", address.port()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let refused = connect_blocking(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_peer_that_is_gone_is_waited_for_as_long_whatever_it_was_sent() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        set_keep_alive(&socket, Duration::from_secs(30), 4).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        let asked = (
            sockopt::tcp_keepidle(&socket),
            sockopt::tcp_keepintvl(&socket),
        );
        let silence = Duration::from_secs(30);
        assert_eq!((asked.0.unwrap(), asked.1.unwrap()), (silence, silence));
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 4);
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 150_000);
    }

    #[test]
    fn far_ends_have_what_the_system_has() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = sockopt::tcp_congestion(&socket).unwrap();
        unpaced(&socket, "192.0.2.1".parse().unwrap());
        assert_eq!(sockopt::tcp_congestion(&socket).unwrap(), before);
    }
}
