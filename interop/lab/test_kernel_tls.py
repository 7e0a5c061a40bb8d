"""Links over TLS whose keys the kernel has: both ends of iWARP in a guest, whose Linux has TLS whatever this machine's has."""

import random
import re
import shutil
import subprocess

import pytest

import laboratory
from conftest import binary

BYTES = 3 << 20
SECTION = re.compile(r"^=== (\S+)$", re.M)
# A transfer each way, while the connections of the direct door are counted beside the kernel's count of sockets that it encrypts.
SCRIPT = r"""
set -euo pipefail
trap 'code=$?; [ $code = 0 ] || { echo "--- failed: $BASH_COMMAND"; cat /tmp/log; dmesg | tail -20; }' EXIT
section() { echo "=== $1"; }
statistic() { sed -n "s/^$1[[:space:]]*//p" /proc/net/tls_stat; }
metric() { wget -qO- http://127.0.0.1:9003/metrics | sed -n "s/^$1 //p"; }
copy() {
    /tools/forebay cp --quiet --json --dir /tmp/data --ca /share/certificate --path iwarp "$1" "$2" >/tmp/copied &
    local copying=$!
    # The copy has the rest of an emulated processor: a look starts no process.
    while kill -0 $copying 2>/dev/null; do
        links=0
        # Port 9002, established.
        while read -r _ from _ state _; do
            [ "$from $state" != "0100007F:232A 01" ] || links=$((links + 1))
        done </proc/net/tcp
        while read -r name count; do
            case $name in TlsCurrTxSw) sent=$count;; TlsCurrRxSw) received=$count;; esac
        done </proc/net/tls_stat
        echo $links $sent $received
        read -rt 0.1 <>/tmp/never || true
    done
    wait $copying
    cat /tmp/copied
}
# A restored guest lives in the past.
date -s "@$(stat -c %Y /share/certificate)" >/dev/null
modprobe tls
mkfifo /tmp/never
section doctor
/tools/forebay doctor --dir /tmp/data --json || true
/tools/forebay serve /tmp/data --backend memory --s3 127.0.0.1:9000 --no-nvme --rpc 127.0.0.1:9001 --direct 127.0.0.1:9002 --console 127.0.0.1:9003 \
    --direct-tls-cert /share/certificate --direct-tls-key /share/key --ready-file /tmp/ready >/tmp/log 2>&1 & server=$!
until [ -e /tmp/ready ]; do kill -0 $server; sleep 0.2; done
/tools/forebay admin namespace create values --tenant root --dir /tmp/data
section put; copy /share/value fb://values/key
section get; copy fb://values/key /share/back
section copied; metric 'forebay_copied_bytes_total{where="link_tls"}'
section errors; statistic TlsDecryptError
section left; statistic TlsCurrTxSw; statistic TlsCurrRxSw
kill $server; wait $server
section dmesg; dmesg | grep -E "WARNING|BUG:|RIP:" || true
"""


@pytest.fixture
def certificate(scratch):
    """For the address that the guest calls itself by; whoever shows it is also who is trusted."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    certificate, key = scratch / "certificate", scratch / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2",
         "-subj", "/CN=guest", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
         "-out", certificate, "-keyout", key],
        check=True, capture_output=True,
    )
    return certificate, key


@pytest.fixture
def folders(scratch):
    """What the guest is given: the tools, and a folder for both sides."""
    laboratory.guest()
    tools, shared = scratch / "tools", scratch / "shared"
    tools.mkdir(), shared.mkdir()
    # What debuggers need is most of a debug build, and slow to share.
    subprocess.run(["strip", "-o", tools / "forebay", binary()], check=True)
    return tools, shared


# A guest may have to wait for those of others, and has no processor of its own.
@pytest.mark.timeout(1800)
def test_keys_go_to_the_kernel(lab, folders, certificate):
    tools, shared = folders
    value = random.Random(4).randbytes(BYTES)
    (shared / "value").write_bytes(value)
    for file in certificate:
        shutil.copy(file, shared)
    (shared / "script").write_text(SCRIPT)
    code, out = lab("guest-run.sh", "--share", f"{tools}:/tools:ro", "--share", f"{shared}:/share", "--timeout", 900,
                    "--", "bash /share/script")
    assert code == 0, out
    parts = SECTION.split(out)
    said = dict(zip(parts[1::2], parts[2::2]))
    assert (shared / "back").read_bytes() == value
    assert '"check":"kernel TLS","state":"ok"' in said["doctor"], said["doctor"]
    for transfer in ("put", "get"):
        assert '"path":"iwarp"' in said[transfer], said[transfer]
        samples = [tuple(map(int, line.split())) for line in said[transfer].splitlines() if re.fullmatch(r"\d+ \d+ \d+", line)]
        # Both ends of every connection of the door.
        assert any(links > 0 and sent == received == 2 * links for links, sent, received in samples), samples
    assert float(said["copied"]) == 0, said["copied"]
    assert said["errors"].strip() == "0" and said["left"].split() == ["0", "0"], said
    assert said["dmesg"].strip() == "", said["dmesg"]
