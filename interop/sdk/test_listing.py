"""Listings, both versions: order, prefix, delimiter, pages and encodings agree with a sorted set."""

import pytest

KEYS = sorted(
    ["a", "a/", "a/b", "a/b/c", "a/b/d", "a/e", "a0", "b/x", "b/y z", "c//d", "c/d", "z", "\u00e9", "+", "%41"],
    key=lambda key: key.encode(),
)


@pytest.fixture
def filled(client, bucket):
    for key in KEYS:
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    return bucket


def expected(prefix="", delimiter="", after=""):
    """The rule of S3, on a sorted list."""
    keys, prefixes = [], []
    for key in KEYS:
        if not key.startswith(prefix) or key.encode() <= after.encode() and after:
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            keys.append(key)
        elif (common := key[: cut + len(delimiter)]) not in prefixes:
            prefixes.append(common)
    return keys, prefixes


CASES = [("", ""), ("", "/"), ("a/", "/"), ("a", "/"), ("a/b/", ""), ("c/", "/"), ("none", "/"), ("", "b")]


@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2"])
@pytest.mark.parametrize("page", [1, 2, 3, 1000])
@pytest.mark.parametrize("prefix, delimiter", CASES)
def test_pages(client, filled, operation, page, prefix, delimiter):
    options = {name: value for name, value in (("Prefix", prefix), ("Delimiter", delimiter)) if value}
    pages = client.get_paginator(operation).paginate(
        Bucket=filled, PaginationConfig={"PageSize": page}, **options
    )
    keys, prefixes = [], []
    for answer in pages:
        found = [one["Key"] for one in answer.get("Contents", [])]
        common = [one["Prefix"] for one in answer.get("CommonPrefixes", [])]
        assert len(found) + len(common) <= page
        keys += found
        prefixes += common
    assert (keys, prefixes) == expected(prefix, delimiter)


@pytest.mark.parametrize("after", ["a/b", "a/b/c", "b", "zz"])
def test_start_after(client, filled, after):
    got = client.list_objects_v2(Bucket=filled, StartAfter=after)
    assert [one["Key"] for one in got.get("Contents", [])] == expected(after=after)[0]
    got = client.list_objects(Bucket=filled, Marker=after)
    assert [one["Key"] for one in got.get("Contents", [])] == expected(after=after)[0]


def test_entries(client, filled):
    got = client.list_objects_v2(Bucket=filled, FetchOwner=True)
    assert got["KeyCount"] == len(KEYS) and got["MaxKeys"] == 1000 and not got["IsTruncated"]
    for entry in got["Contents"]:
        head = client.head_object(Bucket=filled, Key=entry["Key"])
        assert (entry["Size"], entry["ETag"]) == (head["ContentLength"], head["ETag"])
        # A header has whole seconds; a listing may have more.
        assert entry["LastModified"].replace(microsecond=0) == head["LastModified"]
        assert entry["StorageClass"] == "STANDARD" and entry["Owner"]["ID"]


def test_no_keys_asked(client, filled):
    got = client.list_objects_v2(Bucket=filled, MaxKeys=0)
    assert got["KeyCount"] == 0 and not got["IsTruncated"]


def test_bad_arguments(client, filled, refused):
    with refused("InvalidArgument", 400):
        client.list_objects_v2(Bucket=filled, MaxKeys=-1)
    with refused("InvalidArgument", 400):
        client.list_objects_v2(Bucket=filled, ContinuationToken="not one of ours")


def test_many(client, bucket):
    keys = [f"{n % 7}/{n:05}" for n in range(2_100)]
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    assert [one["Key"] for page in pages for one in page["Contents"]] == sorted(keys)
