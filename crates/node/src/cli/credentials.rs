//! As whom a command speaks to a server.

use std::env;
use std::path::{Path, PathBuf};

use forebay_client::Profile;

use super::server::DEFAULT_DIR;
use crate::environment::{pair, variable};
use crate::exit::{Exit, Failure, Outcome};
use crate::serve::credentials::path as credentials_path;

/// Whether there is such a file or directory, as far as one may look.
pub fn may_be_there(path: &Path) -> bool {
    !matches!(path.try_exists(), Ok(false))
}

/// Who asks, with the S3 endpoint where one is written beside that. The most explicit wins: --dir, --profile, the environment, the default directory.
pub fn find(dir: Option<&Path>, profile: Option<&str>) -> Outcome<Profile> {
    if let Some(dir) = dir {
        if !may_be_there(dir) {
            let none = format_args!("{}: there is no such directory", dir.display());
            return Err(Failure::new(Exit::NotFound, none));
        }
        return in_file(credentials_path(dir), "default");
    }
    if let Some(given) = given(profile)? {
        return Ok(given);
    }
    let path = credentials_path(Path::new(DEFAULT_DIR));
    // One that cannot be looked at says so when it is read.
    if !may_be_there(&path) {
        return Err(Failure::new(
            Exit::Denied,
            format_args!(
                "no credentials: give --dir DIR or --profile NAME, set FOREBAY_ACCESS_KEY and FOREBAY_SECRET_KEY, or run where {} is",
                path.display()
            ),
        ));
    }
    in_file(path, "default")
}

/// What --profile or the environment give.
pub fn given(profile: Option<&str>) -> Outcome<Option<Profile>> {
    let aws_file = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
    if let Some(profile) = profile {
        let path = aws_file.unwrap_or_else(|| {
            let home = env::var_os("HOME").unwrap_or_default();
            PathBuf::from(home).join(".aws/credentials")
        });
        return in_file(path, profile).map(Some);
    }
    let [id, secret] = ["FOREBAY_ACCESS_KEY", "FOREBAY_SECRET_KEY"];
    if let Some(found) = pair(id, secret) {
        return Ok(Some(Profile {
            credentials: found,
            session_token: None,
            endpoint: None,
        }));
    }
    if variable(id).or(variable(secret)).is_some() {
        // Whoever sets one means to be somebody: not to be taken for another.
        let half = format_args!("of {id} and {secret} only one is set");
        return Err(Failure::new(Exit::Usage, half));
    }
    let aws_endpoint = || variable("AWS_ENDPOINT_URL_S3").or(variable("AWS_ENDPOINT_URL"));
    if let Some(found) = pair("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") {
        return Ok(Some(Profile {
            credentials: found,
            session_token: variable("AWS_SESSION_TOKEN"),
            endpoint: aws_endpoint(),
        }));
    }
    if let Some(path) = aws_file {
        let profile = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        let mut found = in_file(path, &profile)?;
        found.endpoint = found.endpoint.or_else(aws_endpoint);
        return Ok(Some(found));
    }
    Ok(None)
}

fn in_file(path: PathBuf, profile: &str) -> Outcome<Profile> {
    Profile::from_file(&path, profile).map_err(|error| Failure::new(Exit::Denied, error))
}
