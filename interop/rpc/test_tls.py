"""TLS and client certificates, made with another implementation than the server's."""

import datetime

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rpc_interface import Interface, bearer

HOUR = datetime.timedelta(hours=1)


class Authority:
    def __init__(self, name):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = self.build(self.name, self.key).add_extension(constraints, True).sign(self.key, hashes.SHA256())

    def build(self, subject, key):
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(now - HOUR).not_valid_after(now + HOUR)
        )

    @property
    def pem(self):
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def sign(self, *names):
        """A certificate for these names and its key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
        signed = self.build(subject, key).add_extension(x509.SubjectAlternativeName(names), False).sign(self.key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption(),
        )
        return signed.public_bytes(serialization.Encoding.PEM), private


@pytest.fixture(scope="module")
def secured(serve, scratch):
    """A server with TLS, what it trusts, and a way to connect to it."""
    servers, clients = Authority("servers"), Authority("clients")
    certificate, key = servers.sign(x509.DNSName("localhost"))
    files = {"cert": certificate, "key": key, "ca": clients.pem}
    for name, pem in files.items():
        (scratch / name).write_bytes(pem)
    server = serve(
        "--rpc-tls-cert", str(scratch / "cert"), "--rpc-tls-key", str(scratch / "key"),
        "--rpc-client-ca", str(scratch / "ca"),
    )
    channels = []

    def connect(identity=(None, None), token=None):
        credentials = grpc.ssl_channel_credentials(servers.pem, identity[1], identity[0])
        # One certificate a channel: Python would share the connection.
        options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        channels.append(grpc.secure_channel(server.rpc, credentials, options))
        return Interface(channels[-1], token)

    connect.server, connect.clients = server, clients
    yield connect
    for channel in channels:
        channel.close()


def named(access_key):
    return x509.UniformResourceIdentifier(f"forebay:key/{access_key}")


def test_a_token_over_tls(secured):
    root = secured(token=bearer(*secured.server.keys))
    assert root.call("Admin.GetServer").pid == secured.server.process.pid


def test_a_certificate_is_an_access_key(secured):
    root = secured(token=bearer(*secured.server.keys))
    root.call("Admin.CreateTenant", name="green")
    key = root.call("Admin.CreateKey", tenant="green")
    green = secured(secured.clients.sign(named(key.access_key)))
    assert [one.name for one in green.call("Admin.ListTenants").tenants] == ["green"]
    session = green.call("Sessions.Open").session
    assert root.refusal("Sessions.Close", session=session)[0] == grpc.StatusCode.NOT_FOUND
    root.call("Admin.RemoveKey", access_key=key.access_key)
    unproved = (grpc.StatusCode.UNAUTHENTICATED, "REASON_UNAUTHENTICATED")
    assert green.refusal("Admin.ListTenants") == unproved


def test_certificates_that_prove_nothing(secured):
    access_key, _ = secured.server.keys
    unproved = (grpc.StatusCode.UNAUTHENTICATED, "REASON_UNAUTHENTICATED")
    assert secured().refusal("Admin.GetLimits") == unproved
    assert secured(secured.clients.sign(named("NOBODY"))).refusal("Admin.GetLimits") == unproved
    assert secured(secured.clients.sign(x509.DNSName(access_key.lower()))).refusal("Admin.GetLimits") == unproved
    stranger = secured(Authority("strangers").sign(named(access_key)))
    with pytest.raises(Exception):
        stranger.call("Admin.GetLimits")


def test_plaintext_is_not_spoken(secured):
    with grpc.insecure_channel(secured.server.rpc) as channel, pytest.raises(grpc.RpcError) as refused:
        Interface(channel).services()
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
