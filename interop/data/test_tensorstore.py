"""TensorStore: arrays of chunks, and commits of its OCDBT format by conditional PUTs."""

import numpy
import pytest
import tensorstore

SHAPE = (1000, 1000)


@pytest.fixture
def place(s3, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)

    def at(path):
        return {
            "driver": "s3", "bucket": bucket, "path": path, "endpoint": s3.endpoint, "aws_region": s3.region,
            "aws_credentials": {"type": "environment"},
        }

    return at


def test_an_array_and_parts_of_it(place):
    spec = {"driver": "zarr3", "kvstore": place("array/")}
    metadata = {
        "shape": SHAPE, "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": (100, 100)}},
    }
    made = numpy.random.default_rng(1).random(SHAPE, dtype="float32")
    tensorstore.open({**spec, "metadata": metadata}, create=True).result().write(made).result()
    there = tensorstore.open(spec, open=True).result()
    assert (there.read().result() == made).all()
    assert (there[150:420, 990:].read().result() == made[150:420, 990:]).all()


def test_a_change_of_what_was_seen(place):
    store = tensorstore.KvStore.open(place("values/")).result()
    first = store.write("key", b"1").result().generation
    store.write("key", b"2", if_equal=first).result()
    store.write("key", b"3", if_equal=first).result()
    assert store.read("key").result().value == b"2"
    store["sub/key"] = b"x"
    assert sorted(store.list().result()) == [b"key", b"sub/key"]
    store.delete_range(tensorstore.KvStore.KeyRange()).result()
    assert store.list().result() == []


def test_writers_side_by_side_lose_nothing(place):
    def opened():
        # Each with a cache of its own, as in another process.
        context = tensorstore.Context()
        return tensorstore.KvStore.open({"driver": "ocdbt", "base": place("tree/")}, context=context).result()

    writers = [opened() for _ in range(4)]
    commits = [store.write(f"{number}-{key}", bytes([number])) for key in range(25) for number, store in enumerate(writers)]
    for commit in commits:
        commit.result()
    there = opened()
    assert len(there.list().result()) == 100
    assert there.read("3-24").result().value == b"\x03"
