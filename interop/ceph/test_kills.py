"""kill -9 of a gateway under load: what was acknowledged is there, whole, in the listing and in the pool, and nothing else is.

FOREBAY_GATEWAY_KILLS deaths, at moments drawn from FOREBAY_SEED, among writers, replacements, uploads by parts and deletions.
"""

import os
import random
import subprocess
import time

from conftest import binary
from crash.test_kill import BUCKET, CLIENTS, kill_and_verify

KILLS = int(os.environ.get("FOREBAY_GATEWAY_KILLS", "4"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
# The dead are known as such soon, and nobody reads what they left.
SOON = ["--ceph-lease", "3", "--ceph-grace", "1", "--ceph-patience", "5"]
SWEPT_SECONDS = 120
# What a gateway begins takes longer than what an engine does.
LIFE_SECONDS = (0.04, 1.8)


def test_kills(gateways):
    print(f"FOREBAY_SEED={SEED}")
    server = gateways.start(*SOON)
    # The port stays through every restart, so the clients do too.
    clients = [gateways.client(server) for _ in range(CLIENTS)]
    kill_and_verify(server, clients, random.Random(SEED), KILLS, LIFE_SECONDS)
    clean(gateways, server, clients[0])


def patiently(client, call, deadline):
    """Until somebody knows that a gateway died while it joined parts, their target and they are busy."""
    while True:
        try:
            return call()
        except client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "SlowDown" or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def clean(gateways, server, client):
    """What the dead left goes: the pool holds what is listed, and nothing once that is deleted."""
    listed = set()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        listed |= {one["Key"] for one in page.get("Contents", [])}
    place = f"{gateways.namespace}/{BUCKET}"
    assert {name for space, name in gateways.cluster.objects() if space == place} == listed
    deadline = time.monotonic() + SWEPT_SECONDS
    for key in listed:
        patiently(client, lambda: client.delete_object(Bucket=BUCKET, Key=key), deadline)
    for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
        about = {"Bucket": BUCKET, "Key": upload["Key"], "UploadId": upload["UploadId"]}
        patiently(client, lambda: client.abort_multipart_upload(**about), deadline)
    values = [place, *(f"{place}//{kind}" for kind in ("named", "staging", "stripes"))]
    deadline = time.monotonic() + SWEPT_SECONDS
    while left := [one for one in gateways.cluster.objects() if one[0] in values]:
        assert time.monotonic() < deadline, f"{len(left)} orphans: {left[:5]}"
        subprocess.run(
            [binary(), "admin", "scrub", "--dir", server.directory], check=True, stdout=subprocess.DEVNULL, timeout=60
        )
