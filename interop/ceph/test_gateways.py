"""Two gateways over one pool: what clients see of a key is what one register would have answered."""

import os
import random
import signal
import threading
import time
import urllib.request

import pytest
from botocore.exceptions import ClientError

from gateways import SOON, admin, clean, until
from history import Register, finish, work

SECONDS = float(os.environ.get("FOREBAY_HISTORY_SECONDS", "8"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
CLIENTS = 8
BUCKET = "register"
# One key whose values are cut in pieces.
LARGE = 5 << 20
# What every part but the last has.
PART_BYTES_MIN = 5 << 20
UPLOADS = 6
# An hour, in milliseconds: within a test a cache looks again only where it was told to.
LONG_MS, SHORT_MS = "3600000", "500"
# By then Ceph tells a gateway nothing any more that has stood still (`osd_client_watch_timeout`).
UNHEARD_SECONDS = 35


@pytest.fixture(params=["uncached", "strict"])
def flags(request):
    return request.getfixturevalue("caching") if request.param == "strict" else []


def test_keys_are_registers(gateways, recorder, flags):
    """Reads, writes, deletes, creations and swaps by eight clients, each through both gateways."""
    print(f"FOREBAY_SEED={SEED}")
    clients = [gateways.client(gateways.start(*flags)) for _ in range(2)]
    gateways.bucket(BUCKET, clients)
    registers = [Register(BUCKET, f"key{number}") for number in range(4)]
    registers.append(Register(BUCKET, "large", LARGE, share=0.1))
    threads = work(recorder, clients, registers, CLIENTS, SEED)
    time.sleep(SECONDS)
    finish(threads)
    assert not any(thread.failures for thread in threads), [thread.failures for thread in threads]
    assert len(recorder.lines) > 10 * CLIENTS
    recorder.check()


def test_a_gateway_is_killed_among_writers(gateways, recorder, caching):
    """The requests that die with it happened, or did not, or not yet; the other gateway's never lie about it."""
    print(f"FOREBAY_SEED={SEED}")
    clients = [gateways.client(gateways.start(*caching)) for _ in range(2)]
    gateways.bucket(BUCKET, clients)
    registers = [Register(BUCKET, f"key{number}") for number in range(4)]
    threads = work(recorder, clients, registers, CLIENTS, SEED)
    rng, mortal = random.Random(SEED), gateways.servers[1]
    for _ in range(3):
        time.sleep(rng.uniform(0.5, SECONDS / 3))
        mortal.kill()
        time.sleep(rng.uniform(0, 0.5))
        mortal.start()
    finish(threads)
    recorder.check()


def test_one_winner_among_gateways(gateways):
    """Of many creations of one key through both gateways one succeeds, and its bytes are there."""
    clients = [gateways.client(gateways.start()) for _ in range(2)]
    gateways.bucket(BUCKET, clients)
    won = []

    def create(number):
        body = bytes([number]) * 4096
        try:
            clients[number % 2].put_object(Bucket=BUCKET, Key="k", Body=body, IfNoneMatch="*")
            won.append(body)
        except clients[0].exceptions.ClientError:
            pass

    writers = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    [writer.start() for writer in writers]
    [writer.join() for writer in writers]
    assert len(won) == 1
    for client in clients:
        assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == won[0]


def test_gateways_share_what_is_made(gateways):
    """Buckets, versions and parts of uploads that one gateway makes are the other's."""
    one, other = [gateways.client(gateways.start()) for _ in range(2)]
    gateways.bucket(BUCKET, [one, other])
    one.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    deadline = time.monotonic() + 60
    while other.get_bucket_versioning(Bucket=BUCKET).get("Status") != "Enabled":
        assert time.monotonic() < deadline, "the other does not hear of it"
    first = other.put_object(Bucket=BUCKET, Key="k", Body=b"1")["VersionId"]
    one.put_object(Bucket=BUCKET, Key="k", Body=b"2")
    versions = other.list_object_versions(Bucket=BUCKET)["Versions"]
    assert [version["IsLatest"] for version in versions] == [True, False]
    assert one.get_object(Bucket=BUCKET, Key="k", VersionId=first)["Body"].read() == b"1"
    upload = one.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
    name = dict(Bucket=BUCKET, Key="parts", UploadId=upload)
    part = other.upload_part(**name, PartNumber=1, Body=b"part")
    one.complete_multipart_upload(**name, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    assert other.get_object(Bucket=BUCKET, Key="parts")["Body"].read() == b"part"


def test_one_upload_through_two_gateways(gateways):
    """Its parts are sent, replaced, joined and given up by both at once: what appears is what somebody joined, and nothing is left."""
    servers = [gateways.start(*SOON) for _ in range(2)]
    clients = [gateways.client(server) for server in servers]
    gateways.bucket(BUCKET, clients)
    print(f"FOREBAY_SEED={SEED}")
    rng = random.Random(SEED)
    for number in range(UPLOADS):
        key = f"k{number}"
        upload = clients[0].create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        name = dict(Bucket=BUCKET, Key=key, UploadId=upload)
        joined, refusals = [], []

        def take_part(client, mark, gives_up):
            # The first of two parts must not be small.
            bodies = [bytes([mark]) * (PART_BYTES_MIN + mark), bytes([mark]) * (1000 + mark)]
            try:
                parts = []
                for part, body in enumerate(bodies, 1):
                    etag = client.upload_part(**name, PartNumber=part, Body=body)["ETag"]
                    parts.append({"PartNumber": part, "ETag": etag})
                if gives_up:
                    client.abort_multipart_upload(**name)
                else:
                    client.complete_multipart_upload(**name, MultipartUpload={"Parts": parts})
                    joined.append(b"".join(bodies))
            except client.exceptions.ClientError as error:
                refusals.append(error.response["Error"]["Code"])

        workers = [
            threading.Thread(target=take_part, args=(clients[mark % 2], mark, rng.random() < 0.2)) for mark in range(4)
        ]
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        assert set(refusals) <= {"NoSuchUpload", "InvalidPart", "SlowDown"}, refusals
        # Each names parts of its own.
        assert len(set(joined)) <= 1, [len(one) for one in joined]
        for client in clients:
            if joined:
                assert client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == joined[0]
            else:
                found = client.list_objects_v2(Bucket=BUCKET, Prefix=key)
                assert key not in [one["Key"] for one in found.get("Contents", [])]
    clean(gateways, servers[0], clients[0], BUCKET)


def test_gateways_know_each_others_keys(gateways):
    """A tenant's key opens every gateway, and none any more once it is removed at one."""
    servers = [gateways.start() for _ in range(2)]
    admin(servers[0], "tenant", "create", "acme")
    [key] = admin(servers[0], "key", "create", "acme")
    keys = key["access_key"], key["secret_key"]
    other = gateways.client(servers[1], keys=keys)
    until(lambda: allowed(other), "the other does not know the key")
    other.create_bucket(Bucket="theirs")
    admin(servers[0], "key", "rm", keys[0])
    until(lambda: not allowed(other), "the other takes a key that is removed")


def read(client):
    return client.get_object(Bucket=BUCKET, Key="k")["Body"].read()


def hits(server):
    with urllib.request.urlopen(f"http://{server.console}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    [value] = [line.split()[-1] for line in lines if line.startswith("forebay_tier_memory_hits_total")]
    return float(value)


def cached(gateways, caching, trust):
    """Two gateways with a cache that is not strict, and their clients; both have the same value, the second in its cache."""
    flags = [*(flag for flag in caching if flag != "--cache-strict"), "--cache-trust", trust]
    servers = [gateways.start(*flags) for _ in range(2)]
    clients = [gateways.client(server) for server in servers]
    gateways.bucket(BUCKET, clients)
    clients[0].put_object(Bucket=BUCKET, Key="k", Body=b"before")
    before = hits(servers[1])

    def is_hit():
        assert read(clients[1]) == b"before"
        return hits(servers[1]) > before

    # The notice of what was stored may come after it was read.
    until(is_hit, "nothing is kept")
    return servers, clients


def test_a_cache_hears_of_changes(gateways, caching):
    """What one gateway stores, replaces and deletes another one serves moments later, though it trusts what it has for an hour."""
    _, (one, other) = cached(gateways, caching, LONG_MS)
    for number in range(20):
        body = b"%d" % number
        one.put_object(Bucket=BUCKET, Key="k", Body=body)
        until(lambda: read(other) == body, "the other one serves what was replaced")
    one.delete_object(Bucket=BUCKET, Key="k")
    until(lambda: gone(other), "the other one serves what was deleted")


def gone(client):
    try:
        read(client)
    except client.exceptions.NoSuchKey:
        return True
    return False


@pytest.mark.parametrize("trust", [SHORT_MS, LONG_MS], ids=["trusting-shortly", "trusting-long"])
def test_a_cache_that_could_hear_nothing_asks(gateways, caching, trust):
    """A gateway stands still until nobody tells it of changes any more. One that trusts for a moment serves nothing old from then on, another
    one only until it has noticed."""
    servers, (one, other) = cached(gateways, caching, trust)
    process = servers[1].process
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(UNHEARD_SECONDS)
        one.put_object(Bucket=BUCKET, Key="k", Body=b"after")
    finally:
        process.send_signal(signal.SIGCONT)
    if trust == SHORT_MS:
        assert read(other) == b"after"
    until(lambda: read(other) == b"after", "the other one serves what was replaced")


def allowed(client):
    try:
        client.list_buckets()
    except ClientError as refused:
        assert refused.response["Error"]["Code"] == "InvalidAccessKeyId", refused
        return False
    return True
