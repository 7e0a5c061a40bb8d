"""boto3 requests that carry a token: the script signs and sends them, a small helper owns the memory and the link."""

import subprocess
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from conftest import examples

REGION_BYTES = 8 << 20
VALUE_BYTES = 3 * (1 << 20) + 5
PART_BYTES = 5 << 20


class Helper:
    """crates/client/examples/s3_token.rs: a region of registered memory, and tokens for it."""

    def __init__(self, server, transport):
        command = [examples() / "s3_token", server.endpoint, *server.keys, REGION_BYTES, transport]
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = self.process.stdout.readline().strip()

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer and not answer.startswith("error"), f"{words}: {answer}"
        return answer

    def stop(self):
        self.process.stdin.close()
        self.process.wait(20)


class Script:
    """What a user would write: boto3, and one header more."""

    def __init__(self, server, helper=None):
        access_key, secret_key = server.keys
        self.s3 = boto3.client(
            "s3", endpoint_url=server.endpoint, aws_access_key_id=access_key, aws_secret_access_key=secret_key,
            config=Config(
                retries={"total_max_attempts": 1}, s3={"addressing_style": "path"},
                request_checksum_calculation="when_required", response_checksum_validation="when_required",
            ),
        )
        self.helper = helper
        self.window = None
        if helper:
            self.s3.meta.events.register("before-sign.s3", self.add_token)

    def add_token(self, request, **_):
        if self.window is None:
            return
        url = urlsplit(request.url)
        asked = request.headers.get("Range", "-")
        token = self.helper.ask("token", request.method, url.path, url.query or "-", asked, *self.window)
        request.headers["x-amz-rdma-token"] = token

    def within(self, offset, length):
        """The payload of the next request is there."""
        self.window = (offset, length)
        return self


def headers(answer):
    return answer["ResponseMetadata"]["HTTPHeaders"]


@pytest.fixture(params=["shm", "iwarp"])
def parts(request, serve, namespace):
    server = serve()
    namespace(server, "tokens")
    helper = Helper(server, request.param)
    assert helper.ready == f"ready {request.param}"
    yield server, helper, Script(server, helper), Script(server)
    helper.stop()


def test_a_put_and_gets(parts, scratch):
    server, helper, script, plain = parts
    crc = helper.ask("fill", 4096, VALUE_BYTES, 7)
    stored = script.within(4096, VALUE_BYTES).s3.put_object(Bucket="tokens", Key="a key/with +signs")
    assert headers(stored)["x-amz-rdma-reply"] == "200" and stored["ETag"]

    # Everybody else sees an ordinary object.
    body = plain.s3.get_object(Bucket="tokens", Key="a key/with +signs")["Body"].read()
    helper.ask("save", 4096, VALUE_BYTES, scratch / "sent")
    assert body == (scratch / "sent").read_bytes() and len(body) == VALUE_BYTES

    # Back to another place: nothing comes as a body.
    got = script.within(4 << 20, VALUE_BYTES).s3.get_object(Bucket="tokens", Key="a key/with +signs")
    assert got["Body"].read() == b""
    assert headers(got)["x-amz-rdma-bytes-transferred"] == str(VALUE_BYTES)
    assert helper.ask("sum", 4 << 20, VALUE_BYTES) == crc

    got = script.within(0, 1000).s3.get_object(Bucket="tokens", Key="a key/with +signs", Range="bytes=500-1499")
    assert got["Body"].read() == b"" and got["ContentRange"] == f"bytes 500-1499/{VALUE_BYTES}"
    helper.ask("save", 0, 1000, scratch / "some")
    assert (scratch / "some").read_bytes() == body[500:1500]


def test_parts_with_and_without_tokens(parts, scratch):
    server, helper, script, plain = parts
    upload = plain.s3.create_multipart_upload(Bucket="tokens", Key="parts")["UploadId"]
    about = {"Bucket": "tokens", "Key": "parts", "UploadId": upload}
    helper.ask("fill", 0, PART_BYTES, 3)
    helper.ask("save", 0, PART_BYTES, scratch / "part")
    first = script.within(0, PART_BYTES).s3.upload_part(PartNumber=1, **about)
    second = plain.s3.upload_part(PartNumber=2, Body=b"the end", **about)
    done = [{"PartNumber": number, "ETag": part["ETag"]} for number, part in ((1, first), (2, second))]
    plain.s3.complete_multipart_upload(MultipartUpload={"Parts": done}, **about)
    body = plain.s3.get_object(Bucket="tokens", Key="parts")["Body"].read()
    assert body == (scratch / "part").read_bytes() + b"the end"


def test_a_token_is_good_once_and_for_its_request(parts):
    server, helper, script, plain = parts
    helper.ask("fill", 0, 100, 1)
    script.within(0, 100).s3.put_object(Bucket="tokens", Key="one")
    plain.s3.put_object(Bucket="tokens", Key="two", Body=b"as it was")
    token = helper.ask("token", "PUT", "/tokens/one", "-", "-", 0, 100)

    def put(key):
        def add(request, **_):
            request.headers["x-amz-rdma-token"] = token

        other = Script(server)
        other.s3.meta.events.register("before-sign.s3", add)
        return other.s3.put_object(Bucket="tokens", Key=key)

    with pytest.raises(ClientError) as moved:
        put("two")
    assert moved.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    put("one")
    with pytest.raises(ClientError) as replayed:
        put("one")
    assert replayed.value.response["Error"]["Code"] == "RDMATokenReplayed"
    assert plain.s3.get_object(Bucket="tokens", Key="two")["Body"].read() == b"as it was"


def put_or_fall_back(script, plain, key, body):
    """The published way: send the token; when it is declined, send the same request with its body."""
    try:
        script.s3.put_object(Bucket="tokens", Key=key)
        return "direct"
    except ClientError as declined:
        if declined.response["ResponseMetadata"]["HTTPStatusCode"] != 501:
            raise
    plain.s3.put_object(Bucket="tokens", Key=key, Body=body)
    return "body"


def test_with_the_direct_door_closed_it_falls_back(serve, namespace, scratch):
    # A token of a server that serves them, shown to one that does not.
    open_server, closed = serve(), serve("--no-direct")
    namespace(closed, "tokens")
    helper = Helper(open_server, "shm")
    try:
        helper.ask("fill", 0, 5000, 9)
        helper.ask("save", 0, 5000, scratch / "sent")
        body = (scratch / "sent").read_bytes()
        script, plain = Script(closed, helper).within(0, 5000), Script(closed)
        assert put_or_fall_back(script, plain, "value", body) == "body"
        assert plain.s3.get_object(Bucket="tokens", Key="value")["Body"].read() == body
        with pytest.raises(ClientError) as declined:
            script.s3.get_object(Bucket="tokens", Key="value")
        assert declined.value.response["ResponseMetadata"]["HTTPStatusCode"] == 501
    finally:
        helper.stop()
