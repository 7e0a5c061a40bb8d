//! Connections that are slow to close.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

/// How long who closes one last waits: longer than anything else takes, on however busy a machine.
pub const LINGER: Duration = Duration::from_secs(120);

/// A connection with bytes that its other end does not take; and that end.
pub fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[7; 64 << 10]).is_ok() {}
    set_socket_linger(&stream, Some(LINGER)).unwrap();
    (stream, other)
}
