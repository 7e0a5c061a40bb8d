"""boto3's low-level client, and the one way the tests look at a refusal."""

import contextlib

import pytest
from botocore.exceptions import ClientError

from conftest import connect


@pytest.fixture
def client(s3):
    return connect(s3)


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
