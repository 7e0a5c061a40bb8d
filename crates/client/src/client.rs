//! One endpoint, one identity: signs, sends, tries again.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay_proto::s3::percent::{self, Slash};
use forebay_proto::s3::sigv4::{self, AmzDate, CredentialScope, SigningKey};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::connect::{Lease, Pool, Tls};
use crate::direct::time_for;
use crate::{Config, Credentials, Endpoint, Error, Refusal, Result, answers};

/// The longest XML answer that is read: a page of 1000 long keys stays far below.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// The first pause before another attempt; each later one is twice as long, up to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// An S3 client. Cloning shares its connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// How often a call is made in all before it fails.
    attempts: u32,
    /// Which version of an object is meant where one is read, deleted or copied from; the current one without.
    version: Option<Arc<str>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

struct Inner {
    config: Config,
    /// Why no call can be made.
    missing: Option<String>,
    pool: Arc<Pool>,
    /// The signing key of a day.
    signing: Mutex<Option<(String, SigningKey)>>,
}

/// A call, before it is signed.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) namespace: &'a str,
    pub(crate) key: &'a str,
    /// Encoded, without `?`.
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Whether making it twice is the same as making it once.
    pub(crate) repeatable: bool,
    /// How many bytes the server moves before it answers, beside the body's.
    pub(crate) moves: u64,
}

impl<'a> Call<'a> {
    /// About a namespace; about none when its name is empty.
    pub(crate) fn namespace(method: Method, namespace: &'a str) -> Call<'a> {
        Call::about(method, namespace, "")
    }

    /// About an object. One without a key is refused: the server would take the call for one about the namespace.
    pub(crate) fn object(method: Method, namespace: &'a str, key: &'a str) -> Result<Call<'a>> {
        match key {
            "" => Err(Error::Local {
                what: format!("namespace {namespace}"),
                source: std::io::Error::other("an object needs a key, and this one is empty"),
            }),
            key => Ok(Call::about(method, namespace, key)),
        }
    }

    fn about(method: Method, namespace: &'a str, key: &'a str) -> Call<'a> {
        Call {
            method,
            namespace,
            key,
            query: String::new(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            repeatable: true,
            moves: 0,
        }
    }

    /// Adds a query parameter; the value is encoded here.
    pub(crate) fn query(mut self, name: &str, value: &(impl AsRef<[u8]> + ?Sized)) -> Call<'a> {
        if !self.query.is_empty() {
            self.query.push('&');
        }
        self.query.push_str(name);
        self.query.push('=');
        percent::encode_into(&mut self.query, value.as_ref(), Slash::Encode);
        self
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Result<Call<'a>> {
        let (name, value) = legal(name, value)?;
        self.headers.insert(name, value);
        Ok(self)
    }

    pub(crate) fn body(mut self, body: Bytes) -> Call<'a> {
        self.body = body;
        self
    }

    /// As it stands in the request line.
    pub(crate) fn path(&self) -> String {
        let mut path = String::with_capacity(2 + self.namespace.len() + self.key.len());
        path.push('/');
        percent::encode_into(&mut path, self.namespace.as_bytes(), Slash::Encode);
        if !self.key.is_empty() {
            path.push('/');
            percent::encode_into(&mut path, self.key.as_bytes(), Slash::Keep);
        }
        path
    }
}

/// The head of a successful answer; the body is still to come.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Incoming,
    pub(crate) lease: Lease,
    /// How long its text may take.
    pub(crate) patience: Duration,
}

impl Client {
    /// A client; nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Local`] when TLS is needed and the machine trusts nobody.
    pub fn new(mut config: Config) -> Result<Client> {
        if config.endpoint.secure() && config.tls.is_none() {
            config.tls = Some(Tls::new(None)?);
        }
        let pool = Arc::new(Pool::new(
            config.endpoint.clone(),
            config.tls.clone(),
            config.timeout,
            config.connections_max,
        ));
        Ok(Client {
            attempts: config.attempts,
            version: None,
            inner: Arc::new(Inner {
                config,
                missing: None,
                pool,
                signing: Mutex::default(),
            }),
        })
    }

    /// A client of a door that is not there: every call fails at once and says `why`. For whoever needs S3 for some calls only.
    pub fn missing(endpoint: Endpoint, why: &str) -> Client {
        let nobody = Credentials {
            access_key: String::new(),
            secret_key: String::new(),
        };
        let config = Config {
            attempts: 1,
            ..Config::new(endpoint, nobody)
        };
        let pool = Pool::new(config.endpoint.clone(), None, config.timeout, 1);
        Client {
            attempts: config.attempts,
            version: None,
            inner: Arc::new(Inner {
                config,
                missing: Some(why.to_owned()),
                pool: Arc::new(pool),
                signing: Mutex::default(),
            }),
        }
    }

