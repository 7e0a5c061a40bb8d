//! Why a queue has ended.

use std::{fmt, io};

use forebay_proto::nvme_tcp::{Fault, TermReq};

/// Why a queue has ended.
#[derive(Debug)]
pub(super) enum End {
    /// The host broke the protocol.
    Fault(Fault),
    /// The host ended the connection, and says why.
    Terminated(TermReq),
    /// The host closed the connection.
    Closed,
    /// The handshake of TLS failed.
    Insecure(io::Error),
    /// The connection broke.
    Lost(io::Error),
    /// The host took nothing, or owed something, for too long.
    Stalled,
    /// No sign of life.
    KeepAliveExpired,
    /// By its controller, or because the server stops.
    Ended,
}

impl End {
    /// For an error of the socket; `between`: the stream stood between two PDUs.
    pub(super) fn of(error: io::Error, between: bool) -> End {
        match error.kind() {
            io::ErrorKind::UnexpectedEof if between => End::Closed,
            _ => End::Lost(error),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Fault(fault) => write!(f, "the host broke the protocol: {fault}"),
            End::Terminated(request) => write!(f, "the host ended it: {request}"),
            End::Closed => f.write_str("the host closed it"),
            End::Insecure(error) => write!(f, "no secure channel: {error}"),
            End::Lost(error) => write!(f, "lost: {error}"),
            End::Stalled => f.write_str("the host stalled"),
            End::KeepAliveExpired => f.write_str("no sign of life from the host"),
            End::Ended => f.write_str("by us"),
        }
    }
}
