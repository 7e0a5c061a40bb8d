//! Who calls: bearer tokens, client certificates, and what proves nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_api::v1;
use forebay_control::rpc::tls_config;
use forebay_proto::bearer;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::Channel;

use crate::harness::{Choice, Client, Door, START, refusal, refused};

const NOW_S: u64 = START / 1000;

async fn call(client: &mut Client) -> Result<(), tonic::Status> {
    let limits = client.admin.get_limits(v1::GetLimitsRequest {}).await;
    limits.map(|_| ())
}

#[tokio::test]
async fn what_proves_nothing_is_refused() {
    let door = Door::open().await;
    let key = door.identities.ensure_root(None).await.unwrap();
    let channel = door.channel().await;
    let good = bearer::make(&key.id, &key.secret, NOW_S + 60);
    let mut accepted = Client::raw(
        channel.clone(),
        String::new(),
        Some(format!("bEaReR {good}")),
    );
    call(&mut accepted).await.unwrap();

    let wrong_secret = bearer::make(&key.id, "another-secret", NOW_S + 60);
    let unknown = bearer::make("NOBODY", &key.secret, NOW_S + 60);
    let expired = bearer::make(&key.id, &key.secret, NOW_S);
    let eternal = bearer::make(&key.id, &key.secret, NOW_S + 365 * 86_400);
    let (head, _) = good.rsplit_once('.').unwrap();
    let mut words = Vec::new();
    for authorization in [
        None,
        Some(String::new()),
        Some("Bearer".into()),
        Some("Bearer ".into()),
        Some(format!("Basic {good}")),
        Some(good.clone()),
        Some(format!("Bearer {head}")),
        Some(format!("Bearer {}", "x".repeat(4000))),
        Some(format!("Bearer {expired}")),
        Some(format!("Bearer {eternal}")),
        Some(format!("Bearer {wrong_secret}")),
        Some(format!("Bearer {unknown}")),
    ] {
        let mut client = Client::raw(channel.clone(), String::new(), authorization.clone());
        let (code, reason, message) = refusal(call(&mut client).await);
        assert_eq!(code, Code::Unauthenticated, "{authorization:?}");
        assert_eq!(reason, "UNAUTHENTICATED");
        words.push(message);
    }
    let [.., wrong_secret, unknown] = words.as_slice() else {
        unreachable!()
    };
    assert_eq!(wrong_secret, unknown);
}

#[tokio::test]
async fn a_token_ends_with_its_time_and_with_its_key() {
    let door = Door::open().await;
    let mut red = door.tenant("red").await;
    call(&mut red).await.unwrap();
    door.hands.forward(Duration::from_secs(3600));
    refused(
        call(&mut red).await,
        Code::Unauthenticated,
        "UNAUTHENTICATED",
    );

    let mut again = door.tenant("red").await;
    call(&mut again).await.unwrap();
    door.identities.remove_key(&again.access_key).await.unwrap();
    refused(
        call(&mut again).await,
        Code::Unauthenticated,
        "UNAUTHENTICATED",
    );
}

#[tokio::test]
async fn every_service_asks_who_calls() {
    let door = Door::open().await;
    let nobody = Client::new(door.channel().await, String::new(), None);
    let (mut sessions, mut objects, mut watch) = (nobody.sessions, nobody.objects, nobody.watch);
    let unproved = (Code::Unauthenticated, "UNAUTHENTICATED");
    let opened = sessions.open(v1::OpenSessionRequest::default()).await;
    refused(opened, unproved.0, unproved.1);
    let listed = objects.list(v1::ListRequest::default()).await;
    refused(listed, unproved.0, unproved.1);
    let gathered = objects.gather(v1::GatherRequest::default()).await;
    refused(gathered, unproved.0, unproved.1);
    let watched = watch
        .namespaces(v1::WatchNamespacesRequest::default())
        .await;
    refused(watched, unproved.0, unproved.1);
}

/// An authority and what it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key, as PEM.
    fn sign(&self, names: Vec<SanType>) -> (String, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn of_key(&self, id: &str) -> (String, String) {
        self.sign(vec![uri(&format!("forebay:key/{id}"))])
    }
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

/// Dials by TLS.
#[derive(Clone)]
struct Dial {
    address: std::net::SocketAddr,
    config: Arc<ClientConfig>,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Dial { address, config } = self.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("localhost").unwrap();
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(TokioIo::new(stream))
        })
    }
}

struct Secured {
    door: Door,
    server: Authority,
    clients: Authority,
}

