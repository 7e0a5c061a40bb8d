"""Devices of others, and ours in their place: a virtual machine whose PCI device is served here (QEMU's vfio-user-pci), driven by
Linux's own driver; and an engine whose data is on a namespace of Linux's own target."""

import pytest

from conftest import binary

# A guest may have to wait for those of others.
pytestmark = pytest.mark.timeout(1800)

MIB = 1 << 20


def test_a_virtual_machine_has_our_controller(place, scratch, aws, data):
    disk = scratch / "disk.img"
    with open(disk, "wb") as file:
        file.truncate(32 * MIB)
    place.serve("--vfio-user", str(scratch / "vu"), "--nvme-namespace", "values=2", "--export", f"disk={disk}:1")
    (place.shared / "value").write_bytes(data(700_003, seed=5))
    place.aws(aws, "s3", "cp", place.shared / "value", "s3://values/by-aws")
    said = place.guest(r"""
block=$(node nvme 1) values=$(node ng 2)
section id-ctrl; nvme id-ctrl /dev/nvme0 -o json
section size; lsblk -bno SIZE $block; section work
fio --name=v --filename=$block --size=8M --rw=randrw --bsrange=512-128k --ioengine=libaio --iodepth=16 --direct=1 \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 --output=/tmp/fio || { cat /tmp/fio; exit 1; }
kv_retrieve $values by-aws /share/back $((1 << 20))
kv_store $values by-guest /share/value
kv_exist $values none && exit 1
kv_list $values "" 4096 >/share/list
section dmesg; dmesg | grep -i nvme
""", "--vfio-user", scratch / "vu" / "cntrl").wait()
    # Its registers are the driver's alone: this kernel lets no program map them.
    assert said.json("id-ctrl")["mn"].strip() == "Forebay", said
    assert int(said["size"]) == 32 * MIB
    assert "timeout" not in said["dmesg"].lower(), said["dmesg"]
    assert (place.shared / "back").read_bytes()[:700_003] == data(700_003, seed=5)
    assert b"by-aws" in (place.shared / "list").read_bytes()
    place.forebay("cp", "fb://values/by-guest", place.shared / "copy")
    assert (place.shared / "copy").read_bytes() == data(700_003, seed=5)


def test_an_engine_on_blocks_of_linux(place, aws, data):
    """Values go to a target that is not ours, which lets in who proves itself and goes away now and then; a kill loses none."""
    nqn, host = "nqn.2024-01.lab:nvmet", "nqn.2026-01.com.example:node"
    secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
    wrong = "DHHC-1:00:CzBVep/E6Q4zWH2ix+wRNluApcrvFDleg6jN8hc8YYYVgfSp:"
    guest = place.guest(f"NQN={nqn} NODE={host} SECRET={secret}" + r"""
cd /sys/kernel/config/nvmet
mkdir hosts/$NODE
echo -n $SECRET >hosts/$NODE/dhchap_key
lab-nvmet tcp $GUEST_IP 4420
echo 0 >subsystems/$NQN/attr_allow_any_host
ln -s $PWD/hosts/$NODE subsystems/$NQN/allowed_hosts/
touch /share/serves
until [ -e /share/begun ]; do sleep 0.2; done
proofs() { dmesg | grep -c "with DH-HMAC-CHAP" || true; }
for _ in 1 2 3; do
    rm ports/1/subsystems/$NQN; sleep 1
    before=$(proofs); ln -s $PWD/subsystems/$NQN ports/1/subsystems/
    for _ in $(seq 300); do [ $(proofs) = $before ] || break; sleep 0.2; done
done
touch /share/back-again
until [ -e /share/enough ]; do sleep 0.2; done
section dmesg; dmesg | grep -i nvmet
""", "--ip", "10")
    guest.until((place.shared / "serves").exists)
    device = ["--device", f"nvme+tcp://10.77.0.10:4420/{nqn}/1", "--device-host-nqn", host]
    with pytest.raises(RuntimeError, match="exit 1 at start"):
        place.serve(*device, "--device-chap-secret", wrong)
    server = place.serve(*device, "--device-chap-secret", secret)
    place.forebay("admin", "namespace", "create", "things")
    sizes = []

    def store(size):
        (place.shared / "value").write_bytes(data(size, seed=size))
        place.forebay("cp", place.shared / "value", f"fb://things/{size}")
        sizes.append(size)

    for size in (1, 700, 300_000, 5 * MIB + 3):
        store(size)
    (place.shared / "begun").touch()
    while not (place.shared / "back-again").exists():
        store(100_000 + len(sizes))
    server.kill()
    server.start()
    for size in sizes:
        place.forebay("cp", f"fb://things/{size}", place.shared / "back")
        assert (place.shared / "back").read_bytes() == data(size, seed=size)
    place.aws(aws, "s3", "cp", f"s3://things/{sizes[3]}", place.shared / "back")
    assert (place.shared / "back").read_bytes() == data(sizes[3], seed=sizes[3])
    server.stop()
    (place.shared / "enough").touch()
    told = guest.wait()["dmesg"]
    assert "host response mismatch" in told and told.count("with DH-HMAC-CHAP") >= 5, told
