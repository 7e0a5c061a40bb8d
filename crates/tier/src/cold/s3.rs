//! Where the cold tier is, as an operator writes it, and the client for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::{ObjectStore, RetryConfig};
use rustls::ClientConfig;
use tokio::runtime::Handle;

use super::http::Connector;

/// Further tries of a call to the far side, and how long they may take together: a reader waits meanwhile.
const RETRIES_MAX: usize = 3;
const RETRIES_FOR: Duration = Duration::from_secs(20);

/// `s3://BUCKET[/PREFIX][?endpoint=URL][&region=R][&profile=P][&credentials=FILE][&ca=FILE]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColdUrl {
    /// The bucket, which must exist.
    pub bucket: String,
    /// What keys in it begin with; may be empty.
    pub prefix: String,
    /// An S3 other than Amazon's: `https://HOST[:PORT]`, or `http://` where the way is trusted.
    pub endpoint: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// Which profile of a credentials file is used.
    pub profile: Option<String>,
    /// A credentials file like `~/.aws/credentials`.
    pub credentials: Option<PathBuf>,
    /// Certificates to trust instead of the machine's, PEM.
    pub ca: Option<PathBuf>,
}

/// Whom the far side knows us as.
#[derive(Clone)]
pub struct Secret {
    /// The public half.
    pub access_key: String,
    /// The other.
    pub secret_key: String,
    /// Of temporary credentials.
    pub session_token: Option<String>,
}

impl ColdUrl {
    /// Reads the text.
    ///
    /// # Errors
    /// What is wrong with it, for a person.
    pub fn parse(text: &str) -> Result<ColdUrl, String> {
        let place = text
            .strip_prefix("s3://")
            .ok_or("a cold tier is written s3://BUCKET[/PREFIX][?endpoint=URL&region=R]")?;
        let (place, options) = place.split_once('?').unwrap_or((place, ""));
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let legal =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(legal) {
            return Err(format!("{bucket:?} is not a bucket's name"));
        }
        let mut url = ColdUrl {
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
            ..ColdUrl::default()
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option
                .split_once('=')
                .ok_or_else(|| format!("{option:?} is not NAME=VALUE"))?;
            let value = value.to_owned();
            match name {
                "endpoint" => url.endpoint = Some(value),
                "region" => url.region = Some(value),
                "profile" => url.profile = Some(value),
                "credentials" => url.credentials = Some(value.into()),
                "ca" => url.ca = Some(value.into()),
                _ => {
                    return Err(format!(
                        "{name:?} is none of endpoint, region, profile, credentials, ca"
                    ));
                }
            }
        }
        if let Some(endpoint) = &url.endpoint
            && !(endpoint.starts_with("http://") || endpoint.starts_with("https://"))
        {
            return Err(format!(
                "the endpoint {endpoint:?} is not an http or https URL"
            ));
        }
        Ok(url)
    }

    /// What keys of `store`, a name that no other store has, begin with.
    pub fn home(&self, store: &str) -> String {
        match self.prefix.is_empty() {
            true => store.to_owned(),
            false => format!("{}/{store}", self.prefix),
        }
    }

    /// Whether `https` is spoken with anybody: the far side, or who gives the machine its role where there is no secret.
    pub fn needs_tls(&self, secret: Option<&Secret>) -> bool {
        !self.is_plain() || secret.is_none()
    }

    fn is_plain(&self) -> bool {
        let endpoint = self.endpoint.as_ref();
        endpoint.is_some_and(|url| url.starts_with("http://"))
    }

    /// A client whose connections live on `runtime`. Nothing is asked of the far side yet. Without a secret the machine's own role is
    /// used, as the environment of a container or the instance's metadata tell it. `tls` says whom to trust, where it is needed.
    ///
    /// # Errors
    /// What is wrong, for a person.
    pub fn open(
        &self,
        secret: Option<Secret>,
        tls: Option<Arc<ClientConfig>>,
        runtime: &Handle,
    ) -> Result<Arc<dyn ObjectStore>, String> {
        let mut builder = match &secret {
            Some(_) => AmazonS3Builder::new(),
            None => AmazonS3Builder::from_env(),
        };
        builder = builder
            .with_bucket_name(&self.bucket)
            .with_allow_http(self.is_plain())
            .with_http_connector(Connector::new(runtime, tls))
            .with_retry(RetryConfig {
                max_retries: RETRIES_MAX,
                retry_timeout: RETRIES_FOR,
                ..RetryConfig::default()
            });
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        if let Some(secret) = secret {
            builder = builder
                .with_access_key_id(secret.access_key)
                .with_secret_access_key(secret.secret_key);
            if let Some(token) = secret.session_token {
                builder = builder.with_token(token);
            }
        }
        let store = builder.build().map_err(|error| error.to_string())?;
        Ok(Arc::new(store))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_writes() {
        let url = ColdUrl::parse(
            "s3://deep-freeze/stores/a/?endpoint=http://127.0.0.1:9000/&region=eu-1&profile=cold",
        );
        let url = url.expect("legal");
        assert_eq!(
            (url.bucket.as_str(), url.prefix.as_str()),
            ("deep-freeze", "stores/a")
        );
        assert_eq!(url.endpoint.as_deref(), Some("http://127.0.0.1:9000/"));
        assert_eq!(url.region.as_deref(), Some("eu-1"));
        assert_eq!(url.home("0011"), "stores/a/0011");
        assert_eq!(
            ColdUrl::parse("s3://b").expect("legal").home("0011"),
            "0011"
        );
        for (wrong, word) in [
            ("gs://b", "s3://"),
            ("s3:///p", "bucket"),
            ("s3://B", "bucket"),
            ("s3://b?regoin=x", "regoin"),
            ("s3://b?region", "NAME=VALUE"),
            ("s3://b?endpoint=host:9000", "endpoint"),
        ] {
            let error = ColdUrl::parse(wrong).expect_err(wrong);
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }
}