impl Secured {
    async fn open() -> Secured {
        let (server, clients) = (Authority::new(), Authority::new());
        let name = SanType::DnsName("localhost".try_into().unwrap());
        let (certificate, key) = server.sign(vec![name]);
        let authority = clients.pem();
        let tls = tls_config(
            certificate.as_bytes(),
            key.as_bytes(),
            Some(authority.as_bytes()),
        );
        let door = Door::choose(Choice {
            tls: Some(tls.unwrap()),
            ..Choice::default()
        })
        .await;
        Secured {
            door,
            server,
            clients,
        }
    }

    async fn client(
        &self,
        identity: Option<(String, String)>,
        token: Option<&str>,
    ) -> Result<Client, tonic::transport::Error> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.server.pem().as_bytes()).unwrap();
        roots.add(root).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let dial = Dial {
            address: self.door.address,
            config: Arc::new(config),
        };
        let endpoint = Channel::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(dial).await?;
        Ok(Client::new(channel, String::new(), token))
    }
}

#[tokio::test]
async fn a_certificate_names_an_access_key() {
    let secured = Secured::open().await;
    let identities = &secured.door.identities;
    identities.create_tenant("red", "").await.unwrap();
    let key = identities.create_key("red", None).await.unwrap();
    let identity = secured.clients.of_key(&key.id);
    let mut red = secured.client(Some(identity), None).await.unwrap();
    let tenants = red.admin.list_tenants(v1::ListTenantsRequest {}).await;
    let tenants = tenants.unwrap().into_inner().tenants;
    assert_eq!(tenants.len(), 1);
    assert_eq!(tenants[0].name, "red");

    // A key that is removed takes its certificate with it, on open connections too.
    identities.remove_key(&key.id).await.unwrap();
    refused(
        call(&mut red).await,
        Code::Unauthenticated,
        "UNAUTHENTICATED",
    );
}

#[tokio::test]
async fn tls_without_a_certificate_needs_a_token() {
    let secured = Secured::open().await;
    let mut nobody = secured.client(None, None).await.unwrap();
    refused(
        call(&mut nobody).await,
        Code::Unauthenticated,
        "UNAUTHENTICATED",
    );
    let key = secured.door.identities.ensure_root(None).await.unwrap();
    let token = bearer::make(&key.id, &key.secret, NOW_S + 60);
    let mut root = secured.client(None, Some(&token)).await.unwrap();
    call(&mut root).await.unwrap();
}

#[tokio::test]
async fn certificates_that_prove_nothing() {
    let secured = Secured::open().await;
    let key = secured.door.identities.ensure_root(None).await.unwrap();
    let named = format!("forebay:key/{}", key.id);
    for names in [
        vec![uri("forebay:key/NOBODY")],
        vec![uri("forebay:key/")],
        vec![uri(&format!("other:key/{}", key.id))],
        vec![uri(&named), uri("forebay:key/NOBODY")],
        vec![SanType::DnsName(key.id.to_lowercase().try_into().unwrap())],
    ] {
        let identity = secured.clients.sign(names.clone());
        let mut client = secured.client(Some(identity), None).await.unwrap();
        let (code, ..) = refusal(call(&mut client).await);
        assert_eq!(code, Code::Unauthenticated, "{names:?}");
    }
    // Signed by an authority that is not the clients': no call comes through.
    let foreign = Authority::new().of_key(&key.id);
    if let Ok(mut client) = secured.client(Some(foreign), None).await {
        call(&mut client).await.unwrap_err();
    }
    // A token that came must hold, whatever the certificate says.
    let identity = secured.clients.of_key(&key.id);
    let forged = bearer::make(&key.id, "another-secret", NOW_S + 60);
    let mut client = secured.client(Some(identity), Some(&forged)).await.unwrap();
    refused(
        call(&mut client).await,
        Code::Unauthenticated,
        "UNAUTHENTICATED",
    );
}

#[test]
fn wrong_pem_is_told() {
    let authority = Authority::new();
    let (certificate, key) = authority.of_key("KEY");
    let (certificate, key) = (certificate.as_bytes(), key.as_bytes());
    assert!(tls_config(certificate, key, None).is_ok());
    for (certificate, key, ca, named) in [
        (&b""[..], key, None, "certificate: "),
        (
            &b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"[..],
            key,
            None,
            "certificate: ",
        ),
        (certificate, &b"no key"[..], None, "key: "),
        (
            certificate,
            key,
            Some(&b"no authority"[..]),
            "client authority: ",
        ),
    ] {
        let error = tls_config(certificate, key, ca).unwrap_err().to_string();
        assert!(error.starts_with(named), "{error}");
    }
}
