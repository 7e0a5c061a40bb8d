"""OpenDAL."""

import opendal
import pytest

MIB = 1 << 20


@pytest.fixture
def operator(s3, bucket):
    return opendal.Operator(
        "s3", bucket=bucket, endpoint=s3.endpoint, region=s3.region,
        access_key_id=s3.access_key, secret_access_key=s3.secret_key,
    )


def test_write_read_ranges(operator, data):
    for key, size in (("small", 100), ("big", 20 * MIB)):
        operator.write(key, data(size))
        assert bytes(operator.read(key)) == data(size)
        assert operator.stat(key).content_length == size
    with operator.open("big", "rb") as file:
        file.seek(5 * MIB)
        assert file.read(1000) == data(20 * MIB)[5 * MIB : 5 * MIB + 1000]


def test_streamed_write(operator, data):
    body = data(20 * MIB)
    with operator.open("k", "wb") as file:
        for start in range(0, len(body), MIB):
            file.write(body[start : start + MIB])
    assert bytes(operator.read("k")) == body


def test_list_copy_delete(operator):
    for key in ("a/1", "a/2", "b"):
        operator.write(key, key.encode())
    assert {one.path for one in operator.list("a/")} >= {"a/1", "a/2"}
    operator.copy("b", "c")
    assert bytes(operator.read("c")) == b"b"
    for key in ("a/1", "b", "c"):
        operator.delete(key)
    with pytest.raises(opendal.exceptions.NotFound):
        operator.stat("b")
    operator.remove_all("a/") if hasattr(operator, "remove_all") else operator.delete("a/2")
    assert not operator.exists("a/2")
