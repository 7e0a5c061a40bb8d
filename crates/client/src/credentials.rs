//! As whom: a pair of keys, from a file in AWS' format.

use std::fmt;
use std::path::Path;

/// An access key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The public half.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
}

/// A profile of a credentials file.
#[derive(Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its pair.
    pub credentials: Credentials,
    /// What goes with a pair that is good for a while (`aws_session_token`).
    pub session_token: Option<String>,
    /// Where it is good (`endpoint_url`).
    pub endpoint: Option<String>,
}

/// Why a file gave no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// Which file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// It has no such profile, or one without keys.
    #[error("{path} has no access key and secret key in profile [{profile}]")]
    Missing {
        /// Which file.
        path: String,
        /// Which profile.
        profile: String,
    },
    /// Of the two keys of the profile there is one.
    #[error(
        "{path} has one of access key and secret key in profile [{profile}], and both are asked for"
    )]
    Half {
        /// Which file.
        path: String,
        /// Which profile.
        profile: String,
    },
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Profile({:?}, {:?})", self.credentials, self.endpoint)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.access_key)
    }
}

impl Credentials {
    /// Reads `profile` of a file such as `~/.aws/credentials`, with the endpoint when the profile names one
    /// (`endpoint_url`).
    ///
    /// # Errors
    /// When the file cannot be read or has no such pair.
    pub fn from_file(
        path: &Path,
        profile: &str,
    ) -> Result<(Credentials, Option<String>), CredentialsError> {
        let found = Profile::from_file(path, profile)?;
        Ok((found.credentials, found.endpoint))
    }
}

impl Profile {
    /// Reads the profile of this name of a file such as `~/.aws/credentials`.
    ///
    /// # Errors
    /// When the file cannot be read or has no such pair.
    pub fn from_file(path: &Path, profile: &str) -> Result<Profile, CredentialsError> {
        let file = path.display().to_string();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(source) => return Err(CredentialsError::Unreadable { path: file, source }),
        };
        let found = Lines::of(&text, profile);
        let profile = profile.to_owned();
        match (found.access_key, found.secret_key) {
            (Some(access_key), Some(secret_key)) => Ok(Profile {
                credentials: Credentials {
                    access_key,
                    secret_key,
                },
                session_token: found.session_token,
                endpoint: found.endpoint,
            }),
            (None, None) => Err(CredentialsError::Missing {
                path: file,
                profile,
            }),
            _ => Err(CredentialsError::Half {
                path: file,
                profile,
            }),
        }
    }
}

/// What the lines of a profile say.
#[derive(Debug, Default)]
struct Lines {
    access_key: Option<String>,
    secret_key: Option<String>,
    session_token: Option<String>,
    endpoint: Option<String>,
}

impl Lines {
    fn of(text: &str, profile: &str) -> Lines {
        let mut inside = false;
        let mut found = Lines::default();
        for line in text.lines() {
            let line = line.trim();
            if line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|line| line.strip_suffix(']'))
            {
                let name = name.trim();
                inside = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
                continue;
            }
            let Some((name, value)) = line.split_once('=').filter(|_| inside) else {
                continue;
            };
            // As of a variable that is set to nothing.
            let value = Some(value.trim()).filter(|value| !value.is_empty());
            let value = value.map(str::to_owned);
            match name.trim() {
                "aws_access_key_id" => found.access_key = value,
                "aws_secret_access_key" => found.secret_key = value,
                "aws_session_token" => found.session_token = value,
                "endpoint_url" => found.endpoint = value,
                _ => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_asked_for_is_read() {
        let text = "[default]\naws_access_key_id = A\naws_secret_access_key=B=\n\
                    [profile other]\n# aws_access_key_id = no\naws_access_key_id=C\n\
                    aws_secret_access_key=D\naws_session_token = T\nendpoint_url = http://localhost:1\n[half]\naws_access_key_id=E\n\
                    aws_secret_access_key=\n[blank]\naws_access_key_id=F\naws_secret_access_key=G\naws_session_token =\nendpoint_url = \n";
        let default = Lines::of(text, "default");
        assert_eq!(
            (default.access_key.as_deref(), default.secret_key.as_deref()),
            (Some("A"), Some("B="))
        );
        assert_eq!((default.session_token, default.endpoint), (None, None));
        let other = Lines::of(text, "other");
        assert_eq!(other.access_key.as_deref(), Some("C"));
        assert_eq!(other.session_token.as_deref(), Some("T"));
        assert_eq!(other.endpoint.as_deref(), Some("http://localhost:1"));
        let half = Lines::of(text, "half");
        assert!(half.access_key.is_some() && half.secret_key.is_none());
        let blank = Lines::of(text, "blank");
        assert_eq!(blank.secret_key.as_deref(), Some("G"));
        assert_eq!((blank.session_token, blank.endpoint), (None, None));
        assert!(Lines::of(text, "none").access_key.is_none());
    }
}
