#!/bin/bash
# dissect.sh - an independent dissector (tshark) reads our iWARP: a capture of both our ends on
# loopback, without and with CRCs, and every capture that rping.sh left.
#
# Usage: lab/siw/dissect.sh [PROGRAM]
#   PROGRAM  the example `rping` of crates/fabric (default target/debug/examples/rping, built if missing)
# Needs: tshark (it brings dumpcap).
# Exit: 0 when it finds nothing wrong. Two of its warnings are about the revision, not about us: it
# knows RFC 5044 only, whose revision is 1 and which has no flag for RFC 6581's data.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/../lab-lib.sh"
need_root
need_host_pkgs tshark
cd "$HERE/../.."
PROGRAM=${1:-${CARGO_TARGET_DIR:-target}/debug/examples/rping}
[ -x "$PROGRAM" ] || cargo build -q -p forebay-fabric --example rping
OUT=$LAB_DIR/siw/out PORT=7184
mkdir -p "$OUT"
for crc in "" crc; do
    file=$OUT/ours${crc:+-$crc}.pcapng
    rm -f "$file"
    dumpcap -i lo -f "tcp port $PORT" -w "$file" 2>"$OUT/dumpcap.log" & capture=$!
    for _ in $(seq 50); do grep -q '^File' "$OUT/dumpcap.log" && break; sleep 0.1; done
    "$PROGRAM" server 127.0.0.1:$PORT $crc >/dev/null & server=$!
    for _ in $(seq 50); do "$PROGRAM" client 127.0.0.1:$PORT 3 150000 $crc 2>/dev/null && break; sleep 0.1; done
    wait $server
    sleep 0.5
    kill $capture
    wait $capture || true
done
failed=0
for file in "$OUT"/*.pcap*; do
    found=$(tshark -r "$file" -o tcp.desegment_tcp_streams:TRUE -z expert,warn -q 2>/dev/null |
        grep -E 'IWARP|Malformed' |
        grep -vE 'Re[sv]+ field is NOT set to (zero|one) as required by RFC 5044' || true)
    found+=$(tshark -r "$file" -V 2>/dev/null | grep 'Bad CRC32' || true)
    segments=$(tshark -r "$file" -Y iwarp_ddp 2>/dev/null | wc -l)
    say "${file##*/}: $segments frames with segments${found:+, FAILED}"
    [ -z "$found" ] || { printf '%s\n' "$found" >&2; failed=1; }
    case $file in *ours*) [ "$segments" -gt 0 ] || failed=1;; esac
done
exit $failed
