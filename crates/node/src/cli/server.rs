//! Which server a command speaks to.

use std::io::ErrorKind;
use std::path::PathBuf;

use clap::Args;
use forebay_client::direct::{self, Choice, Options};
use forebay_client::{Admin, Client, Config, Credentials, Endpoint, Profile, Tls};
use forebay_control::api;
use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::credentials::{self, may_be_there};
use super::door::Door;
use super::probe::{self, Spoken};
use super::{here, remote};
use crate::exit::{Exit, Failure, Outcome};
use crate::serve::credentials::path as credentials_path;
use crate::serve::socket;

/// Where a server keeps its data when nobody says so.
pub const DEFAULT_DIR: &str = "./forebay-data";
const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:9001";

/// Where the server is and who asks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// The gRPC endpoint; an S3 endpoint will do, too, but then payloads go by HTTP [default: of the server that uses DIR; without
    /// --dir and such a server http://127.0.0.1:9001]
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

/// Where a server can be spoken to.
struct Doors {
    rpc: Option<Endpoint>,
    s3: Option<Endpoint>,
}

/// What moves payloads, and finds what to move.
pub struct Clients {
    /// Of the S3 door. Where that is missing and links do without, what needs it says so.
    pub s3: Client,
    /// Where objects are listed.
    pub door: Door,
    /// Of the direct path if there is a better one than HTTP, else why not.
    pub direct: Result<direct::Client, String>,
}

impl Clients {
    /// Payloads that go by HTTP, and why.
    pub fn by_http(s3: Client, why: String) -> Clients {
        Clients {
            door: Door::S3(s3.clone()),
            s3,
            direct: Err(why),
        }
    }
}

fn nowhere() -> Failure {
    Failure::new(Exit::Failed, "the server has neither a gRPC nor an S3 door")
}

