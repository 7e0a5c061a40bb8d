"""Linux as the host: a guest of lab/ whose kernel connects to a server on this side of a bridge."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import uuid

import pytest

import laboratory
from conftest import binary
from server import SPARE_FILES, Server
from throwaway import Ceph, Unavailable

# The host's side of the guest's network.
ADDRESS = "10.77.0.1"
GUEST_SECONDS = 400
SECTION = re.compile(r"^=== (\S+)$", re.M)


@pytest.fixture(scope="session")
def lab():
    """The guest is there. Of all guests on a machine one runs at a time: guest-run.sh waits for its turn."""
    laboratory.guest()
    return laboratory.LAB


@pytest.fixture(scope="session")
def tshark(lab):
    if not shutil.which("tshark"):
        laboratory.needs("tshark cannot be installed", "install.sh", "tshark")
    return shutil.which("tshark")


class Place:
    """A network of one guest and one server."""

    def __init__(self, lab, scratch):
        self.lab, self.scratch = lab, scratch
        self.netns = f"fb{uuid.uuid4().hex[:8]}"
        self.within = ["ip", "netns", "exec", self.netns]
        self.shared = scratch / "shared"
        self.shared.mkdir()
        self.server = self.ceph = None
        self.guests = []
        laboratory.needs("no network for a guest", "guest-run.sh", "--netns-up", self.netns)

    @staticmethod
    def run(*words, **more):
        done = subprocess.run(
            [str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True, **more
        )
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, *flags):
        """A server with an NVMe door that the guest reaches. FOREBAY_INTEROP_BACKEND=rados gives it a Ceph on the same side."""
        if os.environ.get("FOREBAY_INTEROP_BACKEND") == "rados":
            try:
                self.ceph = Ceph(osds=1, netns=self.netns)
            except Unavailable as reason:
                pytest.skip(f"no Ceph: {reason}")
            flags = [*self.ceph.flags(), *flags]
        self.server = Server(
            binary(), self.scratch / "data", flags=["--insecure", *flags], host=ADDRESS, within=self.within
        ).start()
        self.files = self.server.open_files()
        return self.server

    def admin(self, *words):
        """`forebay admin`, on the server's own side."""
        out = self.run(binary(), "admin", *words, "--dir", self.server.directory, "--json")
        return [json.loads(line) for line in out.splitlines()]

    def forebay(self, *words):
        """`forebay` as the root tenant, by the server's network."""
        access_key, secret_key = self.server.keys
        env = {**os.environ, "FOREBAY_ACCESS_KEY": access_key, "FOREBAY_SECRET_KEY": secret_key,
               "FOREBAY_ENDPOINT": f"http://{self.server.rpc}"}
        return self.run(*self.within, binary(), *words, env=env, timeout=120)

    def aws(self, program, *words):
        """The AWS CLI, by the server's network."""
        access_key, secret_key = self.server.keys
        env = {**os.environ, "AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
        return self.run(*self.within, program, "--endpoint-url", self.server.endpoint, *words, env=env, timeout=120)

    def guest(self, script, *options, timeout=GUEST_SECONDS):
        """Starts a guest that runs `script` with this place's shared folder at /share."""
        command = [str(self.lab / "guest-run.sh"), "--netns", self.netns, "--share", f"{self.shared}:/share",
                   "--timeout", str(timeout), *map(str, options), "-"]
        port = self.server.nvme.rsplit(":", 1)[1] if self.server else ""
        self.guests.append(Guest(command, PRELUDE.replace("@PORT@", port) + script, self.server))
        return self.guests[-1]

    def close(self):
        for guest in self.guests:
            guest.end()
        try:
            if self.server and self.server.process.poll() is None:
                # A guest that went away without a word is not waited for.
                deadline = time.monotonic() + 30
                while (held := self.server.open_files()) > self.files + SPARE_FILES and time.monotonic() < deadline:
                    time.sleep(0.1)
                self.server.stop()
                assert held <= self.files + SPARE_FILES, f"{held} open files, {self.files} before the test"
        finally:
            if self.ceph:
                self.ceph.down()
            self.run(self.lab / "guest-run.sh", "--netns-down", self.netns)


class Guest:
    """A guest, perhaps of a server, that runs a script; what it prints comes in sections that begin with `=== NAME`."""

    def __init__(self, command, script, server):
        self.server = server
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.process.stdin.write(script)
        self.process.stdin.close()
        self.process.stdin = None

    def until(self, true):
        """Waits for something that the guest does. It has a time of its own, and ends when that is over."""
        while not true():
            if self.process.poll() is not None:
                self.wait()
                pytest.fail("the guest ended before it was waited for")
            time.sleep(0.05)

    def end(self):
        """Of a test that failed: others wait for their turn."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate()

    def wait(self):
        """What it printed, by section; it must have ended well."""
        out, _ = self.process.communicate()
        if self.process.returncode == 125:
            pytest.fail(f"the lab failed:\n{out}")
        code = self.process.returncode
        said = f"\nthe server said:\n{self.server.tail()}" if self.server else ""
        assert code == 0, f"exit {code} in the guest:\n{out}{said}"
        parts = SECTION.split(out)
        return Sections(zip(parts[1::2], parts[2::2]))


class Sections(dict):
    """What a guest printed."""

    def json(self, name):
        return json.loads(self[name])


@pytest.fixture
def aws():
    own = pathlib.Path(sys.executable).parent / "aws"
    return own if own.exists() else pytest.skip("the AWS CLI is not installed")


@pytest.fixture
def place(lab, scratch):
    one = Place(lab, scratch)
    yield one
    one.close()


# What every script in the guest begins with.
PRELUDE = r"""
set -euo pipefail
trap 'code=$?; [ $code = 0 ] || { echo "--- failed: $BASH_COMMAND"; dmesg | grep -E "WARNING|BUG|stall"; dmesg | tail -30; }' EXIT
PORT=@PORT@
section() { echo "=== $1"; }
# The subsystem that discovery tells of.
discover() {
    NQN=$(nvme discover -t tcp -a $HOST_IP -s $PORT "$@" -o json 2>/dev/null |
        sed -n 's/.*"subnqn" *: *"\([^"]*\)".*/\1/p' | grep -v discovery | head -1) || true
}
# Connects, and tells its controller's device. An emulated machine may stand still for seconds: longer than the 5 s that a host has
# by default for a sign of life.
connect() {
    discover
    nvme connect -t tcp -a $HOST_IP -s $PORT -n "$NQN" -k 60 "$@" >/dev/null
    for dev in /sys/class/nvme/nvme*; do
        if [ "$(cat $dev/subsysnqn)" = "$NQN" ]; then CTRL=${dev##*/}; fi
    done
}
disconnect() { nvme disconnect -n "$NQN" >/dev/null; }
# The kernel counts its devices by itself: the number of a device's namespace.
nsid() { nvme get-ns-id $1 | sed 's/.*: *//'; }
# The device of a namespace, when it has come: `node ng 2`, `node nvme 1`.
node() {
    local path
    for _ in $(seq 100); do
        for path in /dev/${1}[0-9]*n[0-9]*; do
            if [ -e $path ] && [ "$(nsid $path)" = $2 ]; then echo $path; return; fi
        done
        sleep 0.1
    done
    echo "no $1 device of namespace $2"; ls /dev; return 1
}
# A key of at most 16 bytes in its four dwords.
key() {
    local hex=$(printf %s "$1" | xxd -p) at dword out=
    hex=$(printf '%-32s' "$hex" | tr ' ' 0)
    for at in 0 8 16 24; do
        dword=${hex:$at:8}
        out+=" 0x${dword:6:2}${dword:4:2}${dword:2:2}${dword:0:2}"
    done
    set -- $out ${#1}
    echo "--cdw2=$1 --cdw3=$2 --cdw14=$3 --cdw15=$4"
}
# Commands of the key value set, by passthrough: DEVICE KEY ...
kv() { local op=$1 dev=$2 key=$3; shift 3
    nvme io-passthru $dev -n $(nsid $dev) --opcode=$op $(key "$key") "$@" 2>&1; }
kv_store() { kv 0x01 $1 "$2" --cdw10=$(stat -c %s $3) --cdw11=$((${#2} | ${4:-0} << 8)) -l $(stat -c %s $3) -w -i $3; }
kv_retrieve() { nvme io-passthru $1 -n $(nsid $1) --opcode=0x02 $(key "$2") --cdw10=$4 --cdw11=${#2} -l $4 -r -b >$3; }
kv_delete() { kv 0x10 $1 "$2" --cdw11=${#2}; }
kv_exist() { kv 0x14 $1 "$2" --cdw11=${#2}; }
kv_list() { nvme io-passthru $1 -n $(nsid $1) --opcode=0x06 $(key "$2") --cdw10=$3 --cdw11=${#2} -l $3 -r -b; }
"""
