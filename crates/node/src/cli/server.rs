//! Which server a command speaks to, and as whom.

use std::env;
use std::path::PathBuf;

use clap::Args;
use forebay_client::{Client, Config, Credentials, Endpoint, Tls};
use forebay_control::api;
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exit::{Exit, Failure, Outcome};
use crate::serve::{credentials_path, socket};

const DEFAULT_DIR: &str = "./forebay-data";
const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:9000";
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where the server is and who asks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// The S3 endpoint [default: of the server that uses DIR, else http://127.0.0.1:9000]
    #[arg(long, env = "FOREBAY_ENDPOINT", value_name = "URL")]
    endpoint: Option<Endpoint>,
    /// Data directory of a server on this host, for its credentials and its socket [default: ./forebay-data]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Profile of the AWS credentials file to use
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Region that signatures name
    #[arg(
        long,
        env = "AWS_REGION",
        default_value = "us-east-1",
        value_name = "NAME"
    )]
    region: String,
    /// Certificates to trust (PEM) [default: the machine's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

impl ServerArgs {
    /// The data directory that is meant.
    pub fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| DEFAULT_DIR.into())
    }

    /// A client of the S3 door.
    pub async fn client(&self, connections: usize) -> Outcome<Client> {
        let (credentials, named) = self.credentials()?;
        let endpoint = self.find_endpoint(named).await?;
        let mut config = Config::new(endpoint, credentials);
        config.region = self.region.clone();
        config.connections_max = connections;
        if let Some(ca) = &self.ca {
            config.tls = Some(Tls::new(Some(ca))?);
        }
        Ok(Client::new(config)?)
    }

    /// Where the S3 door is: as told, else as the server of the directory says.
    pub async fn find_endpoint(&self, named: Option<String>) -> Outcome<Endpoint> {
        if let Some(endpoint) = &self.endpoint {
            return Ok(endpoint.clone());
        }
        let running = match named {
            Some(url) => Some(url),
            None => self
                .ask::<api::Server>(Method::GET, "/v1/server", &())
                .await
                .ok()
                .and_then(|server| server.doors.get("s3").cloned()),
        };
        running
            .as_deref()
            .unwrap_or(DEFAULT_ENDPOINT)
            .parse()
            .map_err(|error| Failure::new(Exit::Usage, error))
    }

    /// Who asks, and the endpoint where that is written beside it. The most explicit wins: --dir, --profile, the environment, the
    /// default directory.
    fn credentials(&self) -> Outcome<(Credentials, Option<String>)> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let pair = |id: &str, secret: &str| {
            Some(Credentials {
                access_key: variable(id)?,
                secret_key: variable(secret)?,
            })
        };
        let file = |path: PathBuf, profile: &str| {
            Credentials::from_file(&path, profile)
                .map_err(|error| Failure::new(Exit::Denied, error))
        };
        let aws_endpoint = || variable("AWS_ENDPOINT_URL_S3").or(variable("AWS_ENDPOINT_URL"));
        if let Some(dir) = &self.dir {
            return file(credentials_path(dir), "default");
        }
        let aws_file = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
        if let Some(profile) = &self.profile {
            let path = aws_file.unwrap_or_else(|| {
                let home = env::var_os("HOME").unwrap_or_default();
                PathBuf::from(home).join(".aws/credentials")
            });
            return file(path, profile);
        }
        if let Some(found) = pair("FOREBAY_ACCESS_KEY", "FOREBAY_SECRET_KEY") {
            return Ok((found, None));
        }
        if let Some(found) = pair("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") {
            return Ok((found, aws_endpoint()));
        }
        if let Some(path) = aws_file {
            let profile = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
            let (found, named) = file(path, &profile)?;
            return Ok((found, named.or_else(aws_endpoint)));
        }
        let path = credentials_path(&self.dir());
        if !path.exists() {
            return Err(Failure::new(
                Exit::Denied,
                format_args!(
                    "no credentials: give --dir DIR or --profile NAME, set FOREBAY_ACCESS_KEY and FOREBAY_SECRET_KEY, or run where {} is",
                    path.display()
                ),
            ));
        }
        file(path, "default")
    }

    /// Calls the admin API over the server's Unix socket.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Outcome<T> {
        let reply = self.exchange(method, path, body).await?;
        // 204 has no body; `null` is its JSON.
        let text = if reply.is_empty() {
            b"null"
        } else {
            &reply[..]
        };
        serde_json::from_slice(text).map_err(|error| {
            Failure::new(Exit::Failed, format_args!("the server's answer: {error}"))
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Outcome<Vec<u8>> {
        let dir = self.dir();
        let place = socket::path(&dir);
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(Exit::Failed, format_args!("{}: {error}", place.display()))
        };
        let stream = socket::connect(&dir).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                Failure::new(Exit::Denied, format_args!("{}: {error}", place.display()))
            }
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => Failure::new(
                Exit::Failed,
                format_args!(
                    "no server uses {} (start `forebay serve`, or name its directory by --dir)",
                    dir.display()
                ),
            ),
            _ => failed(&error),
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(&error))?;
        // Its errors are those of the request, too.
        tokio::spawn(connection);
        let body = match method {
            Method::GET | Method::DELETE => Vec::new(),
            _ => serde_json::to_vec(body).map_err(|error| failed(&error))?,
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "forebay")
            .body(Full::new(bytes::Bytes::from(body)))
            .map_err(|error| Failure::new(Exit::Usage, error))?;
        let response = sender.send_request(request).await.map_err(|error| {
            // The server closes a stranger's connection without a word.
            Failure::new(Exit::Denied, format_args!("{}: {error}", place.display()))
        })?;
        let status = response.status();
        let bytes = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| failed(&error))?
            .to_bytes();
        if status.is_success() {
            return Ok(bytes.to_vec());
        }
        match serde_json::from_slice::<forebay_control::Error>(&bytes) {
            Ok(error) => Err(error.into()),
            Err(_) => Err(failed(&format!("HTTP status {status}"))),
        }
    }
}
