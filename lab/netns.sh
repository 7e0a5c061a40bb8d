#!/bin/bash
# netns.sh - two network namespaces joined by a link that can lose, delay,
# reorder, duplicate, corrupt and slow down packets, both ways alike.
#
# Usage: netns.sh up [--name N] [--mtu M] [--mode auto|netem|relay] [IMPAIRMENT..]
#        netns.sh set [--name N] [IMPAIRMENT..]    replace the impairments, link kept
#        netns.sh exec [--name N] a|b CMD [ARG..]  run CMD on one side
#        netns.sh stats [--name N]                 counters, JSON (netem: tc's own)
#        netns.sh down [--name N] | down --all
# Impairments (each packet, each direction):
#   --loss P      percent, 0..100 (100 cuts the link)   --dup P      percent sent twice
#   --delay MS    one way                               --corrupt P  percent with a bit flipped
#   --jitter MS   delay +- up to this much              --rate MBIT  megabits a second
#   --reorder P   percent sent at once, ahead of the delayed ones (needs --delay)
#   --limit N     packets a direction holds (default 1000), more are dropped
#   --seed N      relay only: the same draws each time
#   --only ab|ba  relay only: impair just that direction
#   --reset P     relay only: percent of TCP segments with payload made a RST, which cuts the connection
# Sides: namespaces N-a (10.78.0.1, fd78::1) and N-b (10.78.0.2, fd78::2), device
# eth0 in both; N is fblab by default. IPv6 has no duplicate address detection.
# How: a veth pair, with tc netem where the kernel has it. Where it has not, or for
# what netem cannot do, and only when something is to be impaired, a relay process
# (netns_relay.py) stands between two tap devices instead. Either way what is lost
# is one packet, never a 64 KiB bundle: offloads are off.
# Needs root; iproute2, python3 for the relay. Idempotent: up of a name that is up
# makes it anew; down of one that is not is fine.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/lab-lib.sh"
case ${1:-} in -h|--help|'') sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0;; esac
VERB=$1; shift
NAME=fblab MTU=1500 MODE=auto ALL=
declare -A I=()
while [ $# -gt 0 ]; do
    case $1 in
        --name) NAME=$2; shift 2;;
        --mtu) MTU=$2; shift 2;;
        --mode) MODE=$2; shift 2;;
        --all) ALL=1; shift;;
        --loss|--dup|--corrupt|--reorder|--delay|--jitter|--rate|--limit|--seed|--only|--reset)
            I[${1#--}]=${2%\%}; shift 2;;
        --) shift; break;;
        -*) die "unknown option $1";;
        *) break;;
    esac
done
need_root
command -v ip >/dev/null && command -v tc >/dev/null || need_host_pkgs iproute2
A=$NAME-a B=$NAME-b
dir() { echo "$LAB_DIR/netns/$1"; }
D=$(dir "$NAME")

down() {
    local n=$1 d pid st; d=$(dir "$n")
    if [ -s "$d/pid" ]; then read -r pid st <"$d/pid"; stop_pid "$pid" "$st" 2; fi
    [ ! -e "/run/netns/$n-a" ] || ip netns del "$n-a"
    [ ! -e "/run/netns/$n-b" ] || ip netns del "$n-b"
    rm -rf "$d"
}
impaired() { local k; for k in loss dup corrupt reorder delay jitter rate reset; do [ -z "${I[$k]:-}" ] || return 0; done; return 1; }
netem_args() {
    echo -n "limit ${I[limit]:-1000}"
    [ -z "${I[delay]:-}${I[jitter]:-}" ] || echo -n " delay ${I[delay]:-0}ms ${I[jitter]:-0}ms"
    [ -z "${I[reorder]:-}" ] || echo -n " reorder ${I[reorder]}%"
    [ -z "${I[loss]:-}" ] || echo -n " loss ${I[loss]}%"
    [ -z "${I[dup]:-}" ] || echo -n " duplicate ${I[dup]}%"
    [ -z "${I[corrupt]:-}" ] || echo -n " corrupt ${I[corrupt]}%"
    [ -z "${I[rate]:-}" ] || echo -n " rate ${I[rate]}mbit"
}
relay_conf() {
    local k s=
    for k in "${!I[@]}"; do
        case $k in only) s+="\"$k\": \"${I[$k]}\", ";; *) s+="\"$k\": ${I[$k]}, ";; esac
    done
    echo "{${s%, }}" >"$D/conf.new"; mv "$D/conf.new" "$D/conf"
}
netem() {   # add|change
    local n v=$1
    for n in $A $B; do
        # shellcheck disable=SC2046
        tc -n $n qdisc "$v" dev eth0 root handle 1: netem $(netem_args) || return 1
    done
}
has_netem() {
    ip netns add "$NAME-t"
    local rc=0
    { ip -n "$NAME-t" link add d0 type veth peer name d1 && tc -n "$NAME-t" qdisc add dev d0 root netem limit 10; } 2>/dev/null || rc=1
    ip netns del "$NAME-t"
    return $rc
}
address() { # NS N
    ip -n "$1" -batch - <<X
link set lo up
link set eth0 mtu $MTU
addr add 10.78.0.$2/24 dev eth0
addr add fd78::$2/64 dev eth0 nodad
link set eth0 up
X
}

