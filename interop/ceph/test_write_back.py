"""Values that a gateway answers before the cluster has committed them (`--cache-write-back`)."""

import subprocess

import pytest

from conftest import binary
from gateways import admin
from throwaway import osds_up

BUCKET = "relaxed"
# Longer than requests in progress have at the end of a process.
MEANWHILE = 8
END = 60


@pytest.fixture
def answering():
    said = subprocess.run([binary(), "serve", "--help"], capture_output=True, text=True, check=True).stdout
    if "--cache-write-back" not in said:
        pytest.skip("this binary has no cache over a cluster")
    return ["--cache-memory", "64MiB", "--cache-write-back", "8MiB"]


def test_a_gateway_that_is_told_to_end_waits_for_the_cluster(ceph, gateways, answering, data):
    """No OSD answers while it ends: what was acknowledged is stored when they do again, and only then is it gone."""
    server = gateways.start(*answering)
    admin(server, "namespace", "create", BUCKET, "--durability", "relaxed:1000ms")
    client = gateways.client(server)
    osds = [f"osd.{number}" for number in range(3)]
    for osd in osds:
        ceph.daemon("stop", osd)
    try:
        client.put_object(Bucket=BUCKET, Key="k", Body=data(1_000_000, seed=1))
        server.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(MEANWHILE)
    finally:
        for osd in osds:
            ceph.daemon("cont", osd)
    assert server.process.wait(END) == 0, server.tail()
    ceph.until(osds_up(3))
    client = gateways.client(gateways.start())
    assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == data(1_000_000, seed=1)
