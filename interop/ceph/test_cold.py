"""A cold tier under gateways: what one sends away is read through all, and a death in the middle of it loses nothing.

The far side is a server of its own. FOREBAY_GATEWAY_KILLS deaths, at moments drawn from FOREBAY_SEED.
"""

import os
import random
import subprocess
import threading
import time

import pytest

from conftest import binary
from gateways import SOON, admin, until
from server import Server

KILLS = int(os.environ.get("FOREBAY_GATEWAY_KILLS", "4"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
BUCKET = "data"
FREEZER = "freezer"
# One object of the pool, and several.
SIZES = {"whole": 300_001, "striped": (9 << 20) + 7}
OBJECTS = 24


@pytest.fixture
def far(scratch, gateways):
    """Where bytes go, and a client of it."""
    server = Server(binary(), scratch / "far").start()
    client = gateways.client(server, keys=server.keys)
    client.create_bucket(Bucket=FREEZER)
    yield server, client
    server.stop()


@pytest.fixture
def cold(far):
    """The flags of gateways over it."""
    server, _ = far
    url = f"s3://{FREEZER}/near?endpoint={server.endpoint}&credentials={server.directory / 'credentials'}"
    return [*SOON, "--cold", url]


def listed(client, bucket):
    return client.list_objects_v2(Bucket=bucket).get("Contents", [])


def read(client, key):
    return client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def test_gateways_have_one_cold_tier(gateways, far, cold):
    servers = [gateways.start(*cold) for _ in range(2)]
    one, other = clients = [gateways.client(server) for server in servers]
    gateways.bucket(BUCKET, clients)
    bodies = {key: random.Random(key).randbytes(size) for key, size in SIZES.items()}
    for key, body in bodies.items():
        one.put_object(Bucket=BUCKET, Key=key, Body=body, Metadata={"kept": key})
    before = listed(one, BUCKET), [one.head_object(Bucket=BUCKET, Key=key)["ETag"] for key in SIZES]
    admin(servers[0], "tier", "set", BUCKET, "--larger-than", "64KiB")
    until(lambda: admin(servers[1], "tier", "show", BUCKET)[0].get("policy"), "the other does not hear of the policy")
    [passed] = admin(servers[1], "tier", "run", BUCKET)
    assert passed["moved"] == len(SIZES), passed
    assert len(listed(far[1], FREEZER)) == len(SIZES)

    # Everything but the bytes is where it was, for both.
    for client in clients:
        assert (listed(client, BUCKET), [client.head_object(Bucket=BUCKET, Key=key)["ETag"] for key in SIZES]) == before

    def emptied():
        admin(servers[0], "scrub")
        return not any(space.endswith("//stripes") for space, _ in gateways.cluster.objects() if gateways.namespace in space)

    until(emptied, "stripes are left of what went")
    part = one.get_object(Bucket=BUCKET, Key="striped", Range="bytes=5000000-5000099")["Body"].read()
    assert part == bodies["striped"][5000000:5000100]
    for key, body in bodies.items():
        for client in (other, one):
            found = client.get_object(Bucket=BUCKET, Key=key)
            assert found["Body"].read() == body and found["Metadata"] == {"kept": key}
    # What came back is in the pool, and its copies go once nobody can be reading them.
    until(lambda: not listed(far[1], FREEZER), "copies are left of what came back")
    for key, body in bodies.items():
        assert read(one, key) == body

    # Without its far side a gateway serves what is near.
    one.put_object(Bucket=BUCKET, Key="late", Body=bodies["whole"])
    # By the one that the others came back through: it knows that they are to stay.
    [passed] = admin(servers[1], "tier", "run", BUCKET)
    assert passed["moved"] == 1, passed
    far[0].kill()
    with pytest.raises(one.exceptions.ClientError) as refused:
        read(gateways.client(servers[0], retries={"max_attempts": 1}), "late")
    assert refused.value.response["Error"]["Code"] == "SlowDown"
    assert read(one, "whole") == bodies["whole"]
    far[0].start()
    assert read(other, "late") == bodies["whole"]


def test_a_gateway_dies_while_bytes_move(gateways, cold):
    print(f"FOREBAY_SEED={SEED}")
    rng = random.Random(SEED)
    steady, mortal = servers = [gateways.start(*cold) for _ in range(2)]
    clients = [gateways.client(server) for server in servers]
    gateways.bucket(BUCKET, clients)
    admin(steady, "tier", "set", BUCKET, "--larger-than", "0")
    until(lambda: admin(mortal, "tier", "show", BUCKET)[0].get("policy"), "the other does not hear of the policy")
    bodies = {}
    for death in range(KILLS):
        for number in range(OBJECTS):
            body = rng.randbytes(rng.choice([rng.randrange(1, 200_000), 5 << 20]))
            key = f"{death}/{number}"
            clients[0].put_object(Bucket=BUCKET, Key=key, Body=body)
            bodies[key] = body
        command = [str(binary()), "admin", "tier", "run", BUCKET, "--dir", str(mortal.directory)]
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Bytes go, and some are asked back.
        asked = rng.sample(sorted(bodies), 6)
        wrong = []
        reader = threading.Thread(
            target=lambda: wrong.extend(key for key in asked if read(clients[0], key) != bodies[key])
        )
        reader.start()
        time.sleep(rng.uniform(0.02, 0.7))
        mortal.kill()
        run.wait()
        reader.join()
        mortal.start()
        assert not wrong, f"while bytes moved before death {death}"
        wrong = [key for key, body in bodies.items() if read(clients[1], key) != body]
        assert not wrong, f"after death {death}"
