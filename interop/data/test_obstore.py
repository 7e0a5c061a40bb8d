"""obstore, the Python face of Rust's object_store."""

import datetime
import urllib.request

import obstore
import pytest
from obstore.store import S3Store

MIB = 1 << 20


@pytest.fixture
def store(s3, bucket):
    return S3Store(
        bucket, endpoint=s3.endpoint, access_key_id=s3.access_key, secret_access_key=s3.secret_key,
        region=s3.region, client_options={"allow_http": True}, virtual_hosted_style_request=False,
        retry_config={"max_retries": 0},
    )


def test_put_get_ranges(store, data):
    for key, size in (("small", 100), ("big", 20 * MIB)):
        obstore.put(store, key, data(size))
        assert bytes(obstore.get(store, key).bytes()) == data(size)
        assert obstore.head(store, key)["size"] == size
    starts, ends = [0, 500, 7 * MIB], [10, 600, 7 * MIB + 5]
    got = obstore.get_ranges(store, "big", starts=starts, ends=ends)
    assert [bytes(one) for one in got] == [data(20 * MIB)[a:b] for a, b in zip(starts, ends)]
    assert bytes(obstore.get_range(store, "big", start=3, end=9)) == data(20 * MIB)[3:9]


def test_create_and_swap(store):
    first = obstore.put(store, "k", b"1", mode="create")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "k", b"2", mode="create")
    obstore.put(store, "k", b"3", mode={"e_tag": first["e_tag"]})
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(store, "k", b"4", mode={"e_tag": first["e_tag"]})
    assert bytes(obstore.get(store, "k").bytes()) == b"3"


def test_list_copy_rename_delete(store):
    for key in ("a/1", "a/2", "b"):
        obstore.put(store, key, key.encode())
    assert sorted(one["path"] for one in obstore.list(store).collect()) == ["a/1", "a/2", "b"]
    top = obstore.list_with_delimiter(store)
    assert list(top["common_prefixes"]) == ["a"] and [one["path"] for one in top["objects"]] == ["b"]
    obstore.copy(store, "b", "c")
    obstore.rename(store, "c", "d")
    assert bytes(obstore.get(store, "d").bytes()) == b"b"
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "c")
    obstore.delete(store, ["a/1", "a/2", "b", "d"])
    assert obstore.list(store).collect() == []


def test_signed_address(store):
    obstore.put(store, "k", b"signed")
    url = obstore.sign(store, "GET", "k", datetime.timedelta(seconds=60))
    assert urllib.request.urlopen(url).read() == b"signed"
