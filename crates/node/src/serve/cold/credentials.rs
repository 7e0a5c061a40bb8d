//! Who we are on the far side.

use std::io::ErrorKind;
use std::path::PathBuf;

use forebay_client::{CredentialsError, Profile};
use forebay_tier::cold::{ColdUrl, Secret};

use crate::environment::{pair, variable};

/// What the URL names, else the environment, else the usual file; with the endpoint that stands beside it. Where nobody is named and that
/// file or its usual profile is not there it is nobody in particular: the machine's role.
pub fn find(url: &ColdUrl) -> Result<(ColdUrl, Option<Secret>), String> {
    let mut url = url.clone();
    if url.credentials.is_none()
        && url.profile.is_none()
        && let Some(secret) = secret()
    {
        return Ok((url, Some(secret)));
    }
    let file = url.credentials.clone();
    let file = file.or_else(|| variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from));
    let profile = url.profile.clone().or_else(|| variable("AWS_PROFILE"));
    let is_named = file.is_some() || profile.is_some();
    let home = variable("HOME").unwrap_or_else(|| "/".to_owned());
    let file = file.unwrap_or_else(|| PathBuf::from(home).join(".aws/credentials"));
    match Profile::from_file(&file, profile.as_deref().unwrap_or("default")) {
        Ok(found) => {
            url.endpoint = url.endpoint.or(found.endpoint);
            let secret = Secret {
                access_key: found.credentials.access_key,
                secret_key: found.credentials.secret_key,
                session_token: found.session_token,
            };
            Ok((url, Some(secret)))
        }
        Err(error) if is_named || !is_absence(&error) => Err(error.to_string()),
        Err(_) => Ok((url, None)),
    }
}

/// Whether there is no such file, or no such profile in it.
fn is_absence(error: &CredentialsError) -> bool {
    match error {
        CredentialsError::Unreadable { source, .. } => {
            matches!(
                source.kind(),
                ErrorKind::NotFound | ErrorKind::NotADirectory
            )
        }
        CredentialsError::Missing { .. } => true,
        CredentialsError::Half { .. } => false,
    }
}

fn secret() -> Option<Secret> {
    let found = pair("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")?;
    Some(Secret {
        access_key: found.access_key,
        secret_key: found.secret_key,
        session_token: variable("AWS_SESSION_TOKEN"),
    })
}
