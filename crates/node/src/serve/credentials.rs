//! DIR/credentials: the root access key, for whoever may read the directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forebay_client::Credentials;
use forebay_control::{AccessKey, Identities, ROOT_TENANT};
use forebay_store::Store;

use super::args::ServeArgs;
use super::listeners::Listeners;
use super::whole_file;
use crate::environment::variable;
use crate::exit::{Exit, Failure, Outcome};

/// Where the root access key is.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("credentials")
}

/// Makes the root key at the first start, that of DIR/credentials if there is one, and writes it there; writes the file again when it
/// is gone, when the environment gives the key, or when the root tenant has lost all of its keys.
pub async fn prepare<S: Store>(
    args: &ServeArgs,
    identities: &Identities<S>,
    listeners: &Listeners,
) -> Outcome {
    let given = match (
        variable("FOREBAY_ACCESS_KEY"),
        variable("FOREBAY_SECRET_KEY"),
    ) {
        (Some(id), Some(secret)) => Some((id, secret)),
        (None, None) => None,
        _ => {
            return Err(Failure::new(
                Exit::Usage,
                "FOREBAY_ACCESS_KEY and FOREBAY_SECRET_KEY belong together",
            ));
        }
    };
    let path = path(&args.dir);
    let kept = path
        .exists()
        .then(|| Credentials::from_file(&path, "default"));
    let is_new = identities.tenant(ROOT_TENANT).is_err();
    let had_key = !identities.keys_of(ROOT_TENANT).is_empty();
    let taken = match &kept {
        // A store that knows nobody yet may be a memory leaf, which forgets its keys; the file still holds them for those who use
        // it. New ones beside a damaged file would be nobody's.
        Some(kept) if is_new && given.is_none() => {
            let (kept, _) = kept
                .as_ref()
                .map_err(|error| Failure::new(Exit::Failed, error))?;
            Some((kept.access_key.clone(), kept.secret_key.clone()))
        }
        Some(_) | None => None,
    };
    let made = !had_key && taken.is_none();
    let chosen = given.clone().or(taken);
    let key = identities
        .ensure_root(
            chosen
                .as_ref()
                .map(|(id, secret)| (id.as_str(), secret.as_str())),
        )
        .await?;
    match kept {
        None => {}
        Some(_) if given.is_some() => {}
        Some(_) if made => tracing::warn!(
            file = %path.display(),
            "no key of the root tenant was left: there is a new one, and profile [default] of this file has it"
        ),
        Some(kept) => {
            let is_known = kept.is_ok_and(|(kept, _)| {
                let known = identities.find(&kept.access_key);
                known.is_some_and(|known| known.secret == kept.secret_key)
            });
            if !is_known {
                tracing::warn!(
                    file = %path.display(),
                    "the store does not know the access key in this file: commands that use it are denied. \
                     Without the file the next start writes it with a key of the root tenant"
                );
            }
            return Ok(());
        }
    }
    write(&path, &key, listeners.s3_url().as_deref()).map_err(Failure::io(path.display()))
}

/// Comments of the file that are ours.
const ABOUT: &str = "# Root access key of this Forebay, made at its first start.";
const USE: &str = "# Use it with: AWS_SHARED_CREDENTIALS_FILE=THIS_FILE";
const ENDPOINT: &str = "# endpoint_url = ";

/// Writes an AWS credentials file for `key`, which keeps what others have put there.
fn write(path: &Path, key: &AccessKey, endpoint: Option<&str>) -> io::Result<()> {
    let old = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        old => old?,
    };
    let Others { settings, profiles } = Others::of(&old);
    let mut text = format!(
        "{ABOUT}\n{USE}\n\
         [default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
        key.id, key.secret
    );
    if let Some(endpoint) = endpoint {
        text.push_str(&format!("{ENDPOINT}{endpoint}\n"));
    }
    let mut bytes = text.into_bytes();
    let between: Option<&[u8]> = (!profiles.is_empty()).then_some(b"");
    for line in settings.into_iter().chain(between).chain(profiles) {
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
    }
    whole_file::write(path, &bytes, true)
}

/// Lines of a credentials file that are none of ours.
#[derive(Debug, Default, PartialEq, Eq)]
struct Others<'a> {
    /// What profile `default` says beside its key, comments among it.
    settings: Vec<&'a [u8]>,
    /// The other profiles.
    profiles: Vec<&'a [u8]>,
}

impl Others<'_> {
    fn of(file: &[u8]) -> Others<'_> {
        const OF_A_KEY: [&[u8]; 3] = [
            b"aws_access_key_id",
            b"aws_secret_access_key",
            b"aws_session_token",
        ];
        let mut others = Others::default();
        // What comes before any profile is ours.
        let mut is_default = true;
        for line in file.split(|byte| *byte == b'\n') {
            let plain = line.trim_ascii();
            if let Some(name) = plain.strip_prefix(b"[") {
                let name = name.strip_suffix(b"]").unwrap_or(name).trim_ascii();
                let name = name.strip_prefix(b"profile ").unwrap_or(name).trim_ascii();
                is_default = name == b"default";
                if is_default {
                    continue;
                }
            }
            if !is_default {
                others.profiles.push(line);
                continue;
            }
            let is_ours = [ABOUT, USE, ENDPOINT]
                .iter()
                .any(|ours| plain.starts_with(ours.trim_end().as_bytes()));
            let name = plain.split(|byte| *byte == b'=').next();
            let is_of_key = name.is_some_and(|name| OF_A_KEY.contains(&name.trim_ascii()));
            if !plain.is_empty() && !is_ours && !is_of_key {
                others.settings.push(line);
            }
        }
        while others.profiles.last().is_some_and(|line| line.is_empty()) {
            others.profiles.pop();
        }
        others
    }
}
