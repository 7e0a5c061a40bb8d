"""The S3 door over TLS: what a client does in plaintext it does here too, and nothing passes without trust."""

import hashlib
import io
import ssl
import urllib.request
from types import SimpleNamespace

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ConnectionError, HTTPClientError, SSLError

from conftest import connect

MIB = 1 << 20


@pytest.fixture
def client(boto, secured):
    return boto(secured, secured.endpoint, "path")


@pytest.mark.parametrize("size", [0, 1, 16_384, 3 * MIB + 7])
def test_round_trip(client, bucket, sent, data, size):
    body, requests = data(size), sent(client)
    client.put_object(Bucket=bucket, Key="k", Body=body, Metadata={"m": "1"})
    got = client.get_object(Bucket=bucket, Key="k")
    assert (got["Body"].read(), got["ETag"]) == (body, f'"{hashlib.md5(body).hexdigest()}"')
    assert got["Metadata"] == {"m": "1"}
    assert {request.url.split(":")[0] for request in requests} == {"https"}


def test_ranges_and_an_abandoned_answer(client, bucket, data):
    body = data(4 * MIB)
    client.put_object(Bucket=bucket, Key="k", Body=body)
    abandoned = client.get_object(Bucket=bucket, Key="k")["Body"]
    assert abandoned.read(100) == body[:100]
    abandoned.close()
    got = client.get_object(Bucket=bucket, Key="k", Range="bytes=1000000-3000000")
    assert got["Body"].read() == body[1_000_000:3_000_001]


def test_list_copy_delete(client, bucket):
    keys = [f"a/{number:02}" for number in range(7)]
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    client.copy_object(Bucket=bucket, Key="b", CopySource={"Bucket": bucket, "Key": "a/03"})
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 3})
    assert [one["Key"] for page in pages for one in page["Contents"]] == [*keys, "b"]
    assert client.get_object(Bucket=bucket, Key="b")["Body"].read() == b"a/03"
    gone = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
    assert len(gone["Deleted"]) == len(keys)
    assert [one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]] == ["b"]


def test_parts_side_by_side(client, bucket, data):
    body, sink = data(20 * MIB + 3), io.BytesIO()
    config = TransferConfig(multipart_chunksize=8 * MIB, max_concurrency=4)
    client.upload_fileobj(io.BytesIO(body), bucket, "big", Config=config)
    assert client.head_object(Bucket=bucket, Key="big")["ETag"].endswith('-3"')
    client.download_fileobj(bucket, "big", sink, Config=config)
    assert sink.getvalue() == body


def test_signed_address(client, secured, bucket):
    client.put_object(Bucket=bucket, Key="k", Body=b"signed")
    url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"})
    trust = ssl.create_default_context(cafile=secured.ca)
    with urllib.request.urlopen(url, context=trust) as answer:
        assert (url.split(":")[0], answer.read()) == ("https", b"signed")


def test_who_does_not_trust_it_does_not_speak(secured):
    stranger = SimpleNamespace(**{**vars(secured), "ca": None})
    with pytest.raises(SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(stranger).list_buckets()


def test_plaintext_is_not_spoken(secured):
    plain = SimpleNamespace(**{**vars(secured), "endpoint": secured.endpoint.replace("https:", "http:")})
    with pytest.raises((ConnectionError, HTTPClientError)):
        connect(plain).list_buckets()
