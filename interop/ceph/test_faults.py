"""OSDs die, stop and are full, the monitor is away: clients get errors or wait, and no byte is wrong or lost."""

import contextlib
import os
import random
import time

import pytest
from botocore.exceptions import ClientError

from gateways import SOON, clean
from history import Register, finish, work
from throwaway import osds_up

SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
CLIENTS = 6
BUCKET = "register"
# More than an object holds, and what a part has that is not the last.
LARGE = 5 << 20
# How long a gateway waits for the cluster to answer (`--ceph-patience`) where nobody does, how long that is, and by when a request is refused
# then: its operation, one that this waits for, and what a busy machine takes.
PATIENCE, AWAY, REFUSED_WITHIN = 5, 30, 20
# By what: Ceph does not say whether anything happened, or was not asked because too much waits already.
REFUSALS = {"InternalError", "SlowDown"}
# What a client calls a body that was cut short.
CUT_SHORT = {"IncompleteReadError", "ResponseStreamingError"}
# How long a gateway holds its lease (SOON), and for how many of these the monitor is away.
LEASE, LEASES = 3, 4
FULL = {"nearfull": 0.00001, "backfillfull": 0.00002, "full": 0.00003}
ORDINARY = {"nearfull": 0.85, "backfillfull": 0.9, "full": 0.95}


@pytest.fixture
def writers(gateways, recorder):
    """Clients at work on a gateway; what they were answered is judged at the end."""
    print(f"FOREBAY_SEED={SEED}")
    client = gateways.client(gateways.start())
    client.create_bucket(Bucket=BUCKET)
    registers = [Register(BUCKET, f"key{number}") for number in range(6)]
    registers.append(Register(BUCKET, "large", LARGE, share=0.3))
    threads = work(recorder, [client], registers, CLIENTS, SEED)
    time.sleep(1)
    yield recorder
    finish(threads)
    # Everybody is answered again.
    for register in registers:
        client.put_object(Bucket=BUCKET, Key=register.key, Body=b"end")
        assert client.get_object(Bucket=BUCKET, Key=register.key)["Body"].read() == b"end"
    recorder.check()


def answered(recorder):
    """Waits until somebody is answered from now on."""
    recorder.until_answered(len(recorder.lines))


def test_an_osd_is_killed(ceph, writers):
    """Its replicas answer as soon as the monitor has noticed; it comes back with what it had."""
    ceph.daemon("kill", "osd.0")
    ceph.until(osds_up(2))
    answered(writers)
    ceph.daemon("start", "osd.0")
    ceph.until(osds_up(3))
    answered(writers)


def test_an_osd_is_stopped(ceph, writers):
    """It keeps its connections and answers nobody, until the others have told the monitor."""
    ceph.daemon("stop", "osd.1")
    ceph.until(osds_up(2))
    answered(writers)
    ceph.daemon("cont", "osd.1")
    ceph.until(osds_up(3))
    answered(writers)


@contextlib.contextmanager
def full(ceph):
    """Within this the OSDs are full, as soon as they have the next map."""

    def ratios(of):
        for name, ratio in of.items():
            ceph.ceph("osd", f"set-{name}-ratio", ratio)

    told = {"POOL_FULL", "OSD_FULL"}
    try:
        ratios(FULL)
        ceph.until(lambda status: told & set(status["health"]["checks"]))
        yield
    finally:
        ratios(ORDINARY)
        ceph.until(lambda status: not told & set(status["health"]["checks"]))


def refused(put, stored):
    """Why a request is refused at last; `stored` counts those that are not."""
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline, "stored though it is full"
        try:
            put(stored)
        except ClientError as refusal:
            assert refusal.response["ResponseMetadata"]["HTTPStatusCode"] == 507, refusal
            assert refusal.response["Error"]["Code"] == "InsufficientStorage", refusal
            return stored
        stored += 1


def test_the_osds_are_full(ceph, gateways, data):
    """Writes are refused at once; reads and deletes go on; with room again everything is as before."""
    client = gateways.client(gateways.start())
    client.create_bucket(Bucket=BUCKET)
    body = data(1_000_000, seed=1)

    def put(number):
        client.put_object(Bucket=BUCKET, Key=f"k{number}", Body=body)

    put(0)
    with full(ceph):
        stored = refused(put, 1)
        for number in range(stored):
            assert client.get_object(Bucket=BUCKET, Key=f"k{number}")["Body"].read() == body
        for number in range(1, stored):
            client.delete_object(Bucket=BUCKET, Key=f"k{number}")
        listed = client.list_objects_v2(Bucket=BUCKET)["Contents"]
        assert [entry["Key"] for entry in listed] == ["k0"]
    client.put_object(Bucket=BUCKET, Key="k0", Body=data(1_000_000, seed=3))
    assert client.get_object(Bucket=BUCKET, Key="k0")["Body"].read() == data(1_000_000, seed=3)


