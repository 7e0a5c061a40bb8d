//! Why nothing could be measured.

use std::io;

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments contradict each other or ask for something that does not exist.
    #[error("{0}")]
    Usage(String),
    /// Something could not be done; the text says what.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The endpoint refused something that the measurement needs.
    #[error("the endpoint answered {status} to {what}: {text}")]
    Refused {
        /// What was asked.
        what: String,
        /// HTTP status.
        status: u16,
        /// The beginning of the answer's body.
        text: String,
    },
    /// A client of the direct path could not do what the measurement needs.
    #[error("{what}: {source}")]
    Client {
        /// What was tried.
        what: String,
        /// How it ended.
        source: Box<forebay_client::Error>,
    },
    /// The endpoint does not speak as HTTP/1.1 or S3 does.
    #[error("{what}: {reason}")]
    Protocol {
        /// What was asked.
        what: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The private server did not come up.
    #[error("the private server {0}")]
    Server(String),
}

impl Error {
    /// Names what failed with a system error.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}
