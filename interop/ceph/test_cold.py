"""A cold tier under gateways: what one sends away is read through all, and a death in the middle of it loses nothing.

The far side is a server of its own, or Ceph's S3. FOREBAY_GATEWAY_KILLS deaths, at moments drawn from FOREBAY_SEED.
"""

import os
import random
import subprocess
import threading
import time
import uuid
from types import SimpleNamespace

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from conftest import binary
from gateways import SOON, admin, until
from server import Server
from throwaway import Ceph, Unavailable

# Of a hundred deaths.
pytestmark = pytest.mark.timeout(3600)

KILLS = int(os.environ.get("FOREBAY_GATEWAY_KILLS", "4"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
BUCKET = "data"
# One object of the pool, and several.
SIZES = {"whole": 300_001, "striped": (9 << 20) + 7}
OBJECTS = 24
# Of those from before, so many are kept, and so many of these looked at after each death.
KEPT, LOOKED_AT = 4 * OBJECTS, 8


class Rgw:
    """Ceph's own S3, over a cluster of its own."""

    def __init__(self):
        # Of those that nobody is given who asks for any one: it is free until the gateway has it, and while that is dead.
        self.cluster = Ceph(osds=1, rgw=random.randrange(10000, 20000))
        said = self.cluster.assigned
        self.endpoint, self.region = said["S3_ENDPOINT"], said["AWS_REGION"]
        self.keys = said["AWS_ACCESS_KEY_ID"], said["AWS_SECRET_ACCESS_KEY"]

    def kill(self):
        self.cluster.daemon("kill", "rgw")

    def start(self):
        self.cluster.daemon("start", "rgw")


@pytest.fixture(scope="module")
def rgw():
    try:
        made = Rgw()
    except Unavailable as reason:
        pytest.skip(f"no S3 of Ceph's: {reason}")
    yield made
    made.cluster.down()


@pytest.fixture
def forebay(scratch):
    server = Server(binary(), scratch / "far").start()
    try:
        server.region = "us-east-1"
        yield server
        server.stop()
    finally:
        server.kill()


@pytest.fixture
def far(request, gateways):
    """Where bytes go: what has the bucket, the bucket, and a client of it."""
    side = request.getfixturevalue(getattr(request, "param", "forebay"))
    client, bucket = gateways.client(side, keys=side.keys), f"freezer-{uuid.uuid4().hex[:8]}"
    client.create_bucket(Bucket=bucket)
    return SimpleNamespace(side=side, bucket=bucket, client=client)


@pytest.fixture
def cold(far, scratch):
    """The flags of gateways over it."""
    keys = scratch / "cold-credentials"
    access_key, secret_key = far.side.keys
    keys.write_text(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n")
    url = f"s3://{far.bucket}/near?endpoint={far.side.endpoint}&region={far.side.region}&credentials={keys}"
    return [*SOON, "--cold", url]


def serves(far):
    try:
        far.client.list_buckets()
    except (BotoCoreError, ClientError):
        return False
    return True


def listed(client, bucket):
    return client.list_objects_v2(Bucket=bucket).get("Contents", [])


def read(client, key):
    return client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


@pytest.mark.parametrize("far", ["forebay", "rgw"], indirect=True)
def test_gateways_have_one_cold_tier(gateways, far, cold):
    servers = [gateways.start(*cold) for _ in range(2)]
    one, other = clients = [gateways.client(server) for server in servers]
    gateways.bucket(BUCKET, clients)
    bodies = {key: random.Random(key).randbytes(size) for key, size in SIZES.items()}
    for key, body in bodies.items():
        one.put_object(Bucket=BUCKET, Key=key, Body=body, Metadata={"kept": key})
    before = listed(one, BUCKET), [one.head_object(Bucket=BUCKET, Key=key)["ETag"] for key in SIZES]
    admin(servers[0], "tier", "set", BUCKET, "--larger-than", "64KiB")
    until(lambda: admin(servers[1], "tier", "show", BUCKET)[0].get("rules"), "the other does not hear of the rule")
    [passed] = admin(servers[1], "tier", "run", BUCKET)
    assert passed["moved"] == len(SIZES), passed
    assert len(listed(far.client, far.bucket)) == len(SIZES)

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
    until(lambda: not listed(far.client, far.bucket), "copies are left of what came back")
    for key, body in bodies.items():
        assert read(one, key) == body

    # Without its far side a gateway serves what is near.
    one.put_object(Bucket=BUCKET, Key="late", Body=bodies["whole"])
    # By the one that the others came back through: it knows that they are to stay.
    [passed] = admin(servers[1], "tier", "run", BUCKET)
    assert passed["moved"] == 1, passed
    far.side.kill()
    with pytest.raises(one.exceptions.ClientError) as refused:
        read(gateways.client(servers[0], retries={"max_attempts": 1}), "late")
    assert refused.value.response["Error"]["Code"] == "SlowDown"
    assert read(one, "whole") == bodies["whole"]
    far.side.start()
    until(lambda: serves(far), "the far side is not back")
    assert read(other, "late") == bodies["whole"]


def test_a_gateway_dies_while_bytes_move(gateways, cold):
    print(f"FOREBAY_SEED={SEED}")
    rng = random.Random(SEED)
    steady, mortal = servers = [gateways.start(*cold) for _ in range(2)]
    clients = [gateways.client(server) for server in servers]
    gateways.bucket(BUCKET, clients)
    admin(steady, "tier", "set", BUCKET, "--larger-than", "0")
    until(lambda: admin(mortal, "tier", "show", BUCKET)[0].get("rules"), "the other does not hear of the rule")
    bodies = {}
    for death in range(KILLS):
        older = list(bodies)
        for key in older[:-KEPT]:
            clients[0].delete_object(Bucket=BUCKET, Key=key)
            del bodies[key]
        older = older[-KEPT:]
        for number in range(OBJECTS):
            body = rng.randbytes(rng.choice([rng.randrange(1, 200_000), 5 << 20]))
            key = f"{death}/{number}"
            clients[0].put_object(Bucket=BUCKET, Key=key, Body=body)
            bodies[key] = body
        latest = [key for key in bodies if key not in older]
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
        looked_at = [*latest, *rng.sample(older, min(LOOKED_AT, len(older)))]
        wrong = [key for key in looked_at if read(clients[1], key) != bodies[key]]
        assert not wrong, f"after death {death}"
