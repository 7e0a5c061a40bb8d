"""Linux's own NVMe/TCP host against the NVMe door: discovery, tools, values, blocks, access, the target's death."""

import re
import time

import pytest

from conftest import binary
from modules import built

# A guest may have to wait for those of others.
pytestmark = pytest.mark.timeout(1800)

MIB = 1 << 20
DISK_BYTES = 64 * MIB


@pytest.fixture
def disk(scratch):
    """A file to be exported."""
    path = scratch / "disk.img"
    with open(path, "wb") as file:
        file.truncate(DISK_BYTES)
    return path


def test_tools_print_what_is_there(place, disk):
    """nvme-cli: discover, list, and what identify, registers and logs hold."""
    place.serve("--nvme-allow-any-host", "--nvme-namespace", "values=2", "--export", f"disk={disk}:1")
    said = place.guest(r"""
section discover; nvme discover -t tcp -a $HOST_IP -s $PORT -o json
connect
section list; nvme list -o json >/dev/null; nvme list-subsys -o json
block=$(node nvme 1) values=$(node ng 2)
section block; lsblk -bno SIZE $block
section id-ctrl; nvme id-ctrl /dev/$CTRL -o json
section id-ns; nvme id-ns $block -o json
section descriptors; nvme ns-descs $values -o json
section show-regs; nvme show-regs /dev/$CTRL -o json
section smart-log; nvme smart-log /dev/$CTRL -o json
section error-log; nvme error-log /dev/$CTRL -o json
section effects-log; nvme effects-log /dev/$CTRL --csi=0 -o json
section effects-log-kv; nvme effects-log /dev/$CTRL --csi=1 -o json
section supported-logs; nvme supported-log-pages /dev/$CTRL -o json
section features-log; nvme fid-support-effects-log /dev/$CTRL -o json
section list-ns; nvme list-ns /dev/$CTRL -o json
section ana-log; nvme ana-log /dev/$CTRL -o json
section ana-states; cat /sys/block/nvme*c*n*/ana_state
section features; nvme get-feature /dev/$CTRL -f 7 -H; nvme get-feature /dev/$CTRL -f 0xf -H
section dmesg; dmesg | grep -i nvme
disconnect
""").wait()
    entries = said.json("discover")["records"]
    ours = [entry for entry in entries if "discovery" not in entry["subnqn"]]
    assert len(ours) == 1 and ours[0]["trtype"] == "tcp" and ours[0]["traddr"] == "10.77.0.1", entries
    assert int(said["block"]) == DISK_BYTES
    controller = said.json("id-ctrl")
    assert controller["mn"].strip() == "Forebay" and controller["subnqn"] == ours[0]["subnqn"], controller
    assert controller["sqes"] == 0x66 and controller["cqes"] == 0x44 and controller["kas"] > 0, controller
    block = said.json("id-ns")
    assert block["nsze"] == block["ncap"] and block["nsze"] << block["lbafs"][block["flbas"] & 15]["ds"] == DISK_BYTES
    assert "csi" in said["descriptors"] and "uuid" in said["descriptors"], said["descriptors"]
    registers = said.json("show-regs")
    # CSTS.RDY, and both command sets in CAP.CSS.
    assert registers["csts"] & 1 and registers["cap"] >> 37 & 0x41 == 0x41, registers
    smart = said.json("smart-log")
    assert smart["critical_warning"] == 0 and 273 < smart["temperature"] < 373 or smart["temperature"] == 0, smart
    for log in ("error-log", "effects-log", "effects-log-kv", "supported-logs", "features-log"):
        assert said.json(log), log
    # Of both namespaces, whose group the kernel found in the log.
    assert said["ana-states"].split() == ["optimized"] * 2 and said.json("ana-log"), said
    assert "unusual" not in said["dmesg"] and "error" not in said["dmesg"].lower(), said["dmesg"]


