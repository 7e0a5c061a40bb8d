#!/bin/bash
# ceph-daemon.sh - what can befall one daemon of a cluster that ceph-up.sh started.
#
# Usage: ceph-daemon.sh [--name NAME] kill|stop|cont|start DAEMON
#   DAEMON   mon, mgr, rgw, osd.0, osd.1 ..          --name NAME  (default c)
#   kill     SIGKILL, and wait until it is gone
#   stop     SIGSTOP: it keeps its connections and answers nobody
#   cont     SIGCONT
#   start    again, with what it has on its disk (a memstore that was killed has nothing)
# Signals only the process that was noted at its start, by pid and start time.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/lab-lib.sh"
case ${1:-} in -h|--help|'') sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0;; esac
NAME=c
[ "$1" != --name ] || { NAME=$2; shift 2; }
DO=$1 WHO=$2 D=$LAB_DIR/ceph/$NAME
[ -s "$D/cmd/$WHO" ] || die "cluster $NAME has no $WHO"
pid='' st=''
[ ! -s "$D/pid/$WHO" ] || read -r pid st <"$D/pid/$WHO"
if [ "$DO" = start ]; then
    ! pid_alive "$pid" "$st" || die "$WHO runs"
    export CEPH_CONF=$D/ceph.conf
    unset CEPH_ARGS CEPH_KEYRING     # another cluster's, in the caller's environment
    read -r cmd <"$D/cmd/$WHO"
    eval "exec setsid $cmd" >>"$D/log/out" 2>&1 </dev/null &
    echo "$! $(pid_start $!)" >"$D/pid/$WHO"
    exit 0
fi
pid_alive "$pid" "$st" || die "$WHO does not run"
case $DO in
    kill) kill -KILL "$pid"; n=200
        while [ $n -gt 0 ] && pid_alive "$pid" "$st"; do sleep 0.05; n=$((n-1)); done;;
    stop) kill -STOP "$pid";;
    cont) kill -CONT "$pid";;
    *) die "kill, stop, cont or start, not $DO";;
esac
