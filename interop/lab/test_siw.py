"""Our iWARP before independent eyes: Linux's own software iWARP (siw) and rdma-core's rping, then tshark on everything captured."""

import pytest

# A guest and a kernel module may have to be made first.
LONG = 1800


@pytest.mark.timeout(LONG)
def test_rping_with_the_kernels_iwarp(lab, rping, siw):
    code, said = lab("siw/rping.sh", rping)
    assert code == 0, said
    assert said.count(": 10 pings") == 4, said


@pytest.mark.timeout(LONG)
def test_tshark_reads_every_capture_without_a_warning(lab, rping, tshark):
    code, said = lab("siw/dissect.sh", rping)
    assert code == 0, said
    assert "ours.pcapng" in said and "ours-crc.pcapng" in said, said
