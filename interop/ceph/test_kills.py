"""kill -9 of a gateway under load: what was acknowledged is there, whole, in the listing and in the pool, and nothing else is.

FOREBAY_GATEWAY_KILLS deaths, at moments drawn from FOREBAY_SEED, among writers, replacements, uploads by parts and deletions.
"""

import os
import random

import pytest

from crash.test_kill import BUCKET, CLIENTS, kill_and_verify
from gateways import SOON, clean

# Of a hundred deaths.
pytestmark = pytest.mark.timeout(3600)

KILLS = int(os.environ.get("FOREBAY_GATEWAY_KILLS", "4"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
# What a gateway begins takes longer than what an engine does.
LIFE_SECONDS = (0.04, 1.8)


def test_kills(gateways):
    print(f"FOREBAY_SEED={SEED}")
    server = gateways.start(*SOON)
    # The port stays through every restart, so the clients do too.
    clients = [gateways.client(server) for _ in range(CLIENTS)]
    kill_and_verify(server, clients, random.Random(SEED), KILLS, LIFE_SECONDS)
    clean(gateways, server, clients[0], BUCKET)
