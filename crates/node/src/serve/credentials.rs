//! DIR/credentials: the root access key, for whoever may read the directory.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use forebay_client::Credentials;
use forebay_control::{AccessKey, Identities, ROOT_TENANT};
use forebay_store::Store;

use super::args::ServeArgs;
use super::listeners::Listeners;
use super::whole_file;
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
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
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
            "no key of the root tenant was left: there is a new one, and this file has nothing else any more"
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

/// Writes an AWS credentials file for `key`.
fn write(path: &Path, key: &AccessKey, endpoint: Option<&str>) -> io::Result<()> {
    let mut text = format!(
        "# Root access key of this Forebay, made at its first start.\n\
         # Use it with: AWS_SHARED_CREDENTIALS_FILE=THIS_FILE\n\
         [default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
        key.id, key.secret
    );
    if let Some(endpoint) = endpoint {
        text.push_str(&format!("# endpoint_url = {endpoint}\n"));
    }
    whole_file::write(path, text.as_bytes(), true)
}
