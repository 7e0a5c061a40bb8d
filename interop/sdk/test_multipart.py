"""Multipart uploads: parts in any order, replaced, copied, listed, completed, aborted, refused."""

import base64
import hashlib
import io

import boto3
import pytest
from boto3.s3.transfer import TransferConfig

MIB = 1 << 20


@pytest.fixture
def begin(client, bucket):
    return lambda key="k", **more: client.create_multipart_upload(Bucket=bucket, Key=key, **more)["UploadId"]


@pytest.fixture
def send(client, bucket):
    def part(upload, number, body, key="k"):
        answer = client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=body)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    return part


@pytest.fixture
def complete(client, bucket):
    return lambda upload, parts, key="k": client.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
    )


def test_parts_make_an_object(client, bucket, data, begin, send, complete):
    bodies = [data(5 * MIB, 1), data(6 * MIB + 1, 2), data(3, 3)]
    upload = begin(ContentType="text/x", Metadata={"m": "1"}, Tagging="a=1")
    parts = [send(upload, number, body) for number, body in zip((1, 5, 10_000), bodies)]
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    digests = b"".join(hashlib.md5(body).digest() for body in bodies)
    etag = f'"{hashlib.md5(digests).hexdigest()}-3"'
    assert complete(upload, parts)["ETag"] == etag
    got = client.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == b"".join(bodies)
    assert (got["ETag"], got["ContentType"], got["Metadata"]) == (etag, "text/x", {"m": "1"})
    assert client.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "a", "Value": "1"}]


def test_read_one_part(client, bucket, data, begin, send, complete):
    bodies = [data(5 * MIB, 1), data(1000, 2)]
    upload = begin()
    complete(upload, [send(upload, number, body) for number, body in enumerate(bodies, 1)])
    got = client.get_object(Bucket=bucket, Key="k", PartNumber=2)
    assert (got["Body"].read(), got["PartsCount"]) == (bodies[1], 2)
    assert client.head_object(Bucket=bucket, Key="k", PartNumber=1)["ContentLength"] == 5 * MIB


def test_attributes_tell_the_checksum_of_each_part(client, bucket, data, begin):
    bodies = [data(5 * MIB, 1), data(1000, 2)]
    upload = begin(ChecksumAlgorithm="SHA256")
    parts = []
    for number, body in enumerate(bodies, 1):
        answer = client.upload_part(
            Bucket=bucket, Key="k", UploadId=upload, PartNumber=number, Body=body, ChecksumAlgorithm="SHA256"
        )
        parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": answer["ChecksumSHA256"]})
    client.complete_multipart_upload(
        Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": parts}
    )
    got = client.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ObjectParts"])["ObjectParts"]
    assert got["TotalPartsCount"] == 2
    sums = [base64.b64encode(hashlib.sha256(body).digest()).decode() for body in bodies]
    assert [part["ChecksumSHA256"] for part in got["Parts"]] == sums


def test_replaced_part_and_any_order(client, bucket, data, begin, send, complete):
    upload = begin()
    second = send(upload, 2, b"tail")
    send(upload, 1, data(5 * MIB, 1))
    first = send(upload, 1, data(5 * MIB, 2))
    complete(upload, [first, second])
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == data(5 * MIB, 2) + b"tail"


def test_complete_takes_a_subset(client, bucket, data, begin, send, complete):
    upload = begin()
    first = send(upload, 1, data(5 * MIB))
    send(upload, 2, data(5 * MIB))
    third = send(upload, 3, b"end")
    complete(upload, [first, third])
    assert client.head_object(Bucket=bucket, Key="k")["ContentLength"] == 5 * MIB + 3


def test_bad_completes(client, bucket, data, begin, send, complete, refused):
    upload = begin()
    first, second = send(upload, 1, data(5 * MIB)), send(upload, 2, b"x")
    with refused("InvalidPartOrder", 400):
        complete(upload, [second, first])
    with refused("InvalidPart", 400):
        complete(upload, [first, {"PartNumber": 3, "ETag": second["ETag"]}])
    with refused("InvalidPart", 400):
        complete(upload, [first, {"PartNumber": 2, "ETag": first["ETag"]}])
    with refused("MalformedXML", 400):
        complete(upload, [])
    complete(upload, [first, second])


def test_small_part_before_the_last(begin, send, complete, refused):
    upload = begin()
    with refused("EntityTooSmall", 400):
        complete(upload, [send(upload, 1, b"small"), send(upload, 2, b"x")])


@pytest.mark.parametrize("number", [0, 10_001, -1])
def test_part_numbers(begin, send, refused, number):
    with refused("InvalidArgument", 400):
        send(begin(), number, b"x")


def test_abort(client, bucket, begin, send, complete, refused):
    upload = begin()
    part = send(upload, 1, b"x")
    client.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload)
    with refused("NoSuchUpload", 404):
        send(upload, 2, b"x")
    with refused("NoSuchUpload", 404):
        complete(upload, [part])
    with refused("NoSuchUpload", 404):
        client.list_parts(Bucket=bucket, Key="k", UploadId=upload)
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


def test_list_parts(client, bucket, begin, send):
    upload = begin()
    for number in range(1, 8):
        send(upload, number, b"x" * number)
    page = client.list_parts(Bucket=bucket, Key="k", UploadId=upload, MaxParts=5)
    assert [part["Size"] for part in page["Parts"]] == [1, 2, 3, 4, 5]
    assert page["IsTruncated"]
    rest = client.list_parts(
        Bucket=bucket, Key="k", UploadId=upload, PartNumberMarker=page["NextPartNumberMarker"]
    )
    assert [part["PartNumber"] for part in rest["Parts"]] == [6, 7]


def test_list_uploads(client, bucket, begin):
    uploads = {begin(key): key for key in ("a/1", "a/2", "b/1", "b/1", "c")}
    pages = client.get_paginator("list_multipart_uploads").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": 2}
    )
    seen = [(one["Key"], one["UploadId"]) for page in pages for one in page.get("Uploads", [])]
    assert sorted(seen) == sorted((key, upload) for upload, key in uploads.items())
    assert [key for key, _ in seen] == sorted(uploads.values())
    page = client.list_multipart_uploads(Bucket=bucket, Delimiter="/", Prefix="")
    assert [one["Prefix"] for one in page["CommonPrefixes"]] == ["a/", "b/"]


def test_copy_parts(client, bucket, data, begin, complete):
    body = data(12 * MIB)
    client.put_object(Bucket=bucket, Key="from", Body=body)
    upload = begin()
    parts = []
    for number, (first, last) in enumerate([(0, 6 * MIB - 1), (6 * MIB, 12 * MIB - 1)], 1):
        answer = client.upload_part_copy(
            Bucket=bucket, Key="k", UploadId=upload, PartNumber=number,
            CopySource={"Bucket": bucket, "Key": "from"}, CopySourceRange=f"bytes={first}-{last}",
        )
        parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    complete(upload, parts)
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == body


def test_transfer_manager(s3, bucket, data):
    """What `upload_file` does: parallel parts up, parallel ranges down, a copy by parts."""
    client = boto3.client("s3", endpoint_url=s3.endpoint)
    body = data(20 * MIB + 3)
    config = TransferConfig(multipart_chunksize=8 * MIB, max_concurrency=4)
    client.upload_fileobj(io.BytesIO(body), bucket, "big", Config=config)
    client.copy({"Bucket": bucket, "Key": "big"}, bucket, "copy", Config=config)
    for key in ("big", "copy"):
        sink = io.BytesIO()
        client.download_fileobj(bucket, key, sink, Config=config)
        assert sink.getvalue() == body
