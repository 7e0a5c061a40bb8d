"""TLS with pre-shared keys below NVMe/TCP: an independent TLS, and Linux's own host with its handshake in user space."""

import base64
import hashlib
import hmac
import json
import shutil
import struct
import subprocess
import zlib

import pytest

from conftest import binary
from server import Server

HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
MIB = 1 << 20
ICREQ = struct.pack("<BBBBI", 0, 0, 128, 0, 128) + bytes(120)


@pytest.fixture
def server(scratch):
    server = Server(binary(), scratch / "data", flags=["--nvme-tls", "required"]).start()
    yield server
    server.stop()


def admin(server, *words):
    command = [str(binary()), "admin", *words, "--dir", str(server.directory), "--json"]
    out = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def expand_label(digest, key, label, context, length):
    """HKDF-Extract without salt, then HKDF-Expand-Label (RFC 5869, RFC 8446 section 7.1)."""
    prk = hmac.new(bytes(digest().digest_size), key, digest).digest()
    info = struct.pack(">HB", length, 6 + len(label)) + b"tls13 " + label + bytes([len(context)]) + context
    out = block = b""
    for counter in range(1, 255):
        if len(out) >= length:
            return out[:length]
        block = hmac.new(prk, block + info + bytes([counter]), digest).digest()
        out += block


def psk(interchange, host, subsystem, version):
    """The identity and the key of TLS, as the NVMe TCP transport derives them from a configured key."""
    _, number, text, _ = interchange.split(":")
    digest = {1: hashlib.sha256, 2: hashlib.sha384}[int(number)]
    configured = base64.b64decode(text)[:-4]
    retained = expand_label(digest, configured, b"HostNQN", host.encode(), len(configured))
    names = f"{host} {subsystem}"
    if version == 0:
        identity = context = f"NVMe0R{number} {names}"
    else:
        told = hmac.new(retained, f"{names} NVMe-over-Fabrics".encode(), digest).digest()
        told = base64.b64encode(told).decode()
        identity, context = f"NVMe1R{number} {names} {told}", f"{number} {told}"
    return identity, expand_label(digest, retained, b"nvme-tls-psk", context.encode(), digest().digest_size)


def begin(server, identity, key, *more):
    """What comes back for an ICReq through OpenSSL's TLS; nothing when there is no handshake."""
    command = ["openssl", "s_client", "-connect", server.nvme, "-tls1_3", "-quiet", "-no_ign_eof", "-psk", key.hex(),
               "-psk_identity", identity, *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.stdin.write(ICREQ)
        process.stdin.flush()
        return process.stdout.read(128)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_openssl_agrees_on_keys(server):
    made = admin(server, "host", "add", HOST, "--tls-key", "new")[0]
    assert made["tls"] and "tls_key" not in admin(server, "host", "list")[0]
    subsystem = subprocess.run([str(binary()), "nvme", "connect-string", server.nvme, "--host-nqn", HOST, "--json"],
                               stdin=subprocess.DEVNULL, capture_output=True, check=True)
    told = json.loads(subsystem.stdout)
    assert told["nvme_cli"].endswith(" --tls")
    for version in 0, 1:
        identity, key = psk(made["tls_key"], HOST, told["subsystem"], version)
        # ICResp: type 1, 128 bytes.
        assert begin(server, identity, key)[:8] == struct.pack("<BBBBI", 1, 0, 128, 0, 128)
        wrong = bytes([key[0] ^ 1]) + key[1:]
        assert begin(server, identity, wrong) == b""
        assert begin(server, identity[:-1], key) == b""
        # Without an exchange of fresh keys nobody comes.
        assert begin(server, identity, key, "-allow_no_dhe_kex", "-groups", "X448") == b""
    # A key for SHA-384 is none for SHA-256, which is all that s_client makes of one.
    configured = bytes(range(48))
    checked = configured + struct.pack("<I", zlib.crc32(configured))
    longer = f"NVMeTLSkey-1:02:{base64.b64encode(checked).decode()}:"
    other = HOST[:-1] + "6"
    admin(server, "host", "add", other, "--tls-key", longer)
    identity, key = psk(longer, other, told["subsystem"], 1)
    assert begin(server, identity, key) == b""


@pytest.mark.timeout(1800)
def test_linux_connects_by_tls(place, scratch, data):
    """nvme-cli puts the key into the kernel's keyring, tlshd shakes hands, and the kernel's own TLS carries blocks and values."""
    disk = scratch / "disk.img"
    with open(disk, "wb") as file:
        file.truncate(16 * MIB)
    place.serve("--nvme-tls", "required", "--nvme-namespace", "values=2", "--export", f"disk={disk}:1")
    key = place.admin("host", "add", HOST, "--tls-key", "new")[0]["tls_key"]
    (place.shared / "value").write_bytes(data(100_003, seed=9))
    said = place.guest("HOST=" + HOST + "\nKEY=" + key + r"""
echo $HOST >/etc/nvme/hostnqn; echo ${HOST##*:} >/etc/nvme/hostid
discover
section discovery; nvme discover -t tcp -a $HOST_IP -s $PORT
section keys
modprobe -a tls nvme-tcp
nvme check-tls-key --insert --hostnqn=$HOST --subsysnqn="$NQN" --identity=1 --keydata=$KEY
keyctl show %:.nvme
mkdir -p /etc/tlshd; printf '[debug]\nloglevel=1\ntls=1\nnl=1\n[authenticate]\nkeyrings=.nvme\n' | tee /etc/tlshd.conf >/etc/tlshd/config
tlshd -s >/tmp/tlshd 2>&1 &
section clear; nvme connect -t tcp -a $HOST_IP -s $PORT -n "$NQN" 2>&1 && exit 1
section connect
connect -i 1 --tls || { cat /tmp/tlshd; exit 1; }
block=$(node nvme 1) values=$(node ng 2)
section key; cat /sys/class/nvme/$CTRL/tls_key
section work
fio --name=v --filename=$block --size=2M --rw=randrw --bsrange=512-64k --ioengine=libaio --iodepth=4 --direct=1 \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 --output=/tmp/fio || { cat /tmp/fio; exit 1; }
kv_store $values by-guest /share/value
kv_retrieve $values by-guest /share/back 100003
disconnect
""").wait()
    assert "required" in said["discovery"] and "tls13" in said["discovery"], said["discovery"]
    assert said["key"].strip() not in ("", "0"), said
    assert (place.shared / "back").read_bytes() == data(100_003, seed=9)
    place.forebay("cp", "fb://values/by-guest", place.shared / "copy")
    assert (place.shared / "copy").read_bytes() == data(100_003, seed=9)
