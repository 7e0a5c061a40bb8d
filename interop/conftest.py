"""What every client test needs: a running server, its keys, a fresh bucket, and bytes worth comparing."""

import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import uuid
from types import SimpleNamespace

import botocore.session
import pytest
from botocore.config import Config

from server import Server
from throwaway import Ceph, Unavailable

REGION = "us-east-1"
# What a server over Ceph may open once and keep: that library opens files when it likes.
SPARE_FILES = 8

# Proxies, bundles and profiles of the surrounding machine change what clients send.
for name in list(os.environ):
    if name.startswith("AWS_") or name.lower() in ("http_proxy", "https_proxy", "all_proxy"):
        del os.environ[name]
os.environ.update(
    NO_PROXY="127.0.0.1,localhost",
    AWS_EC2_METADATA_DISABLED="true",
    AWS_CONFIG_FILE="/dev/null",
    AWS_SHARED_CREDENTIALS_FILE="/dev/null",
    AWS_REGION=REGION,
    AWS_DEFAULT_REGION=REGION,
)


@contextlib.contextmanager
def folder():
    """A new folder. Its name is short: that of a socket in it is at most 107 bytes long."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="fb-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


@pytest.fixture
def scratch():
    with folder() as one:
        yield one


def binary():
    default = pathlib.Path(__file__).parent.parent / "target/debug/forebay"
    return pathlib.Path(os.environ.get("FOREBAY_BIN", default))


def examples():
    """Where the programs are that drive some of the tests."""
    return pathlib.Path(os.environ.get("FOREBAY_EXAMPLES", binary().parent / "examples"))


@pytest.fixture(scope="session")
def ceph():
    """A throwaway Ceph with three OSDs that keep what they had when they are killed: FOREBAY_INTEROP_CEPH names one of lab/ that runs already."""
    running = os.environ.get("FOREBAY_INTEROP_CEPH")
    try:
        cluster = Ceph.named(running) if running else Ceph(store="bluestore")
    except Unavailable as reason:
        pytest.skip(f"no Ceph: {reason}")
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def backends(request):
    """`backends(name)`: flags that say where a server keeps its data; FOREBAY_INTEROP_BACKEND=rados takes a place of that name in a
    throwaway Ceph."""
    if os.environ.get("FOREBAY_INTEROP_BACKEND") == "rados":
        return request.getfixturevalue("ceph").flags
    return lambda name: []


@pytest.fixture(scope="session")
def backend(backends):
    """The same for servers that may find what others stored."""
    return backends("clients")


@pytest.fixture(scope="session")
def s3(backend):
    """Endpoint and keys. FOREBAY_INTEROP_ENDPOINT names a server that runs already (keys test/test-secret)."""
    running = os.environ.get("FOREBAY_INTEROP_ENDPOINT")
    if running:
        os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test-secret")
        yield SimpleNamespace(endpoint=running, access_key="test", secret_key="test-secret", region=REGION)
        return
    with serving(backend) as one:
        os.environ.update(AWS_ACCESS_KEY_ID=one.access_key, AWS_SECRET_ACCESS_KEY=one.secret_key)
        yield one


@contextlib.contextmanager
def serving(flags):
    """Endpoint and keys of a server. In the end it holds nothing for clients that are gone."""
    with folder() as scratch:
        server = Server(binary(), scratch / "data", flags=flags).start()
        try:
            access_key, secret_key = server.keys
            before = server.held()
            yield SimpleNamespace(
                endpoint=server.endpoint, access_key=access_key, secret_key=secret_key, region=REGION
            )
            server.settled(before, SPARE_FILES if "--backend" in flags else 0)
        finally:
            server.stop()


@pytest.fixture(scope="session")
def certificate():
    """Files of a certificate for this host and its key, the flags that have the S3 door use them, and the authority to trust."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    with folder() as place:
        def openssl(*words):
            command = ["openssl", *map(str, words)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}: {done.stderr}"

        ca, cert, key = place / "ca.pem", place / "cert.pem", place / "key.pem"
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl("req", "-x509", *curve, "-days", 2, "-subj", "/CN=interop", "-keyout", place / "ca.key", "-out", ca)
        openssl("req", *curve, "-subj", "/CN=forebay", "-keyout", key, "-out", place / "asked")
        (place / "names").write_text(
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\nauthorityKeyIdentifier=keyid\n"
        )
        openssl("x509", "-req", "-in", place / "asked", "-CA", ca, "-CAkey", place / "ca.key", "-CAcreateserial",
                "-days", 2, "-extfile", place / "names", "-out", cert)
        yield SimpleNamespace(ca=str(ca), flags=["--s3-tls-cert", str(cert), "--s3-tls-key", str(key)])


@pytest.fixture
def bucket(s3):
    """A new bucket for one test."""
    name = f"t-{uuid.uuid4().hex[:16]}"
    connect(s3).create_bucket(Bucket=name)
    return name


@pytest.fixture
def plain(s3):
    """A botocore client, which every group has: to look at what another client left behind."""
    return connect(s3)


def connect(s3, access_key=None, secret_key=None, **config):
    """A client that neither retries nor guesses: what the server says is what the test sees."""
    config.setdefault("retries", {"total_max_attempts": 1})
    config.setdefault("s3", {"addressing_style": "path"})
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=s3.endpoint,
        aws_access_key_id=access_key or s3.access_key,
        aws_secret_access_key=secret_key or s3.secret_key,
        region_name=s3.region,
        config=Config(**config),
        verify=getattr(s3, "ca", None),
    )


@pytest.fixture(scope="session")
def data():
    """`data(n)`: n bytes that repeat nowhere, the same in every run."""
    return lambda size, seed=1: random.Random(seed).randbytes(size)
