"""boto3's low-level client, and the one way the tests look at a refusal."""

import contextlib
import uuid
from types import SimpleNamespace

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from conftest import connect, serving


@pytest.fixture
def client(s3):
    return connect(s3)


@pytest.fixture
def bucket(client):
    """A new bucket for one test, made by the client that it tests."""
    name = f"t-{uuid.uuid4().hex[:16]}"
    client.create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def boto():
    """`boto(s3, endpoint, style)`: boto3 as its users make it, whose bodies have a trailer over TLS and no signature of their own."""
    return lambda s3, endpoint, style: boto3.client(
        "s3", endpoint_url=endpoint, verify=getattr(s3, "ca", None), region_name=s3.region,
        aws_access_key_id=s3.access_key, aws_secret_access_key=s3.secret_key,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": style}, signature_version="s3v4"),
    )


@pytest.fixture(scope="session")
def serve(backends):
    """Starts servers beside the one that all tests share: their endpoint and keys."""
    with contextlib.ExitStack() as running:
        yield lambda *flags: running.enter_context(serving([*backends(f"sdk-{uuid.uuid4().hex[:8]}"), *flags]))


@pytest.fixture(scope="session")
def secured(serve, certificate):
    """A server whose S3 door speaks TLS, and what its clients are to trust."""
    return SimpleNamespace(**vars(serve(*certificate.flags)), ca=certificate.ca)


@pytest.fixture
def sent():
    """`sent(client)`: the requests that a client sends from now on, as they leave it."""

    def listen(client):
        requests = []
        client.meta.events.register("before-send.s3", lambda request, **_: requests.append(request))
        return requests

    return listen


@pytest.fixture
def refused():
    """`with refused("NoSuchKey", 404):` the block must fail with this code and status."""

    @contextlib.contextmanager
    def check(code, status):
        with pytest.raises(ClientError) as failure:
            yield failure
        answer = failure.value.response
        seen = (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"])
        # A HEAD has no body, so the SDK can only repeat the status as its code.
        assert seen in ((code, status), (str(status), status)), seen

    return check
