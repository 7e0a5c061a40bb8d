"""boto3 with one header more: a GET and a PUT whose payload goes straight between the server and registered memory.

The memory is that of `crates/client/examples/s3_token.rs`, which lends tokens over its standard input and output.
"""

import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from conftest import connect, examples

MIB = 1 << 20
REGION_BYTES = 8 * MIB
HEADER = "x-amz-rdma-token"


class Memory:
    """Registered memory, and tokens that name parts of it."""

    def __init__(self, server, path):
        command = [examples() / "s3_token", server.endpoint, *server.keys, REGION_BYTES, path]
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline().strip() == f"ready {path}"

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert not answer.startswith("error"), answer
        return answer

    def load(self, offset, data, folder):
        (folder / "load").write_bytes(data)
        self.ask("load", offset, folder / "load")

    def save(self, offset, length, folder):
        self.ask("save", offset, length, folder / "save")
        return (folder / "save").read_bytes()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@pytest.fixture
def memory():
    made = []

    def lend(server, path="shm"):
        made.append(Memory(server, path))
        return made[-1]

    yield lend
    for one in made:
        one.end()


@pytest.fixture
def s3_client():
    """A botocore client that adds `client.token` to its next requests, before they are signed, and keeps their answers' headers."""

    def make(server):
        access_key, secret_key = server.keys
        where = SimpleNamespace(endpoint=server.endpoint, access_key=access_key, secret_key=secret_key, region="us-east-1")
        # A request without a body has no checksum to make of it.
        client = connect(where, request_checksum_calculation="when_required", response_checksum_validation="when_required")
        client.token = None

        def add(request, **_):
            if client.token:
                request.headers[HEADER] = client.token

        client.meta.events.register("before-sign.s3", add)
        return client

    return make


def headers(answer):
    return answer["ResponseMetadata"]["HTTPHeaders"]


@pytest.fixture(params=["shm", "iwarp"])
def rig(request, serve, namespace, memory, s3_client, scratch):
    server = serve()
    namespace(server, "things")
    return SimpleNamespace(
        server=server, memory=memory(server, request.param), client=s3_client(server), folder=scratch, path=request.param
    )


def test_get(rig, data):
    body = data(3 * MIB + 5)
    rig.client.put_object(Bucket="things", Key="big", Body=body)
    rig.client.token = rig.memory.ask("token", "GET", "/things/big", "-", "-", 4096, len(body))
    got = rig.client.get_object(Bucket="things", Key="big")
    assert got["Body"].read() == b""
    assert headers(got)["x-amz-rdma-reply"] == "200"
    assert headers(got)["x-amz-rdma-bytes-transferred"] == str(len(body))
    assert rig.memory.save(4096, len(body), rig.folder) == body


def test_get_a_range(rig, data):
    body = data(MIB)
    rig.client.put_object(Bucket="things", Key="big", Body=body)
    rig.client.token = rig.memory.ask("token", "GET", "/things/big", "-", "bytes=1000-4999", 0, 4000)
    got = rig.client.get_object(Bucket="things", Key="big", Range="bytes=1000-4999")
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert got["ContentRange"] == f"bytes 1000-4999/{MIB}"
    assert rig.memory.save(0, 4000, rig.folder) == body[1000:5000]


def test_put_and_upload_part(rig, data):
    body = data(2 * MIB + 1)
    rig.memory.load(0, body, rig.folder)
    rig.client.token = rig.memory.ask("token", "PUT", "/things/made", "-", "-", 0, len(body))
    put = rig.client.put_object(Bucket="things", Key="made", Body=b"")
    assert headers(put)["x-amz-rdma-reply"] == "200"
    rig.client.token = None
    got = rig.client.get_object(Bucket="things", Key="made")
    assert (got["Body"].read(), got["ETag"]) == (body, put["ETag"])

    upload = rig.client.create_multipart_upload(Bucket="things", Key="parts")["UploadId"]
    query = f"partNumber=1&uploadId={upload}"
    rig.client.token = rig.memory.ask("token", "PUT", "/things/parts", query, "-", 0, len(body))
    part = rig.client.upload_part(Bucket="things", Key="parts", UploadId=upload, PartNumber=1, Body=b"")
    rig.client.token = None
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    rig.client.complete_multipart_upload(Bucket="things", Key="parts", UploadId=upload, MultipartUpload=parts)
    assert rig.client.get_object(Bucket="things", Key="parts")["Body"].read() == body


def test_a_token_is_good_once_and_for_one_request(rig, data):
    rig.client.put_object(Bucket="things", Key="a", Body=data(5000))
    rig.client.put_object(Bucket="things", Key="b", Body=data(5000, 2))
    rig.client.token = rig.memory.ask("token", "GET", "/things/a", "-", "-", 0, 5000)
    with pytest.raises(ClientError) as other:
        rig.client.get_object(Bucket="things", Key="b")
    assert other.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    rig.client.get_object(Bucket="things", Key="a")
    with pytest.raises(ClientError) as again:
        rig.client.get_object(Bucket="things", Key="a")
    assert again.value.response["ResponseMetadata"]["HTTPStatusCode"] == 409
    assert rig.memory.save(0, 5000, rig.folder) == data(5000)


def test_with_the_direct_door_closed_it_is_declined_and_a_body_serves(rig, serve, namespace, s3_client, data):
    closed = serve("--no-direct")
    namespace(closed, "things")
    client = s3_client(closed)
    client.put_object(Bucket="things", Key="there", Body=b"as it was")
    # Any token will do: a door that is closed does not look at it.
    for call, method, key in [
        (lambda: client.put_object(Bucket="things", Key="there", Body=b""), "PUT", "there"),
        (lambda: client.put_object(Bucket="things", Key="new", Body=b""), "PUT", "new"),
        (lambda: client.get_object(Bucket="things", Key="there"), "GET", "there"),
    ]:
        client.token = rig.memory.ask("token", method, f"/things/{key}", "-", "-", 0, 4096)
        with pytest.raises(ClientError) as declined:
            call()
        answer = declined.value.response["ResponseMetadata"]
        assert answer["HTTPStatusCode"] == 501
        assert answer["HTTPHeaders"]["x-amz-rdma-reply"] == "501"
        assert "etag" not in answer["HTTPHeaders"]
    client.token = None
    assert client.get_object(Bucket="things", Key="there")["Body"].read() == b"as it was"
    assert [item["Key"] for item in client.list_objects_v2(Bucket="things")["Contents"]] == ["there"]
    body = data(10_000)
    client.put_object(Bucket="things", Key="new", Body=body)
    assert client.get_object(Bucket="things", Key="new")["Body"].read() == body


def test_who_sends_no_token_notices_nothing(rig, scratch, data):
    access_key, secret_key = rig.server.keys
    env = {**os.environ, "AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
    aws = [str(pathlib.Path(sys.executable).parent / "aws"), "--endpoint-url", rig.server.endpoint, "s3", "cp"]
    (scratch / "file").write_bytes(data(9 * MIB))
    for words in [(scratch / "file", "s3://things/file"), ("s3://things/file", scratch / "back")]:
        subprocess.run([*aws, *map(str, words)], env=env, check=True, stdout=subprocess.DEVNULL)
    assert (scratch / "back").read_bytes() == data(9 * MIB)
