//! The gRPC side: a channel, the session's life, and calls that move no payload.

use std::fmt;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay_api::v1;
use forebay_api::v1::admin_client::AdminClient;
use forebay_api::v1::execution_client::ExecutionClient;
use forebay_api::v1::objects_client::ObjectsClient;
use forebay_api::v1::sessions_client::SessionsClient;
use forebay_fabric::SessionId;
use forebay_proto::bearer;
use forebay_proto::direct::Hop;
use futures_util::future::BoxFuture;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint as Address};
use tonic::{Code, Request, Status};

use super::values::{Condition, Put};
use crate::connect::explained;
use crate::{Attributes, Crc64, Credentials, Endpoint, Error, Refusal, Result, Tls};

/// How long a proof of identity is good.
const BEARER_S: u64 = 300;
/// Signs of life are not asked for more often than this, nor waited for less.
const ALIVE_MIN: Duration = Duration::from_secs(1);
/// The longest answer: a page of 1000 keys of 1 KiB stays below.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// A gRPC endpoint and who asks.
#[derive(Debug, Clone)]
pub(crate) struct Rpc {
    channel: Channel,
    endpoint: Endpoint,
    credentials: Credentials,
}

/// What opening a session told.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) session: [u8; 16],
    pub(crate) key: [u8; 32],
    pub(crate) lease: Duration,
    /// The best first.
    pub(crate) paths: Vec<v1::Path>,
}

/// Without the key.
impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("session", &SessionId(self.session))
            .field("lease", &self.lease)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

