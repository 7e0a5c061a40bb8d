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
    /// It has no such profile, or the profile lacks a key.
    #[error("{path} has no access key and secret key in profile [{profile}]")]
    Missing {
        /// Which file.
        path: String,
        /// Which profile.
        profile: String,
    },
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
        let text =
            std::fs::read_to_string(path).map_err(|source| CredentialsError::Unreadable {
                path: path.display().to_string(),
                source,
            })?;
        parse(&text, profile).ok_or_else(|| CredentialsError::Missing {
            path: path.display().to_string(),
            profile: profile.to_owned(),
        })
    }
}

fn parse(text: &str, profile: &str) -> Option<(Credentials, Option<String>)> {
    let mut inside = false;
    let (mut access_key, mut secret_key, mut endpoint) = (None, None, None);
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
        let value = Some(value.trim().to_owned());
        match name.trim() {
            "aws_access_key_id" => access_key = value,
            "aws_secret_access_key" => secret_key = value,
            "endpoint_url" => endpoint = value,
            _ => {}
        }
    }
    Some((
        Credentials {
            access_key: access_key?,
            secret_key: secret_key?,
        },
        endpoint,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_asked_for_is_read() {
        let text = "[default]\naws_access_key_id = A\naws_secret_access_key=B=\n\
                    [profile other]\n# aws_access_key_id = no\naws_access_key_id=C\n\
                    aws_secret_access_key=D\nendpoint_url = http://localhost:1\n[half]\naws_access_key_id=E\n";
        let (default, endpoint) = parse(text, "default").unwrap();
        assert_eq!(
            (default.access_key, default.secret_key),
            ("A".into(), "B=".into())
        );
        assert_eq!(endpoint, None);
        let (other, endpoint) = parse(text, "other").unwrap();
        assert_eq!(other.access_key, "C");
        assert_eq!(endpoint.as_deref(), Some("http://localhost:1"));
        assert!(parse(text, "half").is_none());
        assert!(parse(text, "none").is_none());
    }
}
