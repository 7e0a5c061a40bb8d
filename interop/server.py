"""The server under test: the real binary in a directory of its own, spoken to through its contract only."""

import configparser
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.request

# A busy machine takes its time; who is told to end has ten seconds of his own.
READY_SECONDS = 120
STOP_SECONDS = 30
SETTLE_SECONDS = 30
DOORS = ("s3", "rpc", "direct", "console", "nvme")
# What the caches keep, of the engine's values and of those of a backend elsewhere.
CACHES = ("forebay_engine_cache_bytes", "forebay_tier_memory_bytes")
# Each thread that reaches the disk opens one and keeps it: the shards at the start, the journal's when it first writes to several places.
RING, LATE_RINGS = "anon_inode:[io_uring]", 1
GAUGES = ("forebay_buffer_in_use_bytes", "forebay_connections", *CACHES)
# What a server may have open after tests that it had not before them.
SPARE_FILES = 16


class Server:
    """A `forebay serve` process. `start` may follow `kill`: the directory and the ports stay.

    `within` is what the command is prefixed with, such as the way into a network namespace whose address is `host`."""

    def __init__(self, binary, directory, flags=(), host="127.0.0.1", within=()):
        self.binary = str(binary)
        self.flags = list(flags)
        self.scheme = "https" if "--s3-tls-cert" in self.flags else "http"
        self.within = list(within)
        self.directory = pathlib.Path(directory)
        self.log = self.directory.with_suffix(".log")
        self.process = None
        for door in DOORS:
            setattr(self, door, f"{host}:0")

    def start(self):
        ready = self.directory.with_suffix(".ready")
        ready.unlink(missing_ok=True)
        command = [*self.within, self.binary, "serve", str(self.directory), "--ready-file", str(ready)]
        for door in DOORS:
            command += [f"--{door}", getattr(self, door)]
        command += self.flags
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_SECONDS
        while not ready.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"exit {self.process.returncode} at start:\n{self.tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"not ready after {READY_SECONDS} s:\n{self.tail()}")
            time.sleep(0.005)
        doors = json.loads(ready.read_text())
        for door in DOORS:
            # A door that a flag closed is not there.
            setattr(self, door, doors.get(door, getattr(self, door)))
        return self

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """SIGTERM drains and exits 0 within its promised time."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"still running {STOP_SECONDS} s after SIGTERM:\n{self.tail()}")
        if code != 0:
            raise RuntimeError(f"exit {code} after SIGTERM:\n{self.tail()}")

    def open_files(self):
        """How many descriptors are no sockets: clients may keep their connections, nothing else stays."""
        return len(self.files())

    def files(self):
        """What those descriptors are of."""
        folder = f"/proc/{self.process.pid}/fd"
        targets = []
        for number in os.listdir(folder):
            try:
                targets.append(os.readlink(f"{folder}/{number}"))
            except FileNotFoundError:
                # Closed since it was listed.
                pass
        return sorted(target for target in targets if not target.startswith("socket:"))

    def held(self):
        """What the server holds now: files, rings of io_uring, connections, and buffers, without those that its caches keep."""
        with urllib.request.urlopen(f"http://{self.console}/metrics", timeout=READY_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        told = {name: float(value) for name, _, value in (line.partition(" ") for line in lines) if name in GAUGES}
        files = self.files()
        buffers = told["forebay_buffer_in_use_bytes"] - sum(told.get(name, 0) for name in CACHES)
        return {
            "open files": sum(file != RING for file in files),
            "rings": files.count(RING),
            "connections": int(told["forebay_connections"]),
            "bytes of buffers": int(buffers),
        }

    def settled(self, before, spare_files=0):
        """Hangs up, and then the server holds no more than it did before its clients came. What it is told of a connection that has
        ended takes a moment, and so does what it does behind an answer."""
        limits = {**before, "open files": before["open files"] + spare_files, "rings": before["rings"] + LATE_RINGS}
        self.hang_up()
        deadline = time.monotonic() + SETTLE_SECONDS
        while (held := self.held()) and any(held[what] > limit for what, limit in limits.items()):
            assert time.monotonic() < deadline, f"{held}; before the clients came {before}; now open: {self.files()}"
            time.sleep(0.01)

    def hang_up(self):
        """Ends what this process still has of connections to the server: many a client keeps its own for as long as the process
        runs, and has no way to be told otherwise."""
        doors = {getattr(self, door) for door in DOORS}
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(number)) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6):
                        host, port = one.getpeername()[:2]
                        if f"{host.removeprefix('::ffff:')}:{port}" in doors:
                            one.shutdown(socket.SHUT_RDWR)
            except OSError:
                # Closed since it was listed, or of nobody.
                pass

    def tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def endpoint(self):
        return f"{self.scheme}://{self.s3}"

    @property
    def keys(self):
        """The root access key and its secret, as the first start wrote them."""
        file = configparser.ConfigParser()
        file.read(self.directory / "credentials")
        profile = file["default"]
        return profile["aws_access_key_id"], profile["aws_secret_access_key"]


@contextlib.contextmanager
def servers(binary, scratch):
    """Starts servers in this folder. Each must end well, also where another does not, with few more files open than at its start."""
    numbers = itertools.count()

    def end(server, before):
        after = server.open_files()
        server.stop()
        assert after <= before + SPARE_FILES, f"{after} open files, {before} before the test"

    with contextlib.ExitStack() as ends:

        def start(*flags, **where):
            server = Server(binary, scratch / f"data{next(numbers)}", flags=flags, **where).start()
            ends.callback(end, server, server.open_files())
            return server

        yield start