impl ServerArgs {
    /// The data directory that is meant.
    pub fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| DEFAULT_DIR.into())
    }

    /// Whether what is asked for is elsewhere, and a directory here is nothing to it.
    pub fn is_elsewhere(&self) -> bool {
        self.endpoint.is_some() && self.dir.is_none()
    }

    /// Whether a server is asked for: one elsewhere, or that of a directory in which one has been.
    pub fn is_named(&self) -> bool {
        let used = |dir: &PathBuf| may_be_there(&credentials_path(dir));
        self.endpoint.is_some()
            || self.dir.as_ref().is_some_and(used)
            || matches!(self.beside(), Ok(Some(_)))
    }

    /// A client of the S3 door.
    pub async fn client(&self, connections: usize) -> Outcome<Client> {
        match self.door(connections).await? {
            Door::S3(client) => Ok(client),
            Door::Direct(_) => Err(Failure::new(
                Exit::Failed,
                "the server has no S3 door that can be reached from here",
            )),
        }
    }

    /// The S3 door, or in place of one that is missing the gRPC door and a link.
    pub async fn door(&self, connections: usize) -> Outcome<Door> {
        let who = self.credentials()?;
        let doors = self.doors(who.endpoint.clone()).await?;
        let endpoint = match (doors.s3, doors.rpc) {
            (Some(s3), _) => s3,
            (None, Some(rpc)) => {
                // Only a session's answer tells where the S3 door is.
                let connect = async |path| {
                    let options = self.options(path)?;
                    let direct = direct::Client::connect(&rpc, &who.credentials, options);
                    Ok::<_, Failure>(direct.await)
                };
                let http = connect(Choice::Only(direct::Path::Http)).await?;
                let found = match http {
                    // By a link there is more to be known: whether the server is on this host.
                    Err(forebay_client::Error::Transport { .. }) => connect(Choice::Auto).await??,
                    http => http?,
                };
                match found.s3() {
                    Some(s3) => s3.endpoint().clone(),
                    None => return Ok(Door::Direct(found)),
                }
            }
            (None, None) => return Err(nowhere()),
        };
        self.client_of(endpoint, who, connections).map(Door::S3)
    }

    /// A client of this S3 door.
    fn client_of(&self, endpoint: Endpoint, who: Profile, connections: usize) -> Outcome<Client> {
        let mut config = Config::new(endpoint, who.credentials);
        config.session_token = who.session_token;
        config.region = self.region.clone();
        config.connections_max = connections;
        if let Some(ca) = &self.ca {
            config.tls = Some(Tls::new(Some(ca))?);
        }
        Ok(Client::new(config)?)
    }

    /// Clients for payloads that go by the best path that `path` allows, by so many links.
    pub async fn clients(
        &self,
        path: Choice,
        links: usize,
        connections: usize,
    ) -> Outcome<Clients> {
        if path == Choice::Only(direct::Path::Http) {
            let s3 = self.client(connections).await?;
            return Ok(Clients::by_http(s3, "asked for".to_owned()));
        }
        let who = self.credentials()?;
        let doors = self.doors(who.endpoint.clone()).await?;
        let Some(rpc) = doors.rpc else {
            let s3 = doors.s3.ok_or_else(nowhere)?;
            let why = format!("{s3} speaks S3 and no gRPC, by which links are made");
            return match path {
                Choice::Auto => {
                    let s3 = self.client_of(s3, who, connections)?;
                    Ok(Clients::by_http(s3, why))
                }
                Choice::Only(_) => Err(Failure::new(Exit::Failed, why)),
            };
        };
        let options = Options {
            links,
            ..self.options(path)?
        };
        let direct = direct::Client::connect(&rpc, &who.credentials, options).await;
        let direct = match (direct, doors.s3.clone()) {
            (Ok(direct), _) => direct,
            (Err(error), Some(s3))
                if path == Choice::Auto
                    && matches!(error, forebay_client::Error::Transport { .. }) =>
            {
                let s3 = self.client_of(s3, who, connections)?;
                return Ok(Clients::by_http(s3, error.to_string()));
            }
            (Err(error), _) => return Err(error.into()),
        };
        let s3 = doors
            .s3
            .or_else(|| direct.s3().map(|s3| s3.endpoint().clone()));
        let (s3, door) = match s3 {
            Some(s3) => {
                let s3 = self.client_of(s3, who, connections)?;
                (s3.clone(), Door::S3(s3))
            }
            None => {
                let why = "the server has no S3 door here, which this would need";
                (Client::missing(rpc, why), Door::Direct(direct.clone()))
            }
        };
        let direct = match (direct.path(), direct.fallback()) {
            (direct::Path::Http, Some(why)) => Err(why.to_string()),
            (direct::Path::Http, None) => Err("the server offers no link".to_owned()),
            _ => Ok(direct),
        };
        Ok(Clients { s3, door, direct })
    }

    /// The gRPC endpoint and who asks.
    pub async fn rpc(&self) -> Outcome<(Endpoint, Credentials)> {
        let Profile {
            credentials,
            endpoint,
            ..
        } = self.credentials()?;
        let doors = self.doors(endpoint).await?;
        match (doors.rpc, doors.s3) {
            (Some(rpc), _) => Ok((rpc, credentials)),
            (None, Some(s3)) => Err(Failure::new(
                Exit::Failed,
                format_args!("{s3} speaks S3 and no gRPC"),
            )),
            (None, None) => Err(nowhere()),
        }
    }

    /// How direct clients connect.
    pub fn options(&self, path: Choice) -> Outcome<Options> {
        let tls = match &self.ca {
            Some(ca) => Some(Tls::new(Some(ca))?),
            None => None,
        };
        Ok(Options {
            path,
            tls,
            region: self.region.clone(),
            ..Options::default()
        })
    }

    /// Where the doors are: as told, else as the server of the directory says. `named`: an S3 endpoint beside the credentials.
    async fn doors(&self, named: Option<String>) -> Outcome<Doors> {
        let wrong = |error| Failure::new(Exit::Usage, error);
        if let Some(endpoint) = &self.endpoint {
            let endpoint = endpoint.clone();
            return Ok(match self.speaks_grpc(&endpoint).await? {
                true => Doors {
                    rpc: Some(endpoint),
                    s3: None,
                },
                false => Doors {
                    rpc: None,
                    s3: Some(endpoint),
                },
            });
        }
        if let Some(named) = named {
            return Ok(Doors {
                rpc: None,
                s3: Some(named.parse().map_err(wrong)?),
            });
        }
        let dir = self.dir();
        let asked = here::ask::<api::Server>(&dir, Method::GET, &["server"], &());
        let server = match asked.await {
            Ok(server) => server,
            // Whoever names a directory means no other server of this host.
            Err(failure) if self.dir.is_some() => return Err(failure),
            Err(failure) => {
                let endpoint: Endpoint = DEFAULT_ENDPOINT.parse().map_err(wrong)?;
                if probe::is_closed(&endpoint).await {
                    let nor = format_args!("{failure}, and nothing answers at {endpoint}");
                    return Err(Failure::new(failure.exit, nor));
                }
                return Ok(Doors {
                    rpc: Some(endpoint),
                    s3: None,
                });
            }
        };
        let door = |name: &str| server.doors.get(name).map(|url| url.parse()).transpose();
        Ok(Doors {
            rpc: door("rpc").map_err(wrong)?,
            s3: door("s3").map_err(wrong)?,
        })
    }

    /// Whether an endpoint speaks gRPC and not S3.
    async fn speaks_grpc(&self, endpoint: &Endpoint) -> Outcome<bool> {
        let instead = |scheme: &str| format!("{scheme}://{}", endpoint.authority());
        let wrong = |why: String| {
            let why = format_args!("{endpoint}: {why}");
            Err(Failure::new(Exit::Usage, why))
        };
        match probe::spoken(endpoint, self.ca.as_deref()).await {
            Spoken::Http2 => Ok(true),
            Spoken::Http1 => Ok(false),
            Spoken::Tls => wrong(format!("this door speaks TLS: {}", instead("https"))),
            Spoken::Plaintext => wrong(format!("this door speaks no TLS: {}", instead("http"))),
            Spoken::Console => wrong("this is the console; name the gRPC or S3 door".to_owned()),
        }
    }

    fn credentials(&self) -> Outcome<Profile> {
        credentials::find(self.dir.as_deref(), self.profile.as_deref())
    }

    /// Whether --profile or the environment say who asks.
    pub fn is_told_who_asks(&self) -> bool {
        self.dir.is_none() && matches!(credentials::given(self.profile.as_deref()), Ok(Some(_)))
    }

    /// The S3 endpoint beside the credentials, where that is the server and not one that is told or uses the directory.
    fn beside(&self) -> Outcome<Option<String>> {
        match (&self.endpoint, &self.dir) {
            (None, None) => {
                let given = credentials::given(self.profile.as_deref())?;
                Ok(given.and_then(|given| given.endpoint))
            }
            _ => Ok(None),
        }
    }

    /// Calls the admin API: of the server that `--endpoint` names, by gRPC, else of the one that uses the directory, by its socket.
    /// `path`: the segments after `/v1`, names among them as they are.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        body: &impl Serialize,
    ) -> Outcome<T> {
        let Some(admin) = self.elsewhere().await? else {
            return here::ask(&self.dir(), method, path, body).await;
        };
        let odd = |error| Failure::new(Exit::Failed, error);
        let body = serde_json::to_value(body).map_err(odd)?;
        let answer = remote::ask(&admin, &method, path, body).await?;
        serde_json::from_value(answer).map_err(odd)
    }

    /// The server that is meant, when it is to be administered by gRPC. The default endpoint is tried for those who have
    /// credentials and no directory.
    async fn elsewhere(&self) -> Outcome<Option<Admin>> {
        let needs_rpc = |endpoint: &dyn std::fmt::Display| {
            Failure::new(
                Exit::Failed,
                format_args!(
                    "{endpoint} speaks S3 and no gRPC, by which a server elsewhere is administered"
                ),
            )
        };
        if let Some(named) = self.beside()? {
            return Err(needs_rpc(&format_args!("{named}, beside the credentials,")));
        }
        let endpoint = match (&self.endpoint, &self.dir) {
            (Some(endpoint), _) if self.speaks_grpc(endpoint).await? => endpoint.clone(),
            (None, None) if !may_be_there(&credentials_path(&self.dir())) => {
                let here = socket::connect(&self.dir()).await;
                // A server of somebody else is here, too: who asks it hears that.
                let is_here = match here {
                    Ok(_) => true,
                    Err(error) => error.kind() == ErrorKind::PermissionDenied,
                };
                if is_here || self.credentials().is_err() {
                    return Ok(None);
                }
                DEFAULT_ENDPOINT
                    .parse()
                    .map_err(|error| Failure::new(Exit::Usage, error))?
            }
            (_, Some(_)) | (None, None) => return Ok(None),
            (Some(endpoint), None) => return Err(needs_rpc(endpoint)),
        };
        let credentials = self.credentials()?.credentials;
        let options = self.options(Choice::Auto)?;
        Ok(Some(Admin::new(&endpoint, &credentials, &options)?))
    }
}
