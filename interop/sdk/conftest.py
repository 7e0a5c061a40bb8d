"""boto3's low-level client, and the one way the tests look at a refusal."""

import contextlib
import uuid
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from conftest import connect, serving


@pytest.fixture
def client(s3):
    return connect(s3)


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
