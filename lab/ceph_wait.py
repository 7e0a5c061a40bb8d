#!/usr/bin/python3
"""What ceph-up.sh asks of the cluster it starts, in one process each, as the
ceph command takes half a second for every question.

Usage: ceph_wait.py keyring FILE N     keys for the admin, mon, mgr, gateway and N osds
       ceph_wait.py new DIR N          osd ids 0..N-1 are made known to the monitor
       ceph_wait.py up DIR N [POOL..]  wait until N osds are up and in; make pools
       ceph_wait.py http ADDR PORT PID wait until a web server answers, or PID ends"""
import base64, json, os, struct, sys, time

# A machine may do much else meanwhile.
LIMIT = 300


def cluster(d):
    import rados
    # The binding ignores the timeout of `connect`, and without these a monitor that ended at its start is waited for.
    bounds = {"client_mount_timeout": "60", "rados_mon_op_timeout": "60"}
    c = rados.Rados(conffile=d + "/ceph.conf", name="client.admin", conf=bounds)
    c.connect()
    return c


def ask(c, **cmd):
    r, out, err = c.mon_command(json.dumps({"format": "json", **cmd}), b"")
    if r:
        sys.exit(f"lab: {cmd['prefix']}: {err} ({r})")
    return json.loads(out) if out else None


def main():
    what, end = sys.argv[1], time.time() + LIMIT
    if what == "http":
        import http.client
        while time.time() < end and os.path.exists("/proc/" + sys.argv[4]):
            try:
                h = http.client.HTTPConnection(sys.argv[2], int(sys.argv[3]), timeout=5)
                h.request("GET", "/")
                h.getresponse().read()
                return 0
            except OSError:
                time.sleep(0.05)
        return 1
    d, n = sys.argv[2], int(sys.argv[3])
    if what == "keyring":
        caps = {"client.admin": ("mon=allow *", "osd=allow *", "mgr=allow *", "mds=allow *"), "mon.": ("mon=allow *",),
                "mgr.x": ("mon=allow profile mgr", "osd=allow *", "mds=allow *"),
                "client.rgw": ("mon=allow rw", "osd=allow rwx", "mgr=allow rw")}
        for i in range(n):
            caps[f"osd.{i}"] = ("mon=allow profile osd", "mgr=allow profile osd", "osd=allow *")
        with open(os.open(d, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            for who, cc in caps.items():    # a key: type 1 (AES), when made, length, the secret
                k = struct.pack("<HIIH", 1, int(time.time()), 0, 16) + os.urandom(16)
                f.write(f"[{who}]\n\tkey = {base64.b64encode(k).decode()}\n")
                f.writelines('\tcaps %s = "%s"\n' % tuple(c.split("=", 1)) for c in cc)
        return 0
    c = cluster(d)
    if what == "new":
        for i in range(n):
            ask(c, prefix="osd new", uuid=open(f"{d}/osd/{i}.uuid").read().strip(), id=i)
        return 0
    while time.time() < end:
        m = ask(c, prefix="osd dump")
        if sum(1 for o in m["osds"] if o["up"] and o["in"]) >= n and ask(c, prefix="mgr stat")["available"]:
            for pool in sys.argv[4:]:
                c.create_pool(pool)
                ask(c, prefix="osd pool application enable", pool=pool, app="forebay")
            return 0
        time.sleep(0.05)
    return 1


sys.exit(main())
