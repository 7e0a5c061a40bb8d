"""kill -9 under load: what was acknowledged is there, whole; what was not is the old or the new.

FOREBAY_KILLS deaths, at moments drawn from FOREBAY_SEED, while several clients write, replace,
upload by parts and delete. Each key has one owner, so after each restart its owner knows which
contents are possible.
"""

import hashlib
import os
import random
import threading
import time
from types import SimpleNamespace

import pytest
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from conftest import binary, connect
from server import Server

# Of two hundred deaths.
pytestmark = pytest.mark.timeout(3600)

KILLS = int(os.environ.get("FOREBAY_KILLS", "20"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
CLIENTS = 4
KEYS_EACH = 12
SIZES = [0, 1, 100, 4096, 5000, 65_536, 300_000, 1_000_003]
PART = 5 << 20
LIFE_SECONDS = (0.02, 0.9)
# Of the last life: so many changes by each client, which take no longer.
LAST_CHANGES, LAST_SECONDS = 50, 120
GONE = None
BUCKET = "crash"


class Owner(threading.Thread):
    """One client and its keys. `possible[key]` holds the digests that a reader may now see."""

    def __init__(self, client, number, possible, rng):
        super().__init__()
        self.client = client
        self.possible = possible
        self.rng = rng
        self.keys = [f"{number}/{n:02}" for n in range(KEYS_EACH)]
        self.acknowledged = 0
        self.stopping = threading.Event()
        self.refused = None

    def run(self):
        while not self.stopping.is_set():
            key = self.rng.choice(self.keys)
            before = self.possible.get(key, {GONE})
            chance = self.rng.random()
            if chance < 0.15:
                after, act = GONE, lambda: self.client.delete_object(Bucket=BUCKET, Key=key)
            elif chance < 0.20:
                parts = [self.rng.randbytes(PART), self.rng.randbytes(1000)]
                after, act = digest(b"".join(parts)), lambda: self.upload(key, parts)
            else:
                body = self.rng.randbytes(self.rng.choice(SIZES))
                after, act = digest(body), lambda: self.client.put_object(Bucket=BUCKET, Key=key, Body=body)
            self.possible[key] = before | {after}
            try:
                act()
            except ClientError as answer:
                self.refused = answer
                return
            except (BotoCoreError, HTTPClientError):
                return
            self.possible[key] = {after}
            self.acknowledged += 1

    def upload(self, key, bodies):
        name = dict(Bucket=BUCKET, Key=key)
        name["UploadId"] = self.client.create_multipart_upload(**name)["UploadId"]
        parts = [
            {"PartNumber": n, "ETag": self.client.upload_part(**name, PartNumber=n, Body=body)["ETag"]}
            for n, body in enumerate(bodies, 1)
        ]
        self.client.complete_multipart_upload(**name, MultipartUpload={"Parts": parts})


def digest(body):
    return hashlib.sha256(body).hexdigest()


def verify(client, possible):
    """Every key is in a possible state, and the listing tells the same story as the reads."""
    listed = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        listed |= {one["Key"]: one["Size"] for one in page.get("Contents", [])}
    for key, states in possible.items():
        try:
            body = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            seen = digest(body)
            assert listed.pop(key, None) == len(body), f"{key}: the listing disagrees"
        except client.exceptions.NoSuchKey:
            seen = GONE
            assert key not in listed, f"{key} is listed but cannot be read"
        assert seen in states, f"{key}: {seen} is none of {states}"
        possible[key] = {seen}
    assert not listed, f"never written: {listed}"


def kill_and_verify(server, clients, rng, kills, life=LIFE_SECONDS):
    """Kills the server so often, each time after a while between `life` seconds, and looks at what is there afterwards."""
    clients[0].create_bucket(Bucket=BUCKET)
    possible, acknowledged = [{} for _ in clients], 0
    for kill in range(kills):
        owners = [
            Owner(client, number, possible[number], random.Random(rng.getrandbits(64)))
            for number, client in enumerate(clients)
        ]
        [owner.start() for owner in owners]
        time.sleep(rng.uniform(*life))
        server.kill()
        for owner in owners:
            owner.stopping.set()
            owner.join(60)
            assert owner.refused is None, f"kill {kill}: {owner.refused}"
            acknowledged += owner.acknowledged
        server.start()
        state = {key: states for mine in possible for key, states in mine.items()}
        verify(clients[0], state)
        for mine in possible:
            mine.update((key, state[key]) for key in mine)
    print(f"{kills} kills, {acknowledged} acknowledged changes, nothing lost")
    assert acknowledged > kills
    return possible


def test_kills(scratch):
    print(f"FOREBAY_SEED={SEED}")
    server = Server(binary(), scratch / "data").start()
    s3 = SimpleNamespace(endpoint=server.endpoint, region="us-east-1")
    s3.access_key, s3.secret_key = server.keys
    # The port stays through every restart, so the clients do too.
    clients = [connect(s3, connect_timeout=5, read_timeout=30) for _ in range(CLIENTS)]
    rng = random.Random(SEED)
    possible = kill_and_verify(server, clients, rng, KILLS)
    # One more life, which nobody ends: what the server took for its clients it gives back.
    server.stop()
    server.start()
    before = server.held()
    owners = [
        Owner(client, number, mine, random.Random(rng.getrandbits(64)))
        for number, (client, mine) in enumerate(zip(clients, possible))
    ]
    [owner.start() for owner in owners]
    deadline = time.monotonic() + LAST_SECONDS
    while any(owner.acknowledged < LAST_CHANGES and owner.is_alive() for owner in owners):
        assert time.monotonic() < deadline, "no changes are acknowledged"
        time.sleep(0.01)
    for owner in owners:
        owner.stopping.set()
        owner.join(60)
        assert owner.refused is None and owner.acknowledged >= LAST_CHANGES, owner.refused
    verify(clients[0], {key: states for mine in possible for key, states in mine.items()})
    server.settled(before)
    server.stop()
