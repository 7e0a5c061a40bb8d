"""Records what clients ask of keys and what they are answered, for `crates/history` to judge.

A value is a number that no other write has; its bytes follow from the number, so that whoever reads knows whether they are whole.
"""

import ctypes
import hashlib
import itertools
import json
import random
import subprocess
import threading
import time

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from conftest import binary

SIZES = [8, 100, 4096, 20_000, 70_000, 300_000]
REFUSED = {"PreconditionFailed", "NoSuchKey"}
CHECK_SECONDS = 120
# Who was cut off answers again: TCP takes its time to try again, and a lease is had when nobody else has it.
BACK_SECONDS = 60
CLONE_NEWNET = 0x40000000


def content(value, large=0):
    """The bytes of a value; `large` more where there is something to be cut in pieces."""
    head = value.to_bytes(8, "big")
    block = hashlib.sha256(head).digest()
    size = SIZES[value % len(SIZES)] + large
    return head + (block * (size // len(block) + 1))[: size - len(head)]


class Register:
    """One key, and how often it is asked for beside others."""

    def __init__(self, bucket, key, large=0, share=1.0):
        self.bucket, self.key, self.large, self.share = bucket, key, large, share

    def content(self, value):
        return content(value, self.large)

    def etag(self, value):
        return f'"{hashlib.md5(self.content(value)).hexdigest()}"'


class Recorder:
    """What all clients did, and the numbers of their values."""

    def __init__(self):
        self.lines = []
        self.numbers = itertools.count(1)
        self.unanswered = 0
        # Bytes that are no value's: a failure by itself.
        self.torn = []

    def answered(self, before):
        """Which clients were answered since there were so many lines."""
        return {line["client"] for line in self.lines[before:] if line["outcome"] != "unknown"}

    def until_answered(self, before, sides=1, clients=1, seconds=BACK_SECONDS):
        """Waits until every side was answered since there were so many lines; a side is so many clients in a row."""
        deadline = time.monotonic() + seconds
        while len({client // clients for client in self.answered(before)}) < sides:
            assert time.monotonic() < deadline, "all are answered again"
            time.sleep(0.1)

    def check(self):
        """Every key's history could be a register's."""
        assert not self.torn, self.torn[:3]
        text = "".join(json.dumps(line) + "\n" for line in self.lines)
        judge = binary().parent / "examples/linearizable"
        done = subprocess.run([judge], input=text, capture_output=True, text=True, timeout=CHECK_SECONDS)
        print(done.stdout + done.stderr)
        assert done.returncode == 0, done.stdout + done.stderr


class Client(threading.Thread):
    """Asks at random for some keys, one request at a time, until it is told to stop."""

    def __init__(self, recorder, number, clients, registers, seed, within=None):
        super().__init__(daemon=True)
        self.within = within
        self.recorder, self.number, self.clients, self.registers = recorder, number, clients, registers
        self.rng = random.Random(seed)
        self.stopping = threading.Event()
        # What this client last knew of each key.
        self.known = {}
        self.failures = []

    def run(self):
        if self.within:
            enter(self.within)
        while not self.stopping.is_set():
            register, = self.rng.choices(self.registers, [one.share for one in self.registers])
            # One client for each gateway.
            self.one(self.rng.choice(self.clients), register)

    def one(self, client, register):
        name = dict(Bucket=register.bucket, Key=register.key)
        value = expected = None
        chance = self.rng.random()
        if chance < 0.5:
            op, ask = "read", lambda: client.get_object(**name)["Body"].read()
        elif chance < 0.56:
            op, ask = "delete", lambda: client.delete_object(**name)
        else:
            value = next(self.recorder.numbers)
            body = register.content(value)
            known = self.known.get(register.key)
            if chance < 0.66:
                op, more = "create", dict(IfNoneMatch="*")
            elif chance < 0.76 and known:
                op, expected, more = "swap", known, dict(IfMatch=register.etag(known))
            else:
                op, more = "write", {}
            ask = lambda: client.put_object(**name, Body=body, **more)
        line = dict(key=register.key, client=self.number, op=op, value=value, expected=expected)
        line["asked"] = time.monotonic_ns()
        try:
            answer = ask()
            line["outcome"] = "done"
            if op == "read":
                line |= dict(outcome="saw", value=self.whole(register, answer))
        except ClientError as refusal:
            code = refusal.response["Error"]["Code"]
            if op == "read" and code == "NoSuchKey":
                line["outcome"] = "saw"
            elif op in ("create", "swap") and code in REFUSED:
                line["outcome"] = "refused"
            else:
                line["outcome"] = "unknown"
                self.failures.append(code)
        except (BotoCoreError, HTTPClientError) as failure:
            line["outcome"] = "unknown"
            self.failures.append(type(failure).__name__)
        line["answered"] = time.monotonic_ns()
        if line["outcome"] == "unknown":
            self.recorder.unanswered += 1
        elif op in ("create", "swap", "write", "read"):
            self.known[register.key] = line["value"] if line["outcome"] != "refused" else self.known.get(register.key)
        self.recorder.lines.append({name: one for name, one in line.items() if one is not None})

    def whole(self, register, body):
        value = int.from_bytes(body[:8], "big")
        if body != register.content(value):
            self.recorder.torn.append((register.key, len(body), body[:64]))
        return value


def enter(namespace):
    """Has this thread's sockets be in the network namespace at this path."""
    with open(namespace) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def work(recorder, clients, registers, count, seed, first=0, within=None):
    """Starts `count` clients, each speaking to all gateways, in this network namespace."""
    threads = [
        Client(recorder, first + number, clients, registers, seed + first + number, within) for number in range(count)
    ]
    [thread.start() for thread in threads]
    return threads


def finish(threads, seconds=120):
    [thread.stopping.set() for thread in threads]
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a request hangs"
