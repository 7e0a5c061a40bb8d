"""OSDs die, stop and are full, the monitor is away: clients get errors or wait, and no byte is wrong or lost."""

import os
import random
import time

import pytest
from botocore.exceptions import ClientError

from gateways import Gateways
from history import Register, finish, work
from throwaway import Ceph, Unavailable, osds_up

SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
CLIENTS = 6
BUCKET = "register"
# Until a gateway that finds no monitor says so and ends.
GIVES_UP_SECONDS = 30
FULL = {"nearfull": 0.00001, "backfillfull": 0.00002, "full": 0.00003}
ORDINARY = {"nearfull": 0.85, "backfillfull": 0.9, "full": 0.95}


@pytest.fixture(scope="module")
def cluster():
    """Three OSDs that keep what they had when they are killed."""
    try:
        made = Ceph(store="bluestore")
    except Unavailable as reason:
        pytest.skip(f"no Ceph: {reason}")
    yield made
    made.down()


@pytest.fixture
def gateways(cluster, scratch, request):
    made = Gateways(cluster, scratch, request.node.name.removeprefix("test_"))
    yield made
    made.stop()


@pytest.fixture
def writers(gateways, recorder):
    """Clients at work on a gateway; what they were answered is judged at the end."""
    print(f"FOREBAY_SEED={SEED}")
    client = gateways.client(gateways.start())
    client.create_bucket(Bucket=BUCKET)
    registers = [Register(BUCKET, f"key{number}") for number in range(6)]
    threads = work(recorder, [client], registers, CLIENTS, SEED)
    time.sleep(1)
    yield recorder
    finish(threads)
    # Everybody is answered again.
    for register in registers:
        client.put_object(Bucket=BUCKET, Key=register.key, Body=b"end")
        assert client.get_object(Bucket=BUCKET, Key=register.key)["Body"].read() == b"end"
    recorder.check()


def answers(recorder, seconds):
    """How many requests are answered in so many seconds from now on."""
    before = len(recorder.lines) - recorder.unanswered
    time.sleep(seconds)
    return len(recorder.lines) - recorder.unanswered - before


def test_an_osd_is_killed(cluster, writers):
    """Its replicas answer as soon as the monitor has noticed; it comes back with what it had."""
    cluster.daemon("kill", "osd.0")
    cluster.until(osds_up(2))
    assert answers(writers, 3) > 0
    cluster.daemon("start", "osd.0")
    cluster.until(osds_up(3))
    assert answers(writers, 1) > 0


def test_an_osd_is_stopped(cluster, writers):
    """It keeps its connections and answers nobody, until the others have told the monitor."""
    cluster.daemon("stop", "osd.1")
    cluster.until(osds_up(2))
    assert answers(writers, 3) > 0
    cluster.daemon("cont", "osd.1")
    cluster.until(osds_up(3))
    assert answers(writers, 1) > 0


def test_the_osds_are_full(cluster, gateways, data):
    """Writes are refused, or wait; reads go on; with room again everything is as before."""
    client = gateways.client(gateways.start())
    client.create_bucket(Bucket=BUCKET)
    client.put_object(Bucket=BUCKET, Key="k", Body=data(1_000_000, seed=1))

    def ratios(of):
        for name, ratio in of.items():
            cluster.ceph("osd", f"set-{name}-ratio", ratio)

    try:
        ratios(FULL)
        cluster.until(lambda status: "POOL_FULL" in status["health"]["checks"] or "OSD_FULL" in status["health"]["checks"])
        begun = time.monotonic()
        with pytest.raises(ClientError) as refused:
            client.put_object(Bucket=BUCKET, Key="k", Body=data(1_000_000, seed=2))
        took = time.monotonic() - begun
        status = refused.value.response["ResponseMetadata"]["HTTPStatusCode"]
        print(f"full: {refused.value} after {took:.1f} s")
        assert status >= 500, refused.value
        assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == data(1_000_000, seed=1)
    finally:
        ratios(ORDINARY)
        cluster.until(lambda status: not {"POOL_FULL", "OSD_FULL"} & set(status["health"]["checks"]))
    client.put_object(Bucket=BUCKET, Key="k", Body=data(1_000_000, seed=3))
    assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == data(1_000_000, seed=3)


def test_the_monitor_does_not_answer(cluster, writers, gateways):
    """Who is there already goes on; who comes is told why not, in time."""
    cluster.daemon("stop", "mon")
    try:
        assert answers(writers, 3) > 0
        begun = time.monotonic()
        with pytest.raises(RuntimeError) as why:
            gateways.start()
        print(f"a new gateway: {why.value} after {time.monotonic() - begun:.1f} s")
        assert "exit" in str(why.value) and "monitor" in str(why.value), why.value
    finally:
        cluster.daemon("cont", "mon")
    gateways.start()


def test_nobody_answers(cluster, writers):
    """The whole cluster is away: requests end with an error in bounded time, and afterwards all is well."""
    daemons = ["mon", "osd.0", "osd.1", "osd.2"]
    for daemon in daemons:
        cluster.daemon("stop", daemon)
    time.sleep(10)
    for daemon in daemons:
        cluster.daemon("cont", daemon)
    cluster.until(osds_up(3))
    assert answers(writers, 2) > 0
