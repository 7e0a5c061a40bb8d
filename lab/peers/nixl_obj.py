#!/usr/bin/env python3
"""NIXL's OBJ back end: blocks between host memory and objects of an S3 endpoint.

Usage: nixl_obj.py --op read|write --endpoint URL --access-key A --secret-key S --bucket B
                   [--size BYTES] [--concurrency N] [--seconds S]
Prints one JSON object: ops_per_s, mb_per_s, p50_us, p99_us, p999_us, client_cpu_s_per_gb, errors.
Needs the packages nixl-cu12 and numpy; the bucket must be there.
"""

import argparse
import json
import os
import random
import time

import numpy

OBJECTS = 256
WARM_UP_S = 1.0


def connect(args):
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    agent = nixl_agent("bench", nixl_agent_config(backends=[]))
    agent.create_backend("OBJ", {
        "access_key": args.access_key, "secret_key": args.secret_key, "region": "us-east-1", "bucket": args.bucket,
        "endpoint_override": args.endpoint, "scheme": "http", "use_virtual_addressing": "false",
        "req_checksum": "required",
    })
    return agent


class Blocks:
    """Host memory for the blocks in flight, and the objects, both registered."""

    def __init__(self, agent, args):
        self.agent, self.size, self.places = agent, args.size, args.concurrency
        self.memory = numpy.frombuffer(bytearray(os.urandom(1 << 20) * -(-args.size * args.concurrency >> 20)), numpy.uint8)
        self.address = self.memory.ctypes.data
        agent.register_memory([(self.address, len(self.memory), 0, "")], "DRAM", backends=["OBJ"])
        objects = [(0, args.size, number, f"nixl/{number}") for number in range(1, OBJECTS + 1)]
        agent.register_memory(objects, "OBJ", backends=["OBJ"])

    def move(self, operation, numbers):
        """One transfer of as many blocks as there are numbers; whether it was done."""
        local = [(self.address + self.size * place, self.size, 0) for place in range(len(numbers))]
        there = [(0, self.size, number) for number in numbers]
        descriptors = self.agent.get_xfer_descs(local, "DRAM"), self.agent.get_xfer_descs(there, "OBJ")
        handle = self.agent.initialize_xfer(operation, *descriptors, "bench")
        state = self.agent.transfer(handle)
        while state == "PROC":
            # It can only be asked; asking without a pause would take the processor from its own threads.
            time.sleep(5e-5)
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        return state == "DONE"


def measure(blocks, args):
    everything = list(range(1, OBJECTS + 1))
    for first in range(0, OBJECTS, args.concurrency):
        assert blocks.move("WRITE", everything[first:first + args.concurrency]), "not prepared"
    took, errors, cpu = [], 0, 0.0
    start = time.perf_counter() + WARM_UP_S
    end = start + args.seconds
    while (begun := time.perf_counter()) < end:
        before = time.process_time()
        done = blocks.move(args.op.upper(), random.sample(everything, args.concurrency))
        if begun < start:
            continue
        cpu += time.process_time() - before
        if done:
            took.append(time.perf_counter() - begun)
        else:
            errors += args.concurrency
    seconds = time.perf_counter() - start
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
    for name in ("--endpoint", "--access-key", "--secret-key", "--bucket"):
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    result = measure(Blocks(connect(args), args), args)
    print("\n" + json.dumps(result), flush=True)
    os._exit(0)


main()
