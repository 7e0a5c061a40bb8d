#!/bin/bash
# rping.sh - our iWARP and the kernel's (siw, in the lab guest) ping each other: rdma-core's rping as
# client of our server, and as server of our client, without and with CRCs. siw does not notice what
# arrives between its reply to a connection and the end of siw_accept until more arrives: our client
# sends more until it is answered (see crates/fabric/examples/rping.rs). What was on the wire stays
# as $LAB_DIR/siw/out/*.pcap, for tshark and for golden frames.
#
# Usage: lab/siw/rping.sh [PROGRAM]
#   PROGRAM  the example `rping` of crates/fabric (default target/debug/examples/rping, built if missing)
# Exit: 0 when every ping of every run came back whole.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/../lab-lib.sh"
need_root
cd "$HERE/../.."
PROGRAM=${1:-${CARGO_TARGET_DIR:-target}/debug/examples/rping}
[ -x "$PROGRAM" ] || cargo build -q -p forebay-fabric --example rping
PROGRAM=$(realpath "$PROGRAM")
"$HERE/build.sh"
one_guest_at_a_time
OUT=$LAB_DIR/siw/out PINGS=10 PORT=7174 NS=fblab-siw$$
mkdir -p "$OUT"
# Captures of an earlier run would pass for this one's; what this one is to leave is told to dissect.sh.
rm -f "$OUT"/client-*.pcap "$OUT"/server*.pcap
printf '%s\n' client-100 client-20000 server server-crc >"$OUT/captures"
# In the guest: the device, and a capture named $1.
PREPARE='insmod /siw/siw.ko; rdma link add siw0 type siw netdev eth0
capture() { tcpdump -Z root -i eth0 -s 0 -U -w /siw/out/$1.pcap tcp port '$PORT' 2>/run/tcpdump & td=$!
    for i in $(seq 100); do grep -q listening /run/tcpdump && break; sleep 0.1; done; }
captured() { sleep 1; kill $td; wait $td; }'
guest() { "$HERE/../guest-run.sh" --share "$LAB_DIR/siw:/siw" --timeout 120 "$@"; }
failed=0
verdict() { # NAME PINGS-SEEN
    if [ "$2" = $PINGS ]; then say "$1: $2 pings"; else say "$1: FAILED, $2 of $PINGS pings"; failed=1; fi
}

# The kernel as client.
for bytes in 100 20000; do
    n=$(guest --host-cmd "$PROGRAM server \$HOST_IP:$PORT" --wait-port $PORT "$PREPARE
        capture client-$bytes; rping -c -a \$HOST_IP -p $PORT -C $PINGS -S $bytes -v -V; captured" |
        grep -c '^ping data') || true
    verdict "siw client, $bytes bytes" "$n"
done

# The kernel as server: a guest that stays, reached from its namespace.
trap '"$HERE/../guest-run.sh" --netns-down $NS' EXIT
"$HERE/../guest-run.sh" --netns-up $NS
for crc in "" crc; do
    log=$OUT/server${crc:+-$crc}.log
    guest --netns $NS --ip 11 "$PREPARE
        capture server${crc:+-$crc}; timeout 90 rping -s -a 0.0.0.0 -p $PORT -S 20000 -C $PINGS -v -V; captured" >"$log" 2>&1 &
    run=$!
    for _ in $(seq 600); do
        timeout 60 ip netns exec $NS "$PROGRAM" client 10.77.0.11:$PORT $PINGS 20000 $crc 2>/dev/null && break
        kill -0 $run 2>/dev/null || break
        sleep 0.2
    done
    wait $run || true
    verdict "siw server${crc:+, CRC}" "$(grep -c '^server ping data' "$log")"
done
exit $failed
