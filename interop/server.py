"""The server under test: the real binary in a directory of its own, spoken to through its contract only."""

import configparser
import json
import os
import pathlib
import signal
import subprocess
import time

READY_SECONDS = 30
STOP_SECONDS = 15
DOORS = ("s3", "rpc", "direct", "console", "nvme")


class Server:
    """A `forebay serve` process. `start` may follow `kill`: the directory and the ports stay.

    `within` is what the command is prefixed with, such as the way into a network namespace whose address is `host`."""

    def __init__(self, binary, directory, flags=(), host="127.0.0.1", within=()):
        self.binary = str(binary)
        self.flags = list(flags)
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
        """Descriptors that are no sockets: clients may keep their connections, nothing else stays."""
        folder = f"/proc/{self.process.pid}/fd"
        held = 0
        for number in os.listdir(folder):
            try:
                held += not os.readlink(f"{folder}/{number}").startswith("socket:")
            except FileNotFoundError:
                # Closed since it was listed.
                pass
        return held

    def tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def endpoint(self):
        return f"http://{self.s3}"

    @property
    def keys(self):
        """The root access key and its secret, as the first start wrote them."""
        file = configparser.ConfigParser()
        file.read(self.directory / "credentials")
        profile = file["default"]
        return profile["aws_access_key_id"], profile["aws_secret_access_key"]