@pytest.mark.parametrize("digests", ["", "-g -G"], ids=["plain", "digests"])
def test_values_by_passthrough_are_objects(place, aws, data, digests):
    """What a guest stores is read by S3 and by `cp`, and the reverse."""
    place.serve("--nvme-allow-any-host", "--nvme-namespace", "values=2")
    (place.shared / "ours").write_bytes(data(300_000, seed=1))
    (place.shared / "theirs").write_bytes(data(5 * MIB + 3, seed=2))
    place.aws(aws, "s3", "cp", place.shared / "ours", "s3://values/by-aws")
    place.forebay("cp", place.shared / "theirs", "fb://values/by-cp")
    place.guest(r"""
connect """ + digests + r"""
dev=$(node ng 2)
kv_retrieve $dev by-aws /share/ours.back 300000
kv_retrieve $dev by-cp /share/theirs.back $((6 << 20))
kv_store $dev small-key-16byte /share/ours
kv_store $dev large /share/theirs
echo old >/tmp/old; kv_store $dev removed /tmp/old; kv_exist $dev removed
kv_store $dev removed /tmp/old 2 && { echo "stored though it is there"; exit 1; }
kv_delete $dev removed
kv_exist $dev removed && { echo "there though it was deleted"; exit 1; }
kv_retrieve $dev removed /tmp/none 4096 && { echo "read though it was deleted"; exit 1; }
kv_list $dev "" 4096 >/share/list
disconnect
""").wait()
    back = (place.shared / "theirs.back").read_bytes()
    assert (place.shared / "ours.back").read_bytes() == data(300_000, seed=1)
    # The buffer was longer than the value: what follows is as it was.
    assert back[: 5 * MIB + 3] == data(5 * MIB + 3, seed=2) and not any(back[5 * MIB + 3 :])
    place.aws(aws, "s3", "cp", "s3://values/large", place.shared / "large")
    place.forebay("cp", "fb://values/small-key-16byte", place.shared / "small")
    assert (place.shared / "large").read_bytes() == data(5 * MIB + 3, seed=2)
    assert (place.shared / "small").read_bytes() == data(300_000, seed=1)
    assert keys((place.shared / "list").read_bytes()) == [b"by-aws", b"by-cp", b"large", b"small-key-16byte"]


def tools(place):
    """A guest's option to have `/tools/forebay`."""
    folder = place.scratch / "tools"
    folder.mkdir()
    # What debuggers need is most of a debug build, and slow to share.
    place.run("strip", "-o", folder / "forebay", binary())
    return "--share", f"{folder}:/tools:ro"


def test_our_command_line_by_the_kernels_driver(place, data):
    """`forebay nvme` on a device of Linux's own driver."""
    place.serve("--nvme-allow-any-host", "--nvme-namespace", "values=2")
    (place.shared / "value").write_bytes(data(2 * MIB + 1, seed=3))
    said = place.guest(r"""
connect
dev=$(node ng 2)
nvme() { /tools/forebay nvme "$@"; }
section store; nvme store $dev key /share/value; nvme store $dev other /share/value --if-absent --json
section keys; nvme keys $dev --json
section retrieve; nvme retrieve $dev key /share/back
nvme retrieve $dev key - | cmp - /share/value
nvme delete $dev other
section exist; nvme exist $dev key other || echo $?
section again; cp /share/value /tmp/value
for i in $(seq 10); do nvme store $dev key /tmp/value --if-absent 2>&1 || echo $?; done
section dmesg; dmesg | grep -E "BUG:|error recovery" || true
unset -f nvme; disconnect
""", *tools(place)).wait()
    assert (place.shared / "back").read_bytes() == data(2 * MIB + 1, seed=3)
    assert said["keys"].split() == ['{"key":"key"}', '{"key":"other"}']
    assert said["exist"].strip() == "key there\nother not there\n3"
    # Linux is told only when it has sent all that it was asked for: before, it would free what it sends from.
    assert said["again"].strip().splitlines() == ["forebay: Key Exists (0h/89h)", "1"] * 10, said["again"]
    assert said["dmesg"].strip() == "", said["dmesg"]
    place.forebay("cp", "fb://values/key", place.shared / "copy")
    assert (place.shared / "copy").read_bytes() == data(2 * MIB + 1, seed=3)


