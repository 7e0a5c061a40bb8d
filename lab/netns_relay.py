#!/usr/bin/env python3
"""A link between two network namespaces that loses, delays, reorders and cuts: what
tc netem does, for kernels without it, and more. Started by netns.sh.

Usage: netns_relay.py NS_A NS_B DIR
  DIR/conf   JSON: loss dup corrupt reorder reset (percent), delay jitter (ms), rate
             (Mbit/s), limit (packets), seed, only ("ab" or "ba"); read again on SIGHUP
  DIR/stats  counters of both directions, written on SIGUSR1
Makes a tap device eth0 in each namespace and carries the frames until SIGTERM."""
import ctypes, fcntl, heapq, json, os, random, select, signal, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET, TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0002, 0x1000


def tap(ns):
    n = os.open("/run/netns/" + ns, os.O_RDONLY)
    if libc.setns(n, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns " + ns)
    os.close(n)
    f = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(f, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
    return f


def checksum(data):
    """RFC 1071, over an even number of bytes."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def reset(frame):
    """The frame as a RST (RFC 9293 section 3.5.2) with the same numbers, or None when it is no TCP over IPv4 with payload."""
    if frame[12:14] != b"\x08\x00" or frame[14] != 0x45 or frame[23] != 6:
        return None
    length = struct.unpack("!H", frame[16:18])[0]
    if length - 20 - (frame[46] >> 4) * 4 <= 0:
        return None
    ip = bytearray(frame[14:34])
    ip[2:4], ip[10:12] = struct.pack("!H", 40), b"\0\0"
    ip[10:12] = struct.pack("!H", checksum(bytes(ip)))
    tcp = bytearray(frame[34:54])
    tcp[12], tcp[13], tcp[16:18] = 5 << 4, 0x14, b"\0\0"      # no options; RST, ACK
    pseudo = bytes(ip[12:20]) + struct.pack("!BBH", 0, 6, 20)
    tcp[16:18] = struct.pack("!H", checksum(pseudo + bytes(tcp)))
    return frame[:14] + bytes(ip) + bytes(tcp)


class Way:
    """One direction."""
    def __init__(self, name, src, dst):
        self.name, self.src, self.dst = name, src, dst
        self.heap, self.seq, self.free_at = [], 0, 0.0
        self.n = dict.fromkeys(("in", "out", "bytes", "lost", "dup", "corrupt", "reset", "early", "overflow"), 0)

    def configure(self, c):
        on = c.get("only") in (None, self.name)
        g = lambda k, d=0.0: float(c.get(k, d)) if on else d
        percents = ("loss", "dup", "corrupt", "reorder", "reset")
        self.loss, self.dup, self.corrupt, self.reorder, self.reset = (g(k) / 100 for k in percents)
        self.delay, self.jitter = g("delay") / 1e3, g("jitter") / 1e3
        self.rate, self.limit = g("rate") * 1e6 / 8, int(c.get("limit", 1000))
        self.rnd = random.Random(f"{c['seed']}{self.name}" if "seed" in c else None).random
        self.plain = not (self.delay or self.jitter or self.rate)

    def take(self):
        """Read what there is, at most 64 frames; plain frames go straight on."""
        n, rnd = self.n, self.rnd
        for _ in range(64):
            try:
                f = os.read(self.src, 65600)
            except BlockingIOError:
                return
            n["in"] += 1
            if self.loss and rnd() < self.loss:
                n["lost"] += 1
                continue
            if self.reset and rnd() < self.reset:
                cut = reset(f)
                if cut:
                    n["reset"] += 1
                    f = cut
            if self.corrupt and rnd() < self.corrupt:
                n["corrupt"] += 1
                i = 14 + int(rnd() * (len(f) - 14))      # not the Ethernet header
                f = f[:i] + bytes([f[i] ^ (1 << int(rnd() * 8))]) + f[i + 1:]
            twice = self.dup and rnd() < self.dup
            if twice:
                n["dup"] += 1
            for _ in range(2 if twice else 1):
                if self.plain and not self.heap:
                    self.send(f)
                else:
                    self.queue(f)

    def queue(self, f):
        if len(self.heap) >= self.limit:
            self.n["overflow"] += 1
            return
        now = time.monotonic()
        t = now
        if self.reorder and self.rnd() < self.reorder:
            self.n["early"] += 1
        else:
            if self.rate:
                self.free_at = t = max(now, self.free_at) + len(f) / self.rate
            t += self.delay + (self.jitter * (2 * self.rnd() - 1) if self.jitter else 0)
        self.seq += 1
        heapq.heappush(self.heap, (t, self.seq, f))

    def send(self, f):
        try:
            os.write(self.dst, f)
            self.n["out"] += 1
            self.n["bytes"] += len(f)
        except OSError:         # the other side's device is down
            self.n["lost"] += 1

    def due(self):
        h, now = self.heap, time.monotonic()
        while h and h[0][0] <= now:
            self.send(heapq.heappop(h)[2])
        return h[0][0] - now if h else None


def main():
    a, b, d = sys.argv[1:4]
    ta, tb = tap(a), tap(b)
    ways = [Way("ab", ta, tb), Way("ba", tb, ta)]
    by_fd = {w.src: w for w in ways}
    todo = set()
    for s, k in ((signal.SIGHUP, "load"), (signal.SIGUSR1, "stats"), (signal.SIGTERM, "quit"), (signal.SIGINT, "quit")):
        signal.signal(s, lambda *_, k=k: todo.add(k))
    r, w = os.pipe()
    os.set_blocking(w, False); os.set_blocking(r, False)
    signal.set_wakeup_fd(w)

    def put(name, text):
        with open(f"{d}/{name}.tmp", "w") as f:
            f.write(text)
        os.rename(f"{d}/{name}.tmp", f"{d}/{name}")

    def load():
        with open(d + "/conf") as f:
            c = json.load(f)
        for x in ways:
            x.configure(c)
    load()
    put("ready", "")
    while True:
        waits = [t for t in (x.due() for x in ways) if t is not None]
        for fd in select.select([ta, tb, r], [], [], max(0.0, min(waits)) if waits else None)[0]:
            if fd == r:
                try:
                    os.read(r, 64)
                except BlockingIOError:
                    pass
            else:
                by_fd[fd].take()
        if todo:
            if "load" in todo:
                load(); put("loaded", "")
            if "stats" in todo:
                put("stats", json.dumps({x.name: {**x.n, "held": len(x.heap)} for x in ways}) + "\n")
            if "quit" in todo:
                return
            todo.clear()


main()