impl Rpc {
    /// A channel to `endpoint`; nothing is sent before the first call. A server that is silent is asked for a sign of life, and its
    /// connection given up, early enough that a call made on it can be made once more within `timeout`.
    pub(crate) fn new(
        endpoint: &Endpoint,
        credentials: &Credentials,
        tls: Option<&Tls>,
        timeout: Duration,
    ) -> Result<Rpc> {
        let wrong = |error: tonic::transport::Error| Error::Transport {
            endpoint: endpoint.to_string(),
            what: error.to_string(),
        };
        // The connector itself makes it secure.
        let plain = format!("http://{}", endpoint.authority());
        let address = Address::from_shared(plain)
            .map_err(wrong)?
            .connect_timeout(timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval((timeout / 3).max(ALIVE_MIN))
            .keep_alive_timeout((timeout / 6).max(ALIVE_MIN))
            .keep_alive_while_idle(true);
        let channel = match endpoint.secure() {
            false => address.connect_lazy(),
            true => {
                let tls = match tls {
                    Some(tls) => tls.clone(),
                    None => Tls::new(None)?,
                };
                let secure = Secure {
                    endpoint: endpoint.clone(),
                    connector: tls.speaking(b"h2"),
                };
                address.connect_with_connector_lazy(secure)
            }
        };
        Ok(Rpc {
            channel,
            endpoint: endpoint.clone(),
            credentials: credentials.clone(),
        })
    }

    pub(crate) async fn open(&self, lease: Duration) -> Result<Opened> {
        let request = v1::OpenSessionRequest {
            lease_ms: millis(lease),
        };
        let opened = self
            .sessions()
            .open(self.signed(request)?)
            .await
            .map_err(|status| self.refused(&status))?
            .into_inner();
        let odd = || Error::Protocol("a session without id or key".to_owned());
        Ok(Opened {
            session: opened.session.as_ref().try_into().map_err(|_| odd())?,
            key: opened.key.as_ref().try_into().map_err(|_| odd())?,
            lease: Duration::from_millis(opened.lease_ms.max(1)),
            paths: opened.paths,
        })
    }

    /// Begins the lease again; false when the session is no more.
    pub(crate) async fn keep_alive(&self, session: &[u8; 16], lease: Duration) -> Result<bool> {
        let request = self.signed(v1::KeepAliveRequest {
            session: Bytes::copy_from_slice(session),
            lease_ms: millis(lease),
        })?;
        match self.sessions().keep_alive(request).await {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::NotFound => Ok(false),
            Err(status) => Err(self.refused(&status)),
        }
    }

    pub(crate) async fn close(&self, session: &[u8; 16]) -> Result<()> {
        let request = self.signed(v1::CloseSessionRequest {
            session: Bytes::copy_from_slice(session),
        })?;
        let closed = self.sessions().close(request).await;
        closed.map(drop).map_err(|status| self.refused(&status))
    }

    pub(crate) async fn stat(&self, namespace: &str, key: &[u8]) -> Result<v1::ObjectInfo> {
        Ok(self.described(namespace, key).await?.0)
    }

    /// What is known of a value, and what is kept with it.
    pub(crate) async fn described(
        &self,
        namespace: &str,
        key: &[u8],
    ) -> Result<(v1::ObjectInfo, v1::Attributes)> {
        let request = self.signed(v1::StatRequest {
            namespace: namespace.to_owned(),
            key: Bytes::copy_from_slice(key),
            version: None,
        })?;
        let answer = self.objects().stat(request).await;
        let answer = answer.map_err(|status| self.refused(&status))?.into_inner();
        let odd = || Error::Protocol("a value without metadata".to_owned());
        let object = answer.object.ok_or_else(odd)?;
        Ok((object, answer.attributes.unwrap_or_default()))
    }

    /// Bytes of a value in the answer: from the first given on, so many at most.
    pub(crate) async fn retrieve(
        &self,
        namespace: &str,
        key: &[u8],
        (offset, length): (u64, u64),
    ) -> Result<v1::RetrieveResponse> {
        let request = self.signed(v1::RetrieveRequest {
            namespace: namespace.to_owned(),
            key: Bytes::copy_from_slice(key),
            range: Some(v1::Range { offset, length }),
            checksum: true,
            ..v1::RetrieveRequest::default()
        })?;
        let answer = self.objects().retrieve(request).await;
        Ok(answer.map_err(|status| self.refused(&status))?.into_inner())
    }

    /// Stores these bytes as the put says; returns the entity tag.
    pub(crate) async fn store(
        &self,
        namespace: &str,
        put: &Put<'_>,
        bytes: Bytes,
        crc: Crc64,
    ) -> Result<String> {
        let rule = match put.condition {
            Condition::None => None,
            Condition::IfAbsent => Some(v1::condition::Rule::IfAbsent(true)),
            Condition::IfPresent => Some(v1::condition::Rule::IfPresent(true)),
            Condition::IfMatch(etag) => Some(v1::condition::Rule::IfMatch(etag.to_owned())),
        };
        let request = self.signed(v1::StoreRequest {
            namespace: namespace.to_owned(),
            key: Bytes::copy_from_slice(put.key),
            source: Some(v1::store_request::Source::Data(bytes)),
            condition: rule.map(|rule| v1::Condition { rule: Some(rule) }),
            expires_ms: put.expires_ms,
            crc64nvme: Some(crc.value()),
            attributes: put.attributes.map(Attributes::message),
            ..v1::StoreRequest::default()
        })?;
        let answer = self.objects().store(request).await;
        let answer = answer.map_err(|status| self.refused(&status))?.into_inner();
        Ok(answer.object.unwrap_or_default().etag)
    }

    /// For each key the size of its value.
    pub(crate) async fn exist(
        &self,
        namespace: &str,
        keys: Vec<Bytes>,
    ) -> Result<Vec<Option<u64>>> {
        let count = keys.len();
        let request = self.signed(v1::ExistRequest {
            namespace: namespace.to_owned(),
            keys,
            sizes: true,
        })?;
        let answer = self
            .objects()
            .exist(request)
            .await
            .map_err(|status| self.refused(&status))?
            .into_inner();
        if answer.found.len() != count || answer.sizes.len() != count {
            return Err(Error::Protocol("other keys were answered".to_owned()));
        }
        let found = answer.found.into_iter().zip(answer.sizes);
        Ok(found.map(|(found, size)| found.then_some(size)).collect())
    }

    pub(crate) async fn longest_prefix(&self, namespace: &str, keys: Vec<Bytes>) -> Result<usize> {
        let request = self.signed(v1::LongestPrefixRequest {
            namespace: namespace.to_owned(),
            keys,
        })?;
        let answer = self.objects().longest_prefix(request).await;
        let answer = answer.map_err(|status| self.refused(&status))?;
        Ok(answer.into_inner().found as usize)
    }

    pub(crate) async fn list(&self, request: v1::ListRequest) -> Result<v1::ListResponse> {
        let answer = self.objects().list(self.signed(request)?).await;
        Ok(answer.map_err(|status| self.refused(&status))?.into_inner())
    }

    pub(crate) async fn delete(&self, namespace: &str, key: &[u8]) -> Result<bool> {
        let request = self.signed(v1::DeleteRequest {
            namespace: namespace.to_owned(),
            key: Bytes::copy_from_slice(key),
            ..v1::DeleteRequest::default()
        })?;
        let answer = self.objects().delete(request).await;
        let answer = answer.map_err(|status| self.refused(&status))?;
        Ok(answer.into_inner().existed)
    }

    /// Makes a namespace of the caller's tenant; false when there is one of that name.
    pub(crate) async fn create_namespace(&self, name: &str, relaxed_ms: u32) -> Result<bool> {
        let request = self.signed(v1::CreateNamespaceRequest {
            name: name.to_owned(),
            tenant: String::new(),
            config: Some(v1::NamespaceChange {
                durability: Some(v1::Durability { relaxed_ms }),
                ..v1::NamespaceChange::default()
            }),
        })?;
        let mut admin = self.admin();
        match admin.create_namespace(request).await {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::AlreadyExists => Ok(false),
            Err(status) => Err(self.refused(&status)),
        }
    }

    pub(crate) async fn remove_namespace(&self, name: &str) -> Result<()> {
        let request = self.signed(v1::RemoveNamespaceRequest {
            name: name.to_owned(),
        })?;
        let mut admin = self.admin();
        let removed = admin.remove_namespace(request).await;
        removed.map(drop).map_err(|status| self.refused(&status))
    }

    pub(crate) fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.channel.clone())
    }

    /// Functions' outputs come in parts of 1 MiB; lists of modules may be longer.
    pub(crate) fn execution(&self) -> ExecutionClient<Channel> {
        ExecutionClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn sessions(&self) -> SessionsClient<Channel> {
        SessionsClient::new(self.channel.clone())
    }

    fn objects(&self) -> ObjectsClient<Channel> {
        ObjectsClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// The request with the proof of who asks.
    pub(crate) fn signed<T>(&self, message: T) -> Result<Request<T>> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_secs());
        let token = bearer::make(
            &self.credentials.access_key,
            &self.credentials.secret_key,
            now + BEARER_S,
        );
        let value = MetadataValue::try_from(format!("Bearer {token}"))
            .map_err(|error| Error::Protocol(error.to_string()))?;
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }

    pub(crate) fn refused(&self, status: &Status) -> Error {
        let lost = || Error::Transport {
            endpoint: self.endpoint.to_string(),
            what: match std::error::Error::source(status) {
                Some(source) => crate::client::cause(source),
                None => status.message().to_owned(),
            },
        };
        let reason = status
            .metadata()
            .get(forebay_api::REASON_METADATA)
            .and_then(|reason| reason.to_str().ok());
        let Some(reason) = reason else {
            // Nobody answered, or somebody who is no Forebay server.
            return lost();
        };
        let http = match (v1::Reason::from_str_name(reason), status.code()) {
            (Some(v1::Reason::Corrupt), _) => {
                let place = Hop::Storage.describe();
                return Error::Corrupt(format!("bytes changed {place}: {}", status.message()));
            }
            // The server names the hop.
            (Some(v1::Reason::Checksum), _) => {
                return Error::Corrupt(status.message().to_owned());
            }
            (Some(v1::Reason::LinkLost), _) => return lost(),
            (Some(v1::Reason::Stopped), _) => 429,
            (Some(v1::Reason::Quota | v1::Reason::TooLarge), _) => 413,
            (Some(v1::Reason::NoSpace | v1::Reason::ReadOnly), _) => 507,
            (_, Code::NotFound) => 404,
            (_, Code::Unauthenticated | Code::PermissionDenied) => 403,
            (_, Code::AlreadyExists) => 409,
            (_, Code::FailedPrecondition) => 412,
            (_, Code::OutOfRange) => 416,
            (_, Code::InvalidArgument) => 400,
            (_, Code::ResourceExhausted | Code::Unavailable) => 503,
            (_, Code::Unimplemented) => 501,
            _ => 520,
        };
        Error::Refused(Refusal {
            status: http,
            code: reason.trim_start_matches("REASON_").to_ascii_lowercase(),
            message: status.message().to_owned(),
            resource: String::new(),
            request_id: String::new(),
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Makes TLS connections for the channel.
#[derive(Clone)]
struct Secure {
    endpoint: Endpoint,
    connector: TlsConnector,
}

impl Service<Uri> for Secure {
    type Response = TokioIo<tokio_rustls::client::TlsStream<TcpStream>>;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, std::io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Secure {
            endpoint,
            connector,
        } = self.clone();
        Box::pin(async move {
            let stream = TcpStream::connect((endpoint.host(), endpoint.port())).await?;
            stream.set_nodelay(true)?;
            let name =
                ServerName::try_from(endpoint.host().to_owned()).map_err(std::io::Error::other)?;
            let connected = connector.connect(name, stream).await;
            Ok(TokioIo::new(connected.map_err(explained)?))
        })
    }
}
