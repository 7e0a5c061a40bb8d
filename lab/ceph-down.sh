#!/bin/bash
# ceph-down.sh - stop a cluster that ceph-up.sh started, and remove its folder.
#
# Usage: ceph-down.sh [--name NAME] [--all] [--keep]
#   --name NAME   (default c)     --all   every cluster under $LAB_DIR/ceph
#   --keep        stop the processes, keep the folder (logs, stores)
# Ends only the processes that ceph-up.sh noted, each by its pid and start time.
# Idempotent: nothing there is fine.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/lab-lib.sh"
NAMES=(c) KEEP= LOCKED=
while [ $# -gt 0 ]; do
    case $1 in
        --name) NAMES=("$2"); shift 2;;
        --all) NAMES=(); for d in "$LAB_DIR"/ceph/*/; do [ -d "$d" ] && NAMES+=("$(basename "$d")"); done; shift;;
        --keep) KEEP=1; shift;;
        --locked) LOCKED=1; shift;;       # the caller holds the lock
        -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0;;
        *) die "unknown option $1";;
    esac
done
for n in ${NAMES[@]+"${NAMES[@]}"}; do
    D=$LAB_DIR/ceph/$n
    [ -d "$D" ] || continue
    if [ -z "$LOCKED" ]; then exec 9>"$LAB_DIR/ceph/.$n.lock"; flock 9; fi
    # the gateway first, then osds, then mgr and mon; nothing here is worth a
    # clean shutdown, but an osd that is told stops in a fraction of a second
    for k in rgw osd mgr mon; do
        for f in "$D"/pid/$k*; do
            [ -e "$f" ] || continue
            read -r pid st <"$f" || continue
            pid_alive "$pid" "$st" && kill -TERM "$pid" 2>/dev/null && kill -CONT "$pid" 2>/dev/null || true
        done
    done
    for f in "$D"/pid/*; do
        [ -e "$f" ] || continue
        read -r pid st <"$f" || continue
        stop_pid "$pid" "$st" 2
        rm -f "$f"
    done
    rm -f "$D/env"
    [ -n "$KEEP" ] || rm -rf "$D"
done
