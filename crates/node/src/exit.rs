//! How a command ends.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use forebay_proto::s3::percent;

/// The exit codes of the command line's contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Something failed.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// What was named does not exist.
    NotFound = 3,
    /// The identity may not, or is not known.
    Denied = 4,
    /// A quota, a full disk, or too much at once.
    Limit = 5,
}

/// A command that did not do what it was told.
#[derive(Debug)]
pub struct Failure {
    /// What the process ends with.
    pub exit: Exit,
    /// Words for a person.
    pub message: String,
}

/// What a command comes to.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure that says `message`.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure {
            exit,
            message: message.to_string(),
        }
    }

    /// What a failure with a file that was named is, as a function for `map_err`.
    pub fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
        move |error| {
            let exit = match error.kind() {
                std::io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::Failed,
            };
            Failure::new(exit, format_args!("{}: {error}", path.display()))
        }
    }

    /// [`Exit::Failed`], as a function for `map_err` that puts `what` before the error.
    pub fn io(what: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Failure {
        move |error| Failure::new(Exit::Failed, format_args!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

impl From<forebay_client::Error> for Failure {
    fn from(error: forebay_client::Error) -> Failure {
        let exit = error.kind().into();
        match &error {
            // As the other doors and the admin API have it.
            forebay_client::Error::Refused(refusal) if refusal.code == "NoSuchBucket" => {
                let mut named = refusal.resource.split('/').filter(|name| !name.is_empty());
                let named = named.next().unwrap_or_default();
                // A path, as it was asked for.
                let decoded = percent::decode(named, false).unwrap_or(named.as_bytes().into());
                let named = String::from_utf8_lossy(&decoded);
                Failure::new(exit, format_args!("there is no namespace {named:?}"))
            }
            forebay_client::Error::Refused(refusal) if refusal.code == "no_such_namespace" => {
                Failure::new(exit, &refusal.message)
            }
            _ => Failure::new(exit, error),
        }
    }
}

impl From<forebay_client::Kind> for Exit {
    fn from(kind: forebay_client::Kind) -> Exit {
        use forebay_client::Kind;
        match kind {
            Kind::NotFound => Exit::NotFound,
            Kind::Denied => Exit::Denied,
            Kind::Limit => Exit::Limit,
            Kind::Precondition | Kind::Failed => Exit::Failed,
        }
    }
}

impl From<forebay_control::Error> for Failure {
    fn from(error: forebay_control::Error) -> Failure {
        use forebay_control::Kind;
        let exit = match error.kind {
            Kind::NotFound => Exit::NotFound,
            Kind::Denied => Exit::Denied,
            Kind::Limit => Exit::Limit,
            Kind::Invalid => Exit::Usage,
            Kind::Exists | Kind::NotEmpty | Kind::Failed => Exit::Failed,
        };
        Failure::new(exit, error)
    }
}

impl From<forebay_bench::Error> for Failure {
    fn from(error: forebay_bench::Error) -> Failure {
        use forebay_bench::Error;
        let exit = match &error {
            Error::Usage(_) => Exit::Usage,
            Error::Refused { status, text, .. } => {
                forebay_client::Refusal::of(*status, text).kind().into()
            }
            Error::Client { source, .. } => source.kind().into(),
            Error::Io { .. } | Error::Protocol { .. } | Error::Server(_) => Exit::Failed,
        };
        Failure::new(exit, error)
    }
}

#[cfg(test)]
mod tests {
    use forebay_bench::Error;

    use super::*;

    #[test]
    fn a_refused_measurement_ends_as_any_other_command() {
        let of = |status, code: &str| {
            let error = Error::Refused {
                what: "a request".to_owned(),
                status,
                text: format!("<Error><Code>{code}</Code><Message>m</Message></Error>"),
            };
            Failure::from(error).exit
        };
        assert_eq!(of(403, "QuotaExceeded"), Exit::Limit);
        assert_eq!(of(400, "TooManyBuckets"), Exit::Limit);
        assert_eq!(of(403, "AccessDenied"), Exit::Denied);
        assert_eq!(of(404, "NoSuchBucket"), Exit::NotFound);
        assert_eq!(of(503, "SlowDown"), Exit::Limit);
        assert_eq!(of(500, "InternalError"), Exit::Failed);
    }
}