case $VERB in
up)
    [ -z "${I[reorder]:-}" ] || [ -n "${I[delay]:-}" ] || die "--reorder needs --delay"
    mkdir -p "$LAB_DIR/netns"
    exec 9>"$LAB_DIR/netns/.$NAME.lock"; flock 9
    down "$NAME"; mkdir -p "$D"
    if [ "$MODE" = auto ]; then
        if [ -z "${I[reset]:-}" ] && has_netem; then MODE=netem; elif impaired; then MODE=relay; else MODE=veth; fi
    elif [ "$MODE" = netem ] && { [ -n "${I[reset]:-}" ] || ! has_netem; }; then die "this kernel has no netem, or netem cannot do this"; fi
    trap '[ $? = 0 ] || down "$NAME"' EXIT
    ip netns add $A; ip netns add $B
    echo "$MODE" >"$D/mode"
    if [ "$MODE" = relay ]; then
        relay_conf
        setsid python3 "$HERE/netns_relay.py" $A $B "$D" >"$D/log" 2>&1 </dev/null 9>&- &
        echo "$! $(pid_start $!)" >"$D/pid"
        n=200; until [ -e "$D/ready" ]; do
            n=$((n-1)); [ $n -gt 0 ] && pid_alive "$(cut -d' ' -f1 "$D/pid")" || { cat "$D/log" >&2; die "the relay did not start"; }
            sleep 0.02
        done
    else
        ip link add eth0 netns $A type veth peer name eth0 netns $B
        # one packet at a time, never a bundle
        [ "$MODE" != netem ] || for n in $A $B; do ip -n $n link set eth0 gso_max_segs 1; done
    fi
    address $A 1; address $B 2
    if [ "$MODE" = netem ] && impaired; then netem add; fi
    say "$A 10.78.0.1 and $B 10.78.0.2 are up ($MODE)";;
set)
    [ -s "$D/mode" ] || die "$NAME is not up"
    case $(cat "$D/mode") in
        netem) netem replace;;
        relay) relay_conf; read -r pid st <"$D/pid"; pid_alive "$pid" "$st" || die "the relay is gone"
               rm -f "$D/loaded"; kill -HUP "$pid"
               n=100; until [ -e "$D/loaded" ] || [ $n = 0 ]; do sleep 0.01; n=$((n-1)); done;;
        veth)  impaired && die "$NAME was made with nothing impaired: use up again, or --mode relay" || true;;
    esac;;
stats)
    [ -s "$D/mode" ] || die "$NAME is not up"
    if [ -s "$D/pid" ]; then
        read -r pid st <"$D/pid"; rm -f "$D/stats"; kill -USR1 "$pid"
        n=100; until [ -e "$D/stats" ] || [ $n = 0 ]; do sleep 0.01; n=$((n-1)); done
        cat "$D/stats"
    else for n in $A $B; do tc -n $n -s qdisc show dev eth0; done; fi;;
exec)
    case ${1:-} in a) n=$A;; b) n=$B;; *) die "exec a|b CMD";; esac; shift
    [ -e /run/netns/$n ] || die "$NAME is not up"
    exec ip netns exec $n "$@";;
down)
    if [ -n "$ALL" ]; then
        for d in "$LAB_DIR"/netns/*/; do [ ! -d "$d" ] || down "$(basename "$d")"; done
    else down "$NAME"; fi;;
*) die "up, set, exec, stats or down";;
esac
