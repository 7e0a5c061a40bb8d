"""kill -9 of a gateway under load: what was acknowledged is there, whole, in the listing and in the pool, and nothing else is.

FOREBAY_GATEWAY_KILLS deaths, at moments drawn from FOREBAY_SEED, among writers, replacements, uploads by parts and deletions.
"""

import os
import random
import time

from crash.test_kill import BUCKET, CLIENTS, LIFE_SECONDS, Owner, verify

KILLS = int(os.environ.get("FOREBAY_GATEWAY_KILLS", "4"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)


def test_kills(gateways):
    print(f"FOREBAY_SEED={SEED}")
    rng = random.Random(SEED)
    server = gateways.start()
    # The port stays through every restart, so the clients do too.
    clients = [gateways.client(server) for _ in range(CLIENTS)]
    clients[0].create_bucket(Bucket=BUCKET)
    possible, acknowledged = [{} for _ in range(CLIENTS)], 0
    for kill in range(KILLS):
        owners = [
            Owner(clients[number], number, possible[number], random.Random(rng.getrandbits(64)))
            for number in range(CLIENTS)
        ]
        [owner.start() for owner in owners]
        time.sleep(rng.uniform(*LIFE_SECONDS) * 2)
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
    print(f"{KILLS} kills, {acknowledged} acknowledged changes, nothing lost")
    assert acknowledged > KILLS