def test_functions_by_the_kernels_driver(place):
    """`forebay nvme exec` on a device of Linux's own driver, where it is one command to run a function and one for each piece of its result."""
    wasm = built("lines")
    place.serve("--nvme-allow-any-host", "--nvme-namespace", "values=2")
    place.admin("module", "add", wasm, "--name", "lines", "--id", 16, "--function", "grep")
    many = b"".join(b"line %d\n" % number for number in range(200_000))
    assert len(many) > 2 * MIB
    (place.shared / "log").write_bytes(many + b"ERROR disk 3\n")
    place.forebay("cp", place.shared / "log", "fb://values/log")
    said = place.guest(r"""
connect
dev=$(node ng 2)
nvme() { /tools/forebay nvme "$@"; }
section short; nvme exec $dev log 16 -- ERROR
section long; nvme exec $dev log 16 --output 16MiB -- line >/share/back
section cut; nvme exec $dev log 16 -- line 2>&1 >/share/cut || echo $?
section refused; nvme exec $dev log 17 2>&1 || echo $?; nvme exec $dev none 16 -- ERROR 2>&1 || echo $?
unset -f nvme; disconnect
""", *tools(place)).wait()
    assert said["short"].strip() == "ERROR disk 3"
    assert (place.shared / "back").read_bytes() == many
    assert (place.shared / "cut").read_bytes() == many[:MIB] and said["cut"].split()[-1] == "5", said["cut"]
    refused = ["forebay: Invalid Command Opcode (0h/01h)", "1", "forebay: KV Key Does Not Exist (0h/87h)", "3"]
    assert said["refused"].strip().splitlines() == refused, said["refused"]


def keys(page):
    """The keys of a List page: NRK, then entries padded to four bytes."""
    found, at = [], 4
    for _ in range(int.from_bytes(page[:4], "little")):
        length = int.from_bytes(page[at : at + 2], "little")
        found.append(page[at + 2 : at + 2 + length])
        at += (2 + length + 3) // 4 * 4
    return found


def test_captures_decode(place, disk, tshark):
    """tshark understands every PDU of sessions with and without digests, and warns of none."""
    place.serve("--nvme-allow-any-host", "--nvme-namespace", "values=2", "--export", f"disk={disk}:1")
    place.guest(r"""
tcpdump -Z root -i eth0 -s 0 -w /tmp/capture -U tcp port $PORT 2>/tmp/dumped & dump=$!
for _ in $(seq 100); do grep -q listening /tmp/dumped && break; sleep 0.1; done
head -c 100000 /dev/urandom >/tmp/value
for digests in "" "-g -G"; do
    connect $digests
    dev=$(node ng 2)
    kv_store $dev key /tmp/value
    kv_retrieve $dev key /tmp/back 100000; cmp /tmp/value /tmp/back
    kv_list $dev "" 4096 >/dev/null; kv_exist $dev none && exit 1
    dd if=/tmp/value of=$(node nvme 1) bs=4k count=16 oflag=direct 2>/dev/null
    disconnect
done
sleep 1; kill $dump || cat /tmp/dumped; wait $dump || true; cp /tmp/capture /share/
""").wait()
    port = place.server.nvme.rsplit(":", 1)[1]

    def shown(what):
        capture = str(place.shared / "capture")
        out = place.run(tshark, "-r", capture, "-d", f"tcp.port=={port},nvme-tcp", "-Y", what)
        return out.splitlines()

    assert len(shown("nvme-tcp")) > 100
    # Expert severities: warning and error. What TCP itself has to say of this network is not meant.
    assert shown("_ws.malformed || (nvme-tcp && _ws.expert.severity >= 0x600000 && !tcp.analysis.flags)") == []


