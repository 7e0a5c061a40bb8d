"""Servers with a direct door, our own command line, and a link between two network namespaces."""

import json
import os
import subprocess
import uuid

import pytest

import laboratory
from conftest import binary
from server import servers

NETNS = laboratory.LAB / "netns.sh"


@pytest.fixture
def serve(scratch):
    """Starts a server; it must end well, with no more files open than when it began to serve."""
    with servers(binary(), scratch) as start:
        yield start


@pytest.fixture
def namespace(serve):
    """Makes a namespace on a server through its socket."""

    def make(server, name):
        command = [str(binary()), "admin", "namespace", "create", name, "--tenant", "root"]
        subprocess.run([*command, "--dir", str(server.directory)], check=True, stdout=subprocess.DEVNULL)
        return name

    return make


class CommandLine:
    """`forebay` as a user of the server, from whichever network namespace."""

    def __init__(self, server, within=()):
        self.server, self.within = server, list(within)
        access_key, secret_key = server.keys
        self.env = {
            **os.environ, "FOREBAY_ACCESS_KEY": access_key, "FOREBAY_SECRET_KEY": secret_key,
            "FOREBAY_ENDPOINT": f"http://{server.rpc}",
        }

    def __call__(self, *words):
        command = [*self.within, str(binary()), *map(str, words)]
        done = subprocess.run(command, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def copy(self, source, target, *more):
        """Copies and tells by which path."""
        lines = self("cp", "--json", *more, source, target).splitlines()
        return next(json.loads(line)["path"] for line in reversed(lines) if line.startswith("{"))


@pytest.fixture
def forebay():
    return CommandLine


class Link:
    """Two namespaces joined by a link that may lose, delay, reorder and cut: see lab/netns.sh."""

    # Of namespace a.
    address = "10.78.0.1"

    def __init__(self, folder, *impairments):
        self.name = f"fb{uuid.uuid4().hex[:8]}"
        self.env = {**os.environ, "LAB_DIR": str(folder / "lab"), "LAB_QUIET": "1"}
        self.run("up", *impairments)

    def run(self, verb, *words):
        command = [str(NETNS), verb, "--name", self.name, *map(str, words)]
        done = subprocess.run(command, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode == laboratory.UNAVAILABLE:
            pytest.skip(f"no link: {laboratory.last_line(done.stderr, done.returncode)}")
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def within(self, side):
        return ["ip", "netns", "exec", f"{self.name}-{side}"]

    def stats(self):
        return json.loads(self.run("stats"))


@pytest.fixture
def link(scratch):
    """Makes links; servers are to be in namespace a, clients in b."""
    laboratory.namespaces()
    made = []

    def up(*impairments):
        made.append(Link(scratch, *impairments))
        return made[-1]

    yield up
    for one in made:
        one.run("down")
