"""Many transfers over iWARP across a link that loses, reorders, delays and cuts: each one is right or an error.

FOREBAY_TRANSFERS of them (driven and judged by crates/client/examples/transfers.rs), drawn from FOREBAY_SEED.
"""

import os
import random
import re
import subprocess

import pytest

from conftest import examples

TRANSFERS = int(os.environ.get("FOREBAY_TRANSFERS", "400"))
SEED = int(os.environ.get("FOREBAY_SEED", "0")) or random.SystemRandom().getrandbits(32)
HOURS = 3600
# Of all answers, at least so many are what was put: the client tries again.
RIGHT_SHARE = 0.8


def drive(server, within, path, largest):
    credentials = server.directory / "credentials"
    command = [*within, examples() / "transfers", f"http://{server.rpc}", credentials, "things", path, TRANSFERS, largest, SEED]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=2 * HOURS)
    print(f"seed {SEED}\n{done.stdout}{done.stderr}")
    assert done.returncode == 0, f"seed {SEED}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    right, errors = map(int, re.search(r"right (\d+), errors (\d+)", done.stdout).groups())
    # A link on which hardly anything arrives shows nothing of what arrives. (Who asks for what was not put yet gets no answer that counts, and
    # one call may get several.)
    assert right >= TRANSFERS / 2 and right >= RIGHT_SHARE * (right + errors), f"seed {SEED}: {done.stdout}{done.stderr}"
    assert f'"{path}"' in done.stdout, f"seed {SEED}: another path\n{done.stdout}"
    return done.stdout


@pytest.mark.timeout(3 * HOURS)
@pytest.mark.parametrize("path", ["shm", "iwarp"])
def test_nothing_in_the_way(serve, namespace, path):
    server = serve()
    namespace(server, "things")
    assert "errors 0, wrong 0" in drive(server, (), path, 2_500_000)


@pytest.mark.timeout(3 * HOURS)
def test_loss_reordering_and_delay(link, serve, namespace):
    # Its counts are wanted, and its seed.
    bad = link("--mode", "relay", "--loss", 1, "--delay", 20, "--jitter", 1, "--reorder", 2, "--seed", SEED)
    server = serve("--insecure", host=bad.address, within=bad.within("a"))
    namespace(server, "things")
    drive(server, bad.within("b"), "iwarp", 70_000)
    stats = bad.stats()
    assert stats["ab"]["lost"] and stats["ba"]["lost"] and stats["ab"]["early"]


@pytest.mark.timeout(3 * HOURS)
def test_connections_cut_at_random(link, serve, namespace):
    bad = link("--reset", 0.1, "--seed", SEED)
    server = serve("--insecure", host=bad.address, within=bad.within("a"))
    namespace(server, "things")
    drive(server, bad.within("b"), "iwarp", 400_000)
    stats = bad.stats()
    assert stats["ab"]["reset"] + stats["ba"]["reset"] > 0
