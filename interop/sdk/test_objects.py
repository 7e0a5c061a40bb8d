"""Objects: bytes, headers and metadata come back as they went in; ranges; copies; deletes."""

import hashlib

import pytest

MIB = 1 << 20
SIZES = [0, 1, 4095, 4096, 4097, 65536, MIB, 5 * MIB + 17]


@pytest.mark.parametrize("size", SIZES)
def test_round_trip(client, bucket, data, size):
    body = data(size)
    etag = f'"{hashlib.md5(body).hexdigest()}"'
    assert client.put_object(Bucket=bucket, Key="k", Body=body)["ETag"] == etag
    head = client.head_object(Bucket=bucket, Key="k")
    assert (head["ContentLength"], head["ETag"]) == (size, etag)
    got = client.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == body
    assert got["AcceptRanges"] == "bytes"


def test_replace_is_whole(client, bucket, data):
    for size in (MIB, 10, 0, 2 * MIB):
        client.put_object(Bucket=bucket, Key="k", Body=data(size))
        assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == data(size)


def test_headers_and_metadata(client, bucket):
    headers = dict(
        ContentType="text/x-test; charset=utf-8",
        ContentEncoding="identity",
        ContentDisposition='attachment; filename="a b.txt"',
        ContentLanguage="en, fr",
        CacheControl="max-age=60, private",
        Metadata={"one": "1", "with-dash": "a  b", "unicode": "na\u00efve".encode().hex()},
    )
    client.put_object(Bucket=bucket, Key="k", Body=b"x", **headers)
    for answer in (client.head_object(Bucket=bucket, Key="k"), client.get_object(Bucket=bucket, Key="k")):
        for name in ("ContentType", "ContentDisposition", "ContentLanguage", "CacheControl"):
            assert answer[name] == headers[name]
        assert answer["Metadata"]["one"] == "1" and "with-dash" in answer["Metadata"]


def test_expires_round_trips(client, bucket):
    client.put_object(Bucket=bucket, Key="k", Body=b"x", Expires="Thu, 01 Dec 1994 16:00:00 GMT")
    assert client.head_object(Bucket=bucket, Key="k")["ExpiresString"] == "Thu, 01 Dec 1994 16:00:00 GMT"


def test_response_overrides(client, bucket):
    client.put_object(Bucket=bucket, Key="k", Body=b"x", ContentType="text/plain")
    got = client.get_object(
        Bucket=bucket,
        Key="k",
        ResponseContentType="application/json",
        ResponseContentDisposition="inline",
        ResponseCacheControl="no-store",
    )
    assert got["ContentType"] == "application/json"
    assert got["ContentDisposition"] == "inline"
    assert got["CacheControl"] == "no-store"


def test_metadata_too_large(client, bucket, refused):
    with refused("MetadataTooLarge", 400):
        client.put_object(Bucket=bucket, Key="k", Body=b"x", Metadata={"m": "v" * 2100})


@pytest.mark.parametrize(
    "asked, first, last",
    [
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=4090-8200", 4090, 8200),
        ("bytes=999990-", 999990, 999999),
        ("bytes=-7", 999993, 999999),
        ("bytes=-2000000", 0, 999999),
        ("bytes=999999-5000000", 999999, 999999),
    ],
)
def test_range(client, bucket, data, asked, first, last):
    body = data(1_000_000)
    client.put_object(Bucket=bucket, Key="k", Body=body)
    got = client.get_object(Bucket=bucket, Key="k", Range=asked)
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert got["ContentRange"] == f"bytes {first}-{last}/1000000"
    assert got["Body"].read() == body[first : last + 1]


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=10-20", "bytes=-0"])
def test_range_not_satisfiable(client, bucket, refused, asked):
    client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    with refused("InvalidRange", 416):
        client.get_object(Bucket=bucket, Key="k", Range=asked)


@pytest.mark.parametrize("asked", ["bytes=5-2", "lines=1-2", "bytes=x-y"])
def test_range_that_is_none_is_ignored(client, bucket, asked):
    client.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    got = client.get_object(Bucket=bucket, Key="k", Range=asked)
    assert (got["ResponseMetadata"]["HTTPStatusCode"], got["Body"].read()) == (200, b"0123456789")


KEYS = ["a b", "a+b", "a%2Fb", "a//b", "/lead", "trail/", "..", "../up", "a/./b", "\u00e9\u4e2d\U0001f600",
        "q?x=1&y", "#frag", "<&>'\"", "k" * 1024, "a\tb", "*~!()"]


