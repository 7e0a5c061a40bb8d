#!/usr/bin/env python3
"""Mooncake's transfer engine over TCP: blocks between the memory of two processes of this machine.

Usage: mooncake_tcp.py --op read|write [--size BYTES] [--concurrency N] [--seconds S]
Prints one JSON object: ops_per_s, mb_per_s, p50_us, p99_us, p999_us, client_cpu_s_per_gb, errors.
Needs the package mooncake-transfer-engine-non-cuda (or -engine); loopback only.
"""

import argparse
import ctypes
import json
import mmap
import os
import random
import subprocess
import sys
import time

HOST = "127.0.0.1"
REMOTE_BYTES = 256 << 20
WARM_UP_S = 1.0


def engine():
    # It writes its log to standard output before a flag could say otherwise.
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    from mooncake.engine import TransferEngine

    made = TransferEngine()
    assert made.initialize(HOST, "P2PHANDSHAKE", "tcp", "") == 0, "no engine"
    return made


def memory(made, size):
    """Memory that is there, and its address."""
    area = mmap.mmap(-1, size)
    area.write(os.urandom(1 << 20) * (size >> 20))
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert made.register_memory(address, size) == 0, "not registered"
    return area, address


def target(ready):
    """Tells through the descriptor `ready` where its memory is, and ends with its standard input."""
    made = engine()
    area, address = memory(made, REMOTE_BYTES)
    with open(ready, "w") as pipe:
        json.dump({"at": f"{HOST}:{made.get_rpc_port()}", "address": address}, pipe)
    sys.stdin.read()
    del area


def measure(made, remote, args):
    move = {"read": made.batch_transfer_sync_read, "write": made.batch_transfer_sync_write}[args.op]
    area, address = memory(made, max(args.size * args.concurrency, 1 << 20))
    local = [address + args.size * place for place in range(args.concurrency)]
    blocks, lengths = REMOTE_BYTES // args.size, [args.size] * args.concurrency
    took, errors, cpu = [], 0, 0.0
    start = time.perf_counter() + WARM_UP_S
    end = start + args.seconds
    while (begun := time.perf_counter()) < end:
        there = [remote["address"] + args.size * random.randrange(blocks) for _ in local]
        before = time.process_time()
        failed = move(remote["at"], local, there, lengths) != 0
        if begun < start:
            continue
        cpu += time.process_time() - before
        if failed:
            errors += args.concurrency
        else:
            took.append(time.perf_counter() - begun)
    seconds = time.perf_counter() - start
    del area
    done = len(took) * args.concurrency
    took.sort()
    us = lambda part: 1e6 * took[min(len(took) - 1, int(len(took) * part))] if took else 0.0
    moved = done * args.size
    return {
        "ops_per_s": done / seconds, "mb_per_s": moved / 1e6 / seconds,
        "p50_us": us(0.5), "p99_us": us(0.99), "p999_us": us(0.999),
        "client_cpu_s_per_gb": cpu / (moved / 1e9) if moved else None, "errors": errors,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=["read", "write"], default="read")
    parser.add_argument("--size", type=int, default=1 << 20)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--target", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.target:
        return target(args.target)
    told, ready = os.pipe()
    other = subprocess.Popen(
        [sys.executable, __file__, "--target", str(ready)], pass_fds=[ready],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    os.close(ready)
    with open(told) as pipe:
        remote = pipe.read()
    try:
        assert remote, "the other process did not come up"
        result = measure(engine(), json.loads(remote), args)
    finally:
        other.kill()
        other.wait()
    print("\n" + json.dumps(result), flush=True)
    # Its threads would outlive the interpreter and end with a complaint.
    os._exit(0)


main()
