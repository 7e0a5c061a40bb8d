"""Conditions on reads and writes: create-if-absent, compare-and-swap, and the cache's questions."""

import datetime
import threading

import pytest

LONG_AGO = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)
FAR_AHEAD = datetime.datetime(2099, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize("call", ["get_object", "head_object"])
def test_read(client, bucket, refused, call):
    etag = client.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    read = getattr(client, call)
    read(Bucket=bucket, Key="k", IfMatch=etag)
    read(Bucket=bucket, Key="k", IfNoneMatch='"other"')
    read(Bucket=bucket, Key="k", IfModifiedSince=LONG_AGO)
    read(Bucket=bucket, Key="k", IfUnmodifiedSince=FAR_AHEAD)
    with refused("PreconditionFailed", 412):
        read(Bucket=bucket, Key="k", IfMatch='"other"')
    with refused("PreconditionFailed", 412):
        read(Bucket=bucket, Key="k", IfUnmodifiedSince=LONG_AGO)
    with refused("NotModified", 304):
        read(Bucket=bucket, Key="k", IfNoneMatch=etag)
    read(Bucket=bucket, Key="k", IfMatch=etag, IfUnmodifiedSince=LONG_AGO)


def test_create_if_absent(client, bucket, refused):
    client.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")
    with refused("PreconditionFailed", 412):
        client.put_object(Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*")
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"1"


def test_compare_and_swap(client, bucket, refused):
    with refused("NoSuchKey", 404):
        client.put_object(Bucket=bucket, Key="k", Body=b"0", IfMatch='"any"')
    old = client.put_object(Bucket=bucket, Key="k", Body=b"1")["ETag"]
    client.put_object(Bucket=bucket, Key="k", Body=b"2", IfMatch=old)
    with refused("PreconditionFailed", 412):
        client.put_object(Bucket=bucket, Key="k", Body=b"3", IfMatch=old)
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"2"


def test_one_winner(client, bucket):
    won = []

    def create(mine):
        try:
            client.put_object(Bucket=bucket, Key="k", Body=mine, IfNoneMatch="*")
            won.append(mine)
        except client.exceptions.ClientError:
            pass

    writers = [threading.Thread(target=create, args=(bytes([n]) * 4096,)) for n in range(8)]
    [writer.start() for writer in writers]
    [writer.join() for writer in writers]
    assert len(won) == 1
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == won[0]


def test_conditional_complete(client, bucket, refused):
    def upload():
        made = client.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
        part = client.upload_part(Bucket=bucket, Key="k", UploadId=made, PartNumber=1, Body=b"x")
        return dict(
            Bucket=bucket, Key="k", UploadId=made,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
        )

    client.complete_multipart_upload(**upload(), IfNoneMatch="*")
    with refused("PreconditionFailed", 412):
        client.complete_multipart_upload(**upload(), IfNoneMatch="*")
