"""A virtual machine whose PCI device is served here (QEMU's vfio-user-pci), driven by Linux's own driver."""

import pytest

# A guest may have to wait for those of others.
pytestmark = pytest.mark.timeout(900)

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
