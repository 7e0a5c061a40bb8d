#!/bin/bash
# dissect.sh - an independent dissector (tshark) reads our iWARP: a capture of both our ends on
# loopback, without and with CRCs, and every capture that rping.sh left.
#
# Usage: lab/siw/dissect.sh [PROGRAM]
#   PROGRAM  the example `rping` of crates/fabric (default target/debug/examples/rping, built if missing)
# Needs: tshark (it brings dumpcap).
# When rping.sh has run, each capture that it was to leave must be there. All must hold segments.
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
OUT=$LAB_DIR/siw/out PINGS=3 BYTES=150000
mkdir -p "$OUT"
rm -f "$OUT"/ours*.pcapng
# until_true TENTHS COMMAND... - tries a command until it succeeds, for so many tenths of a second.
until_true() {
    local tries=$1
    shift
    for _ in $(seq "$tries"); do "$@" && return; sleep 0.1; done
    die "not true after $tries tenths of a second: $*"
}
# has_bytes FILE BYTES - whether a file has as many bytes.
has_bytes() { [ "$(stat -c %s "$1" 2>/dev/null || echo 0)" -ge "$2" ]; }
server= capture=
# What still runs when this fails would run for ever.
trap 'kill $server $capture 2>/dev/null || true' EXIT
for crc in "" crc; do
    file=$OUT/ours${crc:+-$crc}.pcapng log=$OUT/dumpcap${crc:+-$crc}.log said=$OUT/server-said
    # Old ones would say that these have begun.
    rm -f "$log" "$said"
    "$PROGRAM" server 127.0.0.1:0 $crc >"$said" & server=$!
    until_true 300 grep -qs '^listening on ' "$said"
    port=$(sed -n 's/^listening on .*://p' "$said")
    dumpcap -i lo -f "tcp port $port" -w "$file" 2>"$log" & capture=$!
    until_true 300 grep -qs '^File' "$log"
    "$PROGRAM" client "127.0.0.1:$port" $PINGS $BYTES $crc
    wait $server
    server=
    # Each ping is read by the server and written back; what a capture has not written when it is ended may be lost.
    until_true 300 has_bytes "$file" $((2 * PINGS * BYTES))
    kill $capture
    wait $capture || true
    capture=
done
files=("$OUT"/ours.pcapng "$OUT"/ours-crc.pcapng)
if [ -e "$OUT/captures" ]; then
    while read -r name; do files+=("$OUT/$name.pcap"); done <"$OUT/captures"
fi
failed=0
for file in "${files[@]}"; do
    found=$(tshark -r "$file" -o tcp.desegment_tcp_streams:TRUE -z expert,warn -q 2>/dev/null |
        grep -E 'IWARP|Malformed' |
        grep -vE 'Re[sv]+ field is NOT set to (zero|one) as required by RFC 5044' || true)
    found+=$(tshark -r "$file" -V 2>/dev/null | grep 'Bad CRC32' || true)
    segments=$(tshark -r "$file" -Y iwarp_ddp 2>/dev/null | wc -l || true)
    say "${file##*/}: $segments frames with segments${found:+, FAILED}"
    [ -z "$found" ] || { printf '%s\n' "$found" >&2; failed=1; }
    [ "$segments" -gt 0 ] || { say "${file##*/}: no segments, FAILED"; failed=1; }
done
exit $failed