@pytest.mark.parametrize("key", KEYS)
def test_any_key(client, bucket, key):
    client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    assert [found["Key"] for found in client.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    client.delete_object(Bucket=bucket, Key=key)
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_key_too_long(client, bucket, refused):
    with refused("KeyTooLongError", 400):
        client.put_object(Bucket=bucket, Key="k" * 1025, Body=b"")


def test_missing(client, bucket, refused):
    for call in (client.get_object, client.head_object, client.get_object_tagging):
        with refused("NoSuchKey", 404):
            call(Bucket=bucket, Key="nope")
    client.delete_object(Bucket=bucket, Key="nope")


def test_delete_many(client, bucket):
    keys = [f"d/{n:04}" for n in range(250)] + ["<&>", "a b"]
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"x")
    wanted = [{"Key": key} for key in keys + ["was never there"]]
    gone = client.delete_objects(Bucket=bucket, Delete={"Objects": wanted})
    assert {one["Key"] for one in gone["Deleted"]} == {one["Key"] for one in wanted}
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    client.put_object(Bucket=bucket, Key="q", Body=b"x")
    quiet = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "q"}], "Quiet": True})
    assert "Deleted" not in quiet and "Errors" not in quiet


def test_copy(client, bucket, data):
    body = data(3 * MIB)
    client.put_object(Bucket=bucket, Key="from k", Body=body, Metadata={"m": "1"}, ContentType="text/a")
    source = {"Bucket": bucket, "Key": "from k"}
    copied = client.copy_object(Bucket=bucket, Key="to", CopySource=source)
    assert copied["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    got = client.get_object(Bucket=bucket, Key="to")
    assert got["Body"].read() == body
    assert (got["Metadata"], got["ContentType"]) == ({"m": "1"}, "text/a")
    client.copy_object(
        Bucket=bucket, Key="to", CopySource=source, MetadataDirective="REPLACE", Metadata={"n": "2"},
        ContentType="text/b",
    )
    head = client.head_object(Bucket=bucket, Key="to")
    assert (head["Metadata"], head["ContentType"]) == ({"n": "2"}, "text/b")


def test_copy_to_itself_needs_a_change(client, bucket, refused):
    client.put_object(Bucket=bucket, Key="k", Body=b"x", Metadata={"m": "1"})
    source = {"Bucket": bucket, "Key": "k"}
    with refused("InvalidRequest", 400):
        client.copy_object(Bucket=bucket, Key="k", CopySource=source)
    client.copy_object(
        Bucket=bucket, Key="k", CopySource=source, MetadataDirective="REPLACE", Metadata={"m": "2"}
    )
    got = client.get_object(Bucket=bucket, Key="k")
    assert (got["Body"].read(), got["Metadata"]) == (b"x", {"m": "2"})


def test_copy_conditions(client, bucket, refused):
    etag = client.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    source = {"Bucket": bucket, "Key": "k"}
    client.copy_object(Bucket=bucket, Key="c", CopySource=source, CopySourceIfMatch=etag)
    with refused("PreconditionFailed", 412):
        client.copy_object(Bucket=bucket, Key="c", CopySource=source, CopySourceIfMatch='"other"')
    with refused("PreconditionFailed", 412):
        client.copy_object(Bucket=bucket, Key="c", CopySource=source, CopySourceIfNoneMatch=etag)
    with refused("NoSuchKey", 404):
        client.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "no"})


def test_attributes(client, bucket, data):
    body = data(1000)
    put = client.put_object(Bucket=bucket, Key="k", Body=body, ChecksumAlgorithm="SHA256")
    wanted = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    got = client.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=wanted)
    assert got["ObjectSize"] == 1000
    assert got["ETag"] == put["ETag"].strip('"')
    assert got["Checksum"]["ChecksumSHA256"] == put["ChecksumSHA256"]


def test_encryption_is_refused_not_ignored(client, bucket):
    for headers in (
        {"ServerSideEncryption": "AES256"},
        {"ServerSideEncryption": "aws:kms"},
    ):
        with pytest.raises(client.exceptions.ClientError) as failure:
            client.put_object(Bucket=bucket, Key="k", Body=b"x", **headers)
        assert failure.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 501)
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_acl_and_storage_class_do_not_fail(client, bucket):
    client.put_object(Bucket=bucket, Key="k", Body=b"x", ACL="private", StorageClass="STANDARD")
    assert client.get_object_acl(Bucket=bucket, Key="k")["Grants"]
    client.put_object_acl(Bucket=bucket, Key="k", ACL="private")


def test_tagging(client, bucket):
    tags = [{"Key": "a", "Value": "1"}, {"Key": "b c", "Value": "x=y"}]
    client.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="a=1&b%20c=x%3Dy")
    assert client.get_object(Bucket=bucket, Key="k")["TagCount"] == 2

    def read():
        return sorted(client.get_object_tagging(Bucket=bucket, Key="k")["TagSet"], key=str)

    assert read() == sorted(tags, key=str)
    client.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": tags[:1]})
    assert read() == tags[:1]
    client.copy_object(Bucket=bucket, Key="k2", CopySource={"Bucket": bucket, "Key": "k"})
    assert client.get_object_tagging(Bucket=bucket, Key="k2")["TagSet"] == tags[:1]
    client.delete_object_tagging(Bucket=bucket, Key="k")
    assert read() == []
    assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


def test_too_many_tags(client, bucket, refused):
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    tags = [{"Key": f"t{n}", "Value": "v"} for n in range(11)]
    with refused("BadRequest", 400):
        client.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": tags})
