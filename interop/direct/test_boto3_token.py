"""boto3 requests that carry a token: the script signs and sends them, a small helper owns the memory and the link."""

import base64
import os

import pytest
from botocore.exceptions import ClientError

from boto3_token import Helper, Script, headers, memory

GIB = 1 << 30
# Of the longest token; where that is more than a GiB, one that is a little more is tested, too.
TOKEN_BYTES = int(os.environ.get("FOREBAY_TOKEN_BYTES", (64 << 20) + 1))
REGION_BYTES = 8 << 20
VALUE_BYTES = 3 * (1 << 20) + 5
PART_BYTES = 5 << 20


@pytest.fixture(params=["shm", "iwarp"])
def parts(request, serve, namespace):
    server = serve()
    namespace(server, "tokens")
    helper = Helper(server, request.param, REGION_BYTES)
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


def test_what_boto3_does_unasked(parts):
    server, helper, script, plain = parts
    unasked = Script(server, helper, checksums="when_supported")
    crc = helper.ask("fill", 0, VALUE_BYTES, 5)
    # A checksum of the body, which is empty: it is not that of the bytes.
    with pytest.raises(ClientError) as refused:
        unasked.within(0, VALUE_BYTES).s3.put_object(Bucket="tokens", Key="key")
    assert refused.value.response["Error"]["Code"] == "BadDigest"
    script.within(0, VALUE_BYTES).s3.put_object(Bucket="tokens", Key="key")
    # It asks for the object's, and would compare that with the body.
    got = unasked.within(4 << 20, VALUE_BYTES).s3.get_object(Bucket="tokens", Key="key")
    assert got["Body"].read() == b""
    assert helper.ask("sum", 4 << 20, VALUE_BYTES) == crc
    assert base64.b64decode(headers(got)["x-amz-rdma-checksum-crc64nvme"]).hex() == crc
    assert len(plain.s3.get_object(Bucket="tokens", Key="key")["Body"].read()) == VALUE_BYTES


@pytest.mark.parametrize("length", sorted({min(TOKEN_BYTES, GIB + 1), TOKEN_BYTES}))
def test_tokens_for_many_bytes(serve, namespace, length):
    server = serve("--s3-etag", "crc64nvme")
    namespace(server, "tokens")
    with memory(length) as (file, there):
        helper = Helper(server, "shm", file)
        script = Script(server, helper).within(0, length)
        # Told apart by its ends; the rest are zeroes.
        there[:8], there[-8:] = b"it beg..", b"..d ends"
        crc = helper.ask("sum", 0, length)
        script.s3.put_object(Bucket="tokens", Key="long")
        there[:8], there[-8:] = bytes(8), bytes(8)
        got = script.s3.get_object(Bucket="tokens", Key="long")
        assert headers(got)["x-amz-rdma-bytes-transferred"] == str(length)
        assert (there[:8], there[-8:], helper.ask("sum", 0, length)) == (b"it beg..", b"..d ends", crc)
        helper.stop()


@pytest.mark.parametrize("transport", ["shm", "iwarp"])
def test_memory_of_the_script_itself(serve, namespace, data, transport):
    server = serve()
    namespace(server, "tokens")
    value = data(VALUE_BYTES)
    with memory(REGION_BYTES) as (file, there):
        helper = Helper(server, transport, file)
        script, plain = Script(server, helper), Script(server)
        there[:VALUE_BYTES] = value
        script.within(0, VALUE_BYTES).s3.put_object(Bucket="tokens", Key="mine")
        assert plain.s3.get_object(Bucket="tokens", Key="mine")["Body"].read() == value
        script.within(4 << 20, VALUE_BYTES).s3.get_object(Bucket="tokens", Key="mine")
        assert there[4 << 20:][:VALUE_BYTES] == value
        helper.stop()


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
    helper = Helper(open_server, "shm", REGION_BYTES)
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
