"""A gateway is cut off from the cluster while another serves: neither tells what a register would not."""

import os
import random
import threading
import time

import pytest

from direct.conftest import Link
from gateways import Gateways
from history import Register, enter, finish, work
from throwaway import Ceph, Unavailable

SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
CLIENTS = 4
BUCKET = "register"
CUT_SECONDS = 12
# Namespace a has the cluster and a gateway, b the gateway that is cut off.
SIDES = {"a": "10.78.0.1", "b": "10.78.0.2"}


@pytest.fixture
def link(scratch):
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("no /dev/net/tun for the relay")
    made = Link(scratch, "--mode", "relay")
    yield made
    made.run("down")


@pytest.fixture
def cluster(link):
    try:
        made = Ceph(osds=1, netns=f"{link.name}-a", address=SIDES["a"])
    except Unavailable as reason:
        pytest.skip(f"no Ceph: {reason}")
    yield made
    made.down()


def make_bucket(client, namespace):
    """Connections belong to the namespace of the thread that makes them."""

    def there():
        enter(namespace)
        client.create_bucket(Bucket=BUCKET)

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()


def test_one_of_two_gateways_is_cut_off(link, cluster, scratch, recorder, caching):
    """Both have a cache."""
    print(f"FOREBAY_SEED={SEED}")
    gateways = Gateways(cluster, scratch, "cut")
    try:
        clients = {}
        for side, address in SIDES.items():
            server = gateways.start("--insecure", *caching, host=address, within=link.within(side))
            clients[side] = gateways.client(server, read_timeout=20)
        registers = [Register(BUCKET, f"key{number}") for number in range(3)]
        threads = []
        make_bucket(clients["a"], f"/run/netns/{link.name}-a")
        for side, client in clients.items():
            namespace = f"/run/netns/{link.name}-{side}"
            threads += work(recorder, [client], registers, CLIENTS, SEED, first=len(threads), within=namespace)
        time.sleep(2)
        link.run("set", "--loss", "100")
        time.sleep(CUT_SECONDS)
        before = len(recorder.lines)
        link.run("set")
        time.sleep(3)
        finish(threads)
        there = [line for line in recorder.lines[before:] if line["outcome"] != "unknown"]
        assert {line["client"] // CLIENTS for line in there} == {0, 1}, "both answer again"
        recorder.check()
    finally:
        link.run("set")
        gateways.stop()