@pytest.mark.parametrize("digests", ["", "-g -G"], ids=["plain", "digests"])
def test_a_file_system_on_blocks(place, disk, digests):
    """ext4 and fio with verification on an exported file, found whole by a second connection."""
    place.serve("--nvme-allow-any-host", "--export", f"disk={disk}:1")
    said = place.guest(r"""
connect """ + digests + r"""
dev=$(node nvme 1)
modprobe ext4; mkfs.ext4 -q -E nodiscard $dev; mkdir -p /mnt/disk; mount -t ext4 $dev /mnt/disk
fio --name=v --directory=/mnt/disk --size=8M --rw=randrw --bsrange=512-64k --ioengine=libaio --iodepth=8 --direct=1 \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 --output=/tmp/fio || { cat /tmp/fio; exit 1; }
cp -r /etc /mnt/disk/; (cd /mnt/disk/etc && find . -type f | sort | xargs sha256sum) >/tmp/before
sync; fstrim /mnt/disk; umount /mnt/disk
disconnect; connect """ + digests + r"""
dev=$(node nvme 1)
e2fsck -fn $dev; mount -t ext4 -o ro $dev /mnt/disk
(cd /mnt/disk/etc && sha256sum -s -c /tmp/before)
umount /mnt/disk
section commands
nvme write-zeroes $dev -s 0 -c 7 | head -1
nvme dsm $dev -s 8 -b 8 --ad | head -1
nvme flush $dev -n 1 | head -1
cmp -n 4096 $dev /dev/zero && echo zeroes
disconnect
""").wait()
    assert "zeroes" in said["commands"], said["commands"]
    assert not any(disk.read_bytes()[:4096])


def test_the_target_dies_under_fio(place, disk):
    """Killed and started again while blocks are written: the guest holds them, connects again and finds every block right.

    Linux sends a command in the context of the process that submits it, and a socket whose peer has gone answers that
    process with SIGPIPE, which fio would die of; so it is started with the signal ignored.
    """
    place.serve("--nvme-allow-any-host", "--export", f"disk={disk}:1")
    guest = place.guest(r"""
connect -c 1 -l 120
dev=$(node nvme 1)
touch /share/begun
trap '' PIPE
fio --name=w --filename=$dev --size=16M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --time_based \
    --runtime=12 --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=3 --output=/tmp/fio || { cat /tmp/fio; exit 1; }
section state; cat /sys/class/nvme/$CTRL/state
section dmesg; dmesg | grep -i "nvme.*reconnect" | tail -5
disconnect
""")
    guest.until((place.shared / "begun").exists)
    time.sleep(4)
    place.server.kill()
    time.sleep(1)
    place.server.start()
    said = guest.wait()
    assert said["state"].strip() == "live" and "econnect" in said["dmesg"], said
    place.files = place.server.open_files()


def test_only_hosts_that_are_known(place):
    """A stranger is sent away; a host sees its tenant's namespaces; one with a secret must prove it."""
    place.serve("--nvme-namespace", "roots=1")
    secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
    wrong = "DHHC-1:00:CzBVep/E6Q4zWH2ix+wRNluApcrvFDleg6jN8hc8YYYVgfSp:"
    hosts = {name: f"nqn.2026-01.com.example:{name}" for name in ("stranger", "vision", "secret")}
    place.admin("tenant", "create", "vision")
    place.admin("namespace", "create", "frames", "--tenant", "vision", "--nvme", "nsid=7")
    place.admin("host", "add", hosts["vision"], "--tenant", "vision")
    place.admin("host", "add", hosts["secret"], "--tenant", "root", "--chap-secret", secret)
    said = place.guest(r"""
as() { nvme connect -t tcp -a $HOST_IP -s $PORT -n "$NQN" -q nqn.2026-01.com.example:"$@"; }
ids() { for dev in /sys/class/nvme/nvme*; do [ "$(cat $dev/subsysnqn)" = "$NQN" ] && nvme list-ns /dev/${dev##*/} -o json; done; }
discover -q nqn.2026-01.com.example:stranger; section hidden; echo "$NQN"
discover -q nqn.2026-01.com.example:vision
section stranger; as stranger 2>&1 && exit 1
section vision; as vision >/dev/null; ids; nsid $(node ng 7); disconnect
section unproven; as secret 2>&1 && exit 1
section wrong; as secret --dhchap-secret=""" + wrong + r""" 2>&1 && exit 1
section secret; as secret --dhchap-secret=""" + secret + r""" >/dev/null; ids; nsid $(node ng 1); disconnect
section proved; dmesg | grep dhgroup
""").wait()
    assert said["hidden"].strip() == "", said
    numbers = {name: re.findall(r'"nsid" *: *(\d+)', said[name]) for name in ("vision", "secret")}
    assert numbers == {"vision": ["7"], "secret": ["1"]}, said
    assert "dhgroup ffdhe2048" in said["proved"], said
