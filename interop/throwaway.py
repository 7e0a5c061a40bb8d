"""A throwaway Ceph of lab/: started, asked, harmed and removed."""

import json
import os
import subprocess
import time
import uuid

from laboratory import LAB, LAB_DIR, UNAVAILABLE, last_line

SECONDS = 240
# What starting one may take beside other work.
START_SECONDS = 600


class Unavailable(Exception):
    """Ceph cannot be had on this machine, and why."""


class Ceph:
    """A cluster of one monitor, one manager and `osds` OSDs, with a pool of the name `pool`, and with its own S3 door where `rgw` says at
    which port."""

    pool = "forebay"

    def __init__(self, osds=3, store="memstore", size=4096, netns=None, address=None, rgw=None):
        self.name, self.own = f"fb{uuid.uuid4().hex[:8]}", True
        words = ["--name", self.name, "--osds", osds, "--store", store, "--size", size, "--pool", self.pool]
        words += ["--netns", netns] if netns else []
        words += ["--addr", address] if address else []
        words += ["--rgw", rgw] if rgw else []
        if os.geteuid() != 0:
            # What is missing could not be installed.
            words.append("--no-install")
        self.within = ["ip", "netns", "exec", netns] if netns else []
        done = run(LAB / "ceph-up.sh", *words, seconds=START_SECONDS)
        if done.returncode == UNAVAILABLE:
            raise Unavailable(last_line(done.stderr, done.returncode))
        assert done.returncode == 0, f"no cluster: exit {done.returncode}\n{done.stderr}"
        self.found(done.stdout)

    @classmethod
    def named(cls, name):
        """One that somebody else started, and ends."""
        self = cls.__new__(cls)
        self.name, self.own, self.within = name, False, []
        self.found((LAB_DIR / "ceph" / name / "env").read_text())
        return self

    def found(self, assignments):
        self.assigned = dict(line.removeprefix("export ").split("=", 1) for line in assignments.splitlines())
        self.conf = self.assigned["CEPH_CONF"]
        self.env = {**os.environ, "CEPH_CONF": self.conf, "CEPH_KEYRING": self.assigned["CEPH_KEYRING"]}

    def flags(self, namespace=None, pool=None):
        """What has a server keep everything here."""
        place = pool or self.pool
        return ["--backend", f"rados:{place}/{namespace}" if namespace else f"rados:{place}", "--ceph-conf", self.conf]

    def daemon(self, verb, who):
        """`kill`, `stop`, `cont` or `start` of `mon`, `mgr`, `rgw` or `osd.N`."""
        done = run(LAB / "ceph-daemon.sh", "--name", self.name, verb, who)
        assert done.returncode == 0, done.stderr

    def rados(self, *words, pool=None, input=None):
        """`rados -p POOL ...`: its standard output, as bytes."""
        return self.ask("rados", "-p", pool or self.pool, *words, input=input)

    def objects(self, pool=None):
        """Every object of the pool: pairs of RADOS namespace and name. Of names with a newline, which suites beside this one make, only
        what is before it."""
        lines = self.rados("ls", "--all", pool=pool).decode(errors="surrogateescape").split("\n")
        return sorted(tuple(line.split("\t")[:2]) for line in lines if "\t" in line)

    def ceph(self, *words):
        """`ceph ...`, read as JSON where it prints any."""
        said = self.ask("ceph", "--format", "json", *words)
        return json.loads(said) if said.strip() else None

    def ask(self, *words, input=None):
        command = [*self.within, *map(str, words)]
        done = subprocess.run(command, env=self.env, input=input or b"", capture_output=True, timeout=SECONDS)
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stderr.decode(errors='replace')}"
        return done.stdout

    def until(self, true, seconds=120):
        """Waits until this holds of `ceph status`."""
        deadline = time.monotonic() + seconds
        while not true(status := self.ceph("status")):
            assert time.monotonic() < deadline, f"in vain: {status}"
            time.sleep(0.2)

    def down(self):
        if self.own:
            run(LAB / "ceph-down.sh", "--name", self.name)


def osds_up(count):
    """Of a status: so many OSDs serve, and every placement group is served."""
    return lambda status: status["osdmap"]["num_up_osds"] == count and served(status)


def served(status):
    """Of a status: every placement group answers."""
    groups = status["pgmap"].get("pgs_by_state", [])
    return bool(groups) and all("active" in group["state_name"] for group in groups)


def run(*words, seconds=SECONDS):
    command = [str(word) for word in words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