    /// Whether every call fails.
    pub(crate) fn is_missing(&self) -> bool {
        self.inner.missing.is_some()
    }

    /// Where it sends to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.config.endpoint
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.inner.config.timeout
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The same over the same connections, for callers that make calls again themselves.
    pub fn trying_once(&self) -> Client {
        Client {
            attempts: 1,
            ..self.clone()
        }
    }

    /// The same over the same connections, for one version of an object: what reads, deletes and copies from an object is about that
    /// version, [`Client::versions`] says which there are. What is stored is not.
    pub fn at_version(&self, id: &str) -> Client {
        Client {
            version: Some(id.into()),
            ..self.clone()
        }
    }

    /// The version that is meant.
    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// A call about the version that is meant.
    pub(crate) fn versioned<'a>(&self, call: Call<'a>) -> Call<'a> {
        match &self.version {
            Some(id) => call.query("versionId", &**id),
            None => call,
        }
    }

    pub(crate) fn lost(&self, what: impl fmt::Display) -> Error {
        self.inner.pool.lost(what)
    }

    /// Makes a call until it succeeds, fails for good, or the attempts are used up.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Answer> {
        let mut attempt = 1;
        loop {
            match self.once(&call).await {
                Err(error)
                    if attempt < self.attempts()
                        && error.is_transient()
                        && (call.repeatable || error.is_undone()) =>
                {
                    pause(attempt).await;
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// As `call`, for answers that are XML or nothing.
    pub(crate) async fn call_for_text(&self, call: Call<'_>) -> Result<(HeaderMap, String)> {
        let answer = self.call(call).await?;
        let headers = answer.headers.clone();
        let text = self.text(answer).await?;
        Ok((headers, text))
    }

    /// As `call_for_text`, without another attempt.
    pub(crate) async fn call_once_for_text(&self, call: Call<'_>) -> Result<(HeaderMap, String)> {
        let answer = self.once(&call).await?;
        let headers = answer.headers.clone();
        let text = self.text(answer).await?;
        Ok((headers, text))
    }

    async fn once(&self, call: &Call<'_>) -> Result<Answer> {
        if let Some(why) = &self.inner.missing {
            return Err(self.lost(why));
        }
        let mut fresh = false;
        loop {
            let lease = self.inner.pool.take(fresh).await?;
            let reused = lease.reused;
            match self.send(call, lease).await {
                // The server closed a kept connection: that is no failed attempt.
                Err(Error::Transport { .. }) if reused && call.repeatable => fresh = true,
                other => return other,
            }
        }
    }

    async fn send(&self, call: &Call<'_>, mut lease: Lease) -> Result<Answer> {
        let request = self.signed(call)?;
        let patience = self.patience(call);
        let sent = async {
            // A kept connection may still owe the server what that does not read any more.
            lease.sender.ready().await?;
            lease.sender.send_request(request).await
        };
        let response = tokio::time::timeout(patience, sent)
            .await
            .map_err(|_| Error::TimedOut(patience))?
            .map_err(|error| self.lost(cause(&error)))?;
        let (head, body) = response.into_parts();
        let answer = Answer {
            status: head.status,
            headers: head.headers,
            body,
            lease,
            patience,
        };
        if answer.status.is_success() {
            return Ok(answer);
        }
        Err(self.refusal(call, answer).await)
    }

    async fn refusal(&self, call: &Call<'_>, answer: Answer) -> Error {
        let status = answer.status;
        let request_id = header(&answer.headers, "x-amz-request-id");
        let text = if call.method == Method::HEAD {
            answer.lease.done();
            String::new()
        } else {
            // A refused body is not read by the server, which then closes: what it said may be lost with it.
            self.text(answer).await.unwrap_or_default()
        };
        Error::Refused(
            answers::refusal(&text)
                .unwrap_or_else(|| Refusal {
                    status: status.as_u16(),
                    code: status
                        .canonical_reason()
                        .unwrap_or("Error")
                        .replace(' ', ""),
                    message: format!("HTTP status {}", status.as_u16()),
                    resource: call.path(),
                    request_id,
                })
                .with_status(status.as_u16()),
        )
    }

    /// How long the server may take to answer a call, or to finish an answer that it began at once.
    fn patience(&self, call: &Call<'_>) -> Duration {
        time_for(self.timeout(), call.moves + call.body.len() as u64)
    }

    async fn text(&self, answer: Answer) -> Result<String> {
        let collected = Limited::new(answer.body, ANSWER_BYTES_MAX).collect();
        let bytes = tokio::time::timeout(answer.patience, collected)
            .await
            .map_err(|_| Error::TimedOut(answer.patience))?
            .map_err(|error| self.lost(error))?
            .to_bytes();
        answer.lease.done();
        String::from_utf8(bytes.into()).map_err(|_| Error::Protocol("not UTF-8".to_owned()))
    }

    fn signed(&self, call: &Call<'_>) -> Result<Request<Full<Bytes>>> {
        let config = &self.inner.config;
        let date = AmzDate::from_unix_s(unix_s());
        let payload_hash = if call.body.is_empty() {
            sigv4::EMPTY_SHA256.to_owned()
        } else if config.endpoint.secure() || config.endpoint.is_loopback() {
            sigv4::UNSIGNED_PAYLOAD.to_owned()
        } else {
            forebay_proto::hex::encode(&Sha256::digest(&call.body))
        };
        let mut headers = call.headers.clone();
        let text = |text: &str| {
            HeaderValue::from_str(text).map_err(|_| Error::Protocol("header".to_owned()))
        };
        headers.insert(HOST, text(&config.endpoint.authority())?);
        headers.insert("x-amz-date", text(date.as_str())?);
        headers.insert("x-amz-content-sha256", text(&payload_hash)?);
        if let Some(token) = &config.session_token {
            let mut token = text(token)?;
            token.set_sensitive(true);
            headers.insert("x-amz-security-token", token);
        }
        let mut names: Vec<&str> = headers
            .keys()
            .map(HeaderName::as_str)
            .filter(|name| *name == "host" || name.starts_with("x-amz-"))
            .collect();
        names.sort_unstable();
        let names = names.join(";");
        let path = call.path();
        let scope = CredentialScope::new(&config.credentials.access_key, &date, &config.region);
        let signature = sigv4::sign(
            &sigv4::Request {
                method: call.method.as_str(),
                path: &path,
                query: &call.query,
                headers: &headers,
            },
            &names,
            &payload_hash,
            &date,
            &scope,
            &self.signing_key(&date),
        );
        let authorization = sigv4::authorization_header(&scope, &names, &signature);
        headers.insert(AUTHORIZATION, text(&authorization)?);
        if !call.body.is_empty() || matches!(call.method, Method::PUT | Method::POST) {
            headers.insert(CONTENT_LENGTH, call.body.len().into());
        }
        let target = match call.query.as_str() {
            "" => path,
            query => format!("{path}?{query}"),
        };
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(target)
            .body(Full::new(call.body.clone()))
            .map_err(|error| Error::Protocol(error.to_string()))?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    pub(crate) fn signing_key(&self, date: &AmzDate) -> SigningKey {
        let config = &self.inner.config;
        let mut signing = self.inner.signing.lock();
        match &*signing {
            Some((day, key)) if day == date.date() => key.clone(),
            _ => {
                let secret = &config.credentials.secret_key;
                let key = SigningKey::derive(secret, date.date(), &config.region, "s3");
                *signing = Some((date.date().to_owned(), key.clone()));
                key
            }
        }
    }
}

/// A header, if it is one.
pub(crate) fn legal(name: &str, value: &str) -> Result<(HeaderName, HeaderValue)> {
    let wrong = || Error::Local {
        what: format!("header {name}"),
        source: std::io::Error::other("not a legal header"),
    };
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
    let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| wrong())?;
    Ok((header, value))
}

/// Waits before another attempt: twice as long each time, and never exactly as long as everybody else.
pub(crate) async fn pause(attempt: u32) {
    let doubled = PAUSE_FIRST.saturating_mul(1 << attempt.min(16).saturating_sub(1));
    let jitter = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.subsec_nanos() % 64);
    tokio::time::sleep(doubled.min(PAUSE_MAX) + Duration::from_millis(u64::from(jitter))).await;
}

pub(crate) fn header(headers: &HeaderMap, name: &str) -> String {
    headers
        .get(name)
        .and_then(|value| std::str::from_utf8(value.as_bytes()).ok())
        .unwrap_or_default()
        .to_owned()
}

/// What is behind an error of a connection: what every layer in between calls it hides the system's own words.
pub(crate) fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

pub(crate) fn unix_s() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_secs() as i64)
}
