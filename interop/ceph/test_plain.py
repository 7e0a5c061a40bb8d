"""What Ceph's own tools put is read through S3, and what S3 puts is read by them."""

import subprocess

import pytest

from conftest import binary

BUCKET = "plain"
# Keys that are ordinary, that a shell would not like, and that are as long as a key may be.
KEYS = ["k", "a/b/c", "with space & 'quotes'", "x" * 1024]


@pytest.fixture
def client(gateways):
    client = gateways.client(gateways.start())
    client.create_bucket(Bucket=BUCKET)
    return client


def within(gateways):
    """The RADOS namespace of the bucket."""
    return "--namespace", f"{gateways.namespace}/{BUCKET}"


@pytest.mark.parametrize("size", [0, 1, 4096, 300_000, 3_000_001])
def test_theirs_is_ours(ceph, gateways, client, data, size):
    ceph.rados(*within(gateways), "put", "k", "-", input=data(size))
    got = client.get_object(Bucket=BUCKET, Key="k")
    assert got["Body"].read() == data(size)
    assert client.head_object(Bucket=BUCKET, Key="k")["ContentLength"] == size
    if size > 100:
        ranged = client.get_object(Bucket=BUCKET, Key="k", Range="bytes=10-99")
        assert ranged["Body"].read() == data(size)[10:100]
    # Who takes over what others put lists it.
    subprocess.run(
        [binary(), "admin", "scrub", "--dir", gateways.servers[0].directory], check=True, stdout=subprocess.DEVNULL
    )
    listed = client.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert [(one["Key"], one["Size"]) for one in listed] == [("k", size)]
    # It is replaced and removed as any other.
    client.put_object(Bucket=BUCKET, Key="k", Body=b"new", IfMatch=got["ETag"])
    assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"new"
    client.delete_object(Bucket=BUCKET, Key="k")
    with pytest.raises(client.exceptions.NoSuchKey):
        client.get_object(Bucket=BUCKET, Key="k")


@pytest.mark.parametrize("key", KEYS, ids=["short", "folders", "odd", "long"])
def test_ours_is_theirs(ceph, gateways, client, data, key):
    client.put_object(Bucket=BUCKET, Key=key, Body=data(100_000), Metadata={"m": "1"})
    assert ceph.rados(*within(gateways), "get", key, "-") == data(100_000)
    assert ceph.rados(*within(gateways), "ls").decode().splitlines() == [key]
