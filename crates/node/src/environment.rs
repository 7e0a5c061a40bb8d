//! Variables of the environment. One that is set to nothing is one that is not set.

use std::env;

use forebay_client::Credentials;

/// What one is set to.
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// An access key, where the variables of these names have both halves of it.
pub fn pair(id: &str, secret: &str) -> Option<Credentials> {
    Some(Credentials {
        access_key: variable(id)?,
        secret_key: variable(secret)?,
    })
}