def test_the_osds_fill_up_among_writers(ceph, gateways, recorder, data):
    """Values in one object and in stripes, and an upload by parts: none is torn, and what was refused is taken when there is room."""
    print(f"FOREBAY_SEED={SEED}")
    server = gateways.start(*SOON)
    client = gateways.client(server)
    client.create_bucket(Bucket=BUCKET)
    registers = [Register(BUCKET, f"key{number}") for number in range(3)]
    registers.append(Register(BUCKET, "large", LARGE, share=0.5))
    upload = client.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
    name = dict(Bucket=BUCKET, Key="parts", UploadId=upload)
    parts = [data(LARGE, seed=number) for number in range(2)]

    def send(number):
        return client.upload_part(**name, PartNumber=number + 1, Body=parts[number])["ETag"]

    tags = [send(0)]
    threads = work(recorder, [client], registers, CLIENTS, SEED)
    with full(ceph):
        refused(lambda _: send(1), 0)
        before = len(recorder.lines)
        time.sleep(3)
        saw = [line["outcome"] == "saw" for line in recorder.lines[before:]]
        assert any(saw), "reads go on"
    tags.append(send(1))
    finish(threads)
    named = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
    client.complete_multipart_upload(**name, MultipartUpload={"Parts": named})
    assert client.get_object(Bucket=BUCKET, Key="parts")["Body"].read() == b"".join(parts)
    recorder.check()
    clean(gateways, server, client, BUCKET)


def test_the_monitor_does_not_answer(ceph, writers, gateways):
    """Who is there already goes on; who comes is told why not, in time."""
    ceph.daemon("stop", "mon")
    try:
        answered(writers)
        begun = time.monotonic()
        with pytest.raises(RuntimeError) as why:
            gateways.start()
        print(f"a new gateway: {why.value} after {time.monotonic() - begun:.1f} s")
        assert "exit" in str(why.value) and "no connection to the cluster" in str(why.value), why.value
    finally:
        ceph.daemon("cont", "mon")
    gateways.start()


def test_two_gateways_go_on_without_the_monitor(ceph, gateways, recorder, caching):
    """Both have a cache, and their leases are over several times before it answers again."""
    print(f"FOREBAY_SEED={SEED}")
    clients = [gateways.client(gateways.start(*SOON, *caching)) for _ in range(2)]
    gateways.bucket(BUCKET, clients)
    registers = [Register(BUCKET, f"key{number}") for number in range(3)]
    threads = []
    for client in clients:
        threads += work(recorder, [client], registers, CLIENTS, SEED, first=len(threads))

    def both_answer():
        recorder.until_answered(len(recorder.lines), len(clients), CLIENTS)

    both_answer()
    ceph.daemon("stop", "mon")
    try:
        for _ in range(LEASES):
            time.sleep(LEASE)
            both_answer()
    finally:
        ceph.daemon("cont", "mon")
    ceph.until(osds_up(3))
    both_answer()
    finish(threads)
    recorder.check()
    for register in registers:
        for client, other in (clients, clients[::-1]):
            client.put_object(Bucket=BUCKET, Key=register.key, Body=b"end")
            assert other.get_object(Bucket=BUCKET, Key=register.key)["Body"].read() == b"end"
    clean(gateways, gateways.servers[0], clients[0], BUCKET)


def test_nobody_answers(ceph, gateways, recorder):
    """The whole cluster is away for longer than a gateway is patient: requests are refused in time, and afterwards all is well."""
    print(f"FOREBAY_SEED={SEED}")
    client = gateways.client(gateways.start("--ceph-patience", str(PATIENCE)))
    client.create_bucket(Bucket=BUCKET)
    registers = [Register(BUCKET, f"key{number}") for number in range(CLIENTS - 1)]
    registers.append(Register(BUCKET, "large", LARGE))
    # Each client has a key of its own: changes of one key wait for each other.
    threads = []
    for number, register in enumerate(registers):
        threads += work(recorder, [client], [register], 1, SEED, first=number)
    recorder.until_answered(0, len(registers))
    assert not any(thread.failures for thread in threads), [thread.failures for thread in threads]
    daemons = ["mon", "osd.0", "osd.1", "osd.2"]
    for daemon in daemons:
        ceph.daemon("stop", daemon)
    stopped = time.monotonic_ns()
    time.sleep(AWAY)
    for daemon in daemons:
        ceph.daemon("cont", daemon)
    ceph.until(osds_up(3))
    recorder.until_answered(len(recorder.lines), len(registers))
    finish(threads)
    until = stopped + (AWAY - REFUSED_WITHIN) * 10**9
    asked = [line for line in recorder.lines if stopped < line["asked"] < until]
    assert {line["client"] for line in asked} == set(range(len(registers))), "each has asked"
    for line in asked:
        took = (line["answered"] - line["asked"]) / 10**9
        assert line["outcome"] == "unknown" and took < REFUSED_WITHIN, (line, took)
    codes = {code for thread in threads for code in thread.failures}
    assert codes & REFUSALS and codes <= REFUSALS | CUT_SHORT, codes
    for register in registers:
        client.put_object(Bucket=BUCKET, Key=register.key, Body=b"end")
        assert client.get_object(Bucket=BUCKET, Key=register.key)["Body"].read() == b"end"
    recorder.check()
