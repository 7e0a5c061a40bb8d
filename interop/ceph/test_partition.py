"""A gateway is cut off from the cluster while another serves: neither tells what a register would not."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from direct.conftest import Link
from gateways import SOON, Gateways, clean, scrub
from history import Register, enter, finish, work
from throwaway import Ceph, Unavailable

SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
CLIENTS = 4
BUCKET = "register"
CUT_SECONDS = 12
# With the lease and the patience of SOON the other gateway has cleaned up by then.
SWEPT_SECONDS = 20
# More than an object holds.
LARGE = 5 << 20
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


def in_namespace(namespace, do):
    """Connections belong to the namespace of the thread that makes them."""
    with ThreadPoolExecutor(1, initializer=enter, initargs=(namespace,)) as there:
        return there.submit(do).result()


def make_bucket(client, namespace):
    in_namespace(namespace, lambda: client.create_bucket(Bucket=BUCKET))


@pytest.fixture
def sides(link, cluster, scratch, recorder):
    """Starts a gateway on either side, and clients of each that work on the same keys: the gateways, and what was started."""
    print(f"FOREBAY_SEED={SEED}")
    gateways = Gateways(cluster, scratch, "cut")
    threads, clients = [], {}

    def start(registers, *flags):
        for side, address in SIDES.items():
            server = gateways.start("--insecure", *flags, host=address, within=link.within(side))
            clients[side] = gateways.client(server, read_timeout=20)
        make_bucket(clients["a"], f"/run/netns/{link.name}-a")
        for side, client in clients.items():
            namespace = f"/run/netns/{link.name}-{side}"
            threads.extend(work(recorder, [client], registers, CLIENTS, SEED, first=len(threads), within=namespace))
        time.sleep(2)
        return gateways, threads

    yield start
    link.run("set")
    [thread.stopping.set() for thread in threads]
    gateways.stop()


def test_one_of_two_gateways_is_cut_off(link, sides, recorder, caching):
    """Both have a cache."""
    registers = [Register(BUCKET, f"key{number}") for number in range(3)]
    _, threads = sides(registers, *caching)
    link.run("set", "--loss", "100")
    time.sleep(CUT_SECONDS)
    before = len(recorder.lines)
    link.run("set")
    recorder.until_answered(before, len(SIDES), CLIENTS)
    finish(threads)
    recorder.check()


def test_one_is_cut_off_for_longer_than_it_may_be(link, sides, recorder):
    """The other one takes it for dead and cleans up after it, among values in one object and in stripes; what it had sent comes then."""
    registers = [Register(BUCKET, f"key{number}") for number in range(3)]
    registers.append(Register(BUCKET, "large", LARGE, share=0.5))
    gateways, threads = sides(registers, *SOON)
    link.run("set", "--loss", "100")
    begun = time.monotonic()
    # Its lease is over, what it sent was waited for, and the other one has looked.
    while time.monotonic() < begun + SWEPT_SECONDS:
        scrub(gateways.servers[0])
        time.sleep(1)
    before = len(recorder.lines)
    link.run("set")
    recorder.until_answered(before, len(SIDES), CLIENTS)
    finish(threads)
    assert "lease was lost" in gateways.servers[1].log.read_text(), "it counted as dead"
    recorder.check()
    in_namespace(f"/run/netns/{link.name}-a", lambda: judge(gateways, registers))


def judge(gateways, registers):
    """Every value is there, whole; once they are deleted, nothing is."""
    client = gateways.client(gateways.servers[0])
    for register in registers:
        try:
            body = client.get_object(Bucket=BUCKET, Key=register.key)["Body"].read()
        except client.exceptions.NoSuchKey:
            continue
        assert body == register.content(int.from_bytes(body[:8], "big")), register.key
    clean(gateways, gateways.servers[0], client, BUCKET)
