#!/bin/bash
# ceph-up.sh - start a throwaway one-machine Ceph cluster (mon, mgr, osds and,
# when asked, an S3 gateway) as plain processes of the caller, everything under
# $LAB_DIR/ceph/NAME, nothing in /etc or /var, no service.
#
# Usage: ceph-up.sh [OPTION..]       prints shell assignments: eval "$(ceph-up.sh)"
#   --name NAME       several clusters can be up at once          (default c)
#   --osds N          (default 1)
#   --store memstore|bluestore   memory, or a sparse file per osd (default memstore)
#   --size MB         of each osd's store                         (default 1024)
#   --rgw PORT        S3 gateway on that port, with a user and its keys
#   --addr IP         address to listen on (default 127.0.0.1)
#   --netns NS        run in that network namespace (see guest-run.sh --netns-up;
#                     then the default --addr is 10.77.0.1, so that guests reach it)
#   --no-auth         auth none rather than cephx
#   --pool NAME       a replicated pool; may be repeated
#   --set KEY=VALUE   one more line for [global]; may be repeated
#   --no-install      end with 77 rather than apt-get install what is missing
# Prints: CEPH_CONF, CEPH_KEYRING, CEPH_MON, CEPH_FSID, with --rgw also
#   S3_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION.
# With CEPH_CONF set, `ceph`, `rados` and librados find the cluster by themselves.
# Idempotent: a cluster of that name that is up is reported again, one that is
# not whole any more is removed first. Stop: ceph-down.sh [--name NAME].
# To kill, stop and start its daemons one by one: ceph-daemon.sh.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/lab-lib.sh"

NAME=c OSDS=1 STORE=memstore SIZE=1024 RGW= ADDR= NETNS= AUTH=cephx SET=() POOLS=() INSTALL=1
while [ $# -gt 0 ]; do
    case $1 in
        --name) NAME=$2; shift 2;;
        --osds) OSDS=$2; shift 2;;
        --store) STORE=$2; shift 2;;
        --size) SIZE=$2; shift 2;;
        --rgw) RGW=$2; shift 2;;
        --addr) ADDR=$2; shift 2;;
        --netns) NETNS=$2; shift 2;;
        --no-auth) AUTH=none; shift;;
        --pool) POOLS+=("$2"); shift 2;;
        --set) SET+=("${2/=/ = }"); shift 2;;
        --no-install) INSTALL=; shift;;
        -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0;;
        *) die "unknown option $1";;
    esac
done
[ -n "$ADDR" ] || { [ -n "$NETNS" ] && ADDR=10.77.0.1 || ADDR=127.0.0.1; }
case $STORE in memstore|bluestore) ;; *) die "--store memstore or bluestore";; esac
D=$LAB_DIR/ceph/$NAME
[ ${#D} -le 75 ] || die "LAB_DIR is too long for the daemons' UNIX sockets: $D"

want="$OSDS $STORE $SIZE $RGW $ADDR $NETNS $AUTH ${SET[*]-} / ${POOLS[*]-}"
whole() {
    local f pid st
    [ -s "$D/env" ] && [ "$(cat "$D/options")" = "$want" ] || return 1
    for f in "$D"/pid/*; do read -r pid st <"$f" && pid_alive "$pid" "$st" || return 1; done
}
mkdir -p "$LAB_DIR/ceph"
exec 9>"$LAB_DIR/ceph/.$NAME.lock"; flock 9
if whole; then say "cluster $NAME is up"; cat "$D/env"; exit 0; fi
T0=$(date +%s.%N)

pk=(python3 ceph-mon ceph-osd ceph-mgr ceph-common python3-rados)
[ -z "$RGW" ] || pk+=(radosgw)
if [ -n "$INSTALL" ]; then need_host_pkgs "${pk[@]}" 9>&-; fi
for b in ceph-mon ceph-osd ceph-mgr monmaptool ${RGW:+radosgw radosgw-admin}; do
    command -v $b >/dev/null || unavailable "no $b here"
done

"$HERE/ceph-down.sh" --name "$NAME" --locked 9>&-
mkdir -p "$D"/{mon,mgr,run,log,pid,cmd,osd}; chmod 700 "$D"
ns=(); [ -z "$NETNS" ] || { need_root; ns=(nsenter "--net=/run/netns/$NETNS"); }
read -r P2 P1 < <("${ns[@]}" python3 - "$ADDR" <<'P'
import errno, random, socket, sys
# of ports that nobody is given who asks for any one: they are free until the monitor has them
def bind(s):
    try: s.bind((sys.argv[1], random.randrange(10000, 20000)))
    except OSError as error:
        if error.errno != errno.EADDRINUSE: raise
        bind(s)
both = [socket.socket(), socket.socket()]
for s in both: bind(s)
print(*(s.getsockname()[1] for s in both))
P
)
FSID=$(cat /proc/sys/kernel/random/uuid)
size=$(( OSDS < 3 ? OSDS : 3 ))
cat >"$D/ceph.conf" <<C
[global]
fsid = $FSID
mon_host = [v2:$ADDR:$P2,v1:$ADDR:$P1]
mon_initial_members = a
public_addr = $ADDR
cluster_addr = $ADDR
auth_cluster_required = $AUTH
auth_service_required = $AUTH
auth_client_required = $AUTH
auth_allow_insecure_global_id_reclaim = false
keyring = $D/keyring
run_dir = $D/run
admin_socket = $D/run/\$name.\$pid.asok
log_file = $D/log/\$name.log
crash_dir = $D/log
ms_bind_port_min = 20000
ms_bind_port_max = 32000
osd_pool_default_size = $size
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = $STORE
memstore_device_bytes = $(( SIZE << 20 ))
bluestore_block_size = $(( SIZE << 20 ))
bluestore_block_create = true
bluestore_fsck_on_mount = false
osd_memory_target = 939524096
osd_max_object_name_len = 1024
osd_scrub_begin_hour = 0
osd_scrub_during_recovery = false
osd_class_load_list = *
osd_class_default_list = *
mon_data = $D/mon
mgr_data = $D/mgr
osd_data = $D/osd/\$id
mon_allow_pool_delete = true
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_max_pg_per_osd = 1000
# a monitor on a disk that is nearly full would end at its start; this one writes a few MB
mon_data_avail_warn = -1
mon_data_avail_crit = -1
mon_debug_no_require_bluestore_for_ec_overwrites = true
mon_cluster_log_to_file = false
# a dead OSD is noticed in seconds, and not replaced while somebody looks
osd_heartbeat_interval = 1
osd_heartbeat_grace = 10
mon_osd_min_down_reporters = 1
mon_osd_down_out_interval = 600
# quick map changes: one machine, one monitor
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
mgr_initial_modules =
rgw_data = $D/run
rgw_enable_usage_log = false
C
for s in ${SET[@]+"${SET[@]}"}; do echo "$s" >>"$D/ceph.conf"; done

K=$D/keyring
python3 "$HERE/ceph_wait.py" keyring "$K" "$OSDS"
monmaptool --create --fsid "$FSID" --addv a "[v2:$ADDR:$P2,v1:$ADDR:$P1]" "$D/monmap" >/dev/null
export CEPH_CONF=$D/ceph.conf
unset CEPH_ARGS CEPH_KEYRING     # another cluster's, in the caller's environment
"${ns[@]}" ceph-mon -i a --mkfs --monmap "$D/monmap" --keyring "$K" >>"$D/log/out" 2>&1 || { tail -5 "$D/log/out" >&2; die "ceph-mon --mkfs failed"; }

start() {   # NAME CMD..: noted for ceph-daemon.sh, which starts it
    local n=$1; shift
    echo "$(printf '%q ' "${ns[@]}" "$@")" >"$D/cmd/$n"
    "$HERE/ceph-daemon.sh" --name "$NAME" start "$n" 9>&-
}
fail() { tail -15 "$D/log/out" >&2; "$HERE/ceph-down.sh" --name "$NAME" --locked --keep 9>&-; die "$* (logs: $D/log)"; }

start mon ceph-mon -f -i a
for i in $(seq 0 $((OSDS-1))); do
    mkdir -p "$D/osd/$i"; cat /proc/sys/kernel/random/uuid >"$D/osd/$i.uuid"
    "${ns[@]}" ceph-osd -i $i --mkfs --osd-uuid "$(cat "$D/osd/$i.uuid")" --no-mon-config >>"$D/log/out" 2>&1 9>&- &
    mk[$i]=$!
done
for p in "${mk[@]}"; do wait "$p" || fail "ceph-osd --mkfs failed"; done
start mgr ceph-mgr -f -i x
# the ids, before the osds start; python3-rados is Debian's, so its python too
PY=/usr/bin/python3
"${ns[@]}" $PY "$HERE/ceph_wait.py" new "$D" "$OSDS" 9>&- || fail "no answer from the monitor"
# Ceph's own packages are built with tcmalloc. Debian's are not, and the C library's allocator gives what an osd freed back to the kernel,
# to be cleared again for the next write: that would be most of what a write costs.
as_built=()
for lib in /usr/lib/*/libtcmalloc.so.4; do [ ! -e "$lib" ] || as_built=(env "LD_PRELOAD=$lib"); done
for i in $(seq 0 $((OSDS-1))); do start osd.$i "${as_built[@]}" ceph-osd -f -i $i; done
# An osd in memory counts what it holds without a lock, in the end a little too much or too little; less than nothing it takes for full.
[ "$STORE" != memstore ] || POOLS+=(ballast)
"${ns[@]}" $PY "$HERE/ceph_wait.py" up "$D" "$OSDS" ${POOLS[@]+"${POOLS[@]}"} 9>&- || fail "the osds did not come up"
[ "$STORE" != memstore ] || for i in $(seq $(( (SIZE + 1023) / 1024 ))); do
    head -c $(( 32 << 20 )) /dev/zero | timeout 60 "${ns[@]}" rados -p ballast put $i - 9>&- || fail "no ballast"
done

{
    echo "export CEPH_CONF=$D/ceph.conf"
    echo "export CEPH_KEYRING=$D/keyring"
    echo "export CEPH_MON=$ADDR:$P2"
    echo "export CEPH_FSID=$FSID"
} >"$D/env.new"
if [ -n "$RGW" ]; then
    ak=LAB$(head -c 12 /dev/urandom | od -An -tx1 | tr -d ' \n' | tr a-f A-F | cut -c1-17)
    sk=$(head -c 20 /dev/urandom | od -An -tx1 | tr -d ' \n')
    "${ns[@]}" radosgw-admin -n client.rgw user create --uid=lab --display-name=lab \
        --access-key="$ak" --secret-key="$sk" --caps='buckets=*;users=*' >>"$D/log/out" 2>&1 9>&- || fail "no S3 user"
    start rgw "${as_built[@]}" radosgw -f -n client.rgw --rgw-frontends="beast endpoint=$ADDR:$RGW"
    "${ns[@]}" $PY "$HERE/ceph_wait.py" http "$ADDR" "$RGW" "$(cut -d' ' -f1 "$D/pid/rgw")" 9>&- || fail "the gateway does not answer"
    {
        echo "export S3_ENDPOINT=http://$ADDR:$RGW"
        echo "export AWS_ACCESS_KEY_ID=$ak"
        echo "export AWS_SECRET_ACCESS_KEY=$sk"
        echo "export AWS_REGION=default"
    } >>"$D/env.new"
fi
echo "$want" >"$D/options"
mv "$D/env.new" "$D/env"
say "cluster $NAME up in $(awk "BEGIN{printf \"%.1f\", $(date +%s.%N) - $T0}") s: $(ceph-osd --version | cut -d' ' -f1-3), $OSDS osd, $STORE${RGW:+, S3 on $ADDR:$RGW}"
cat "$D/env"
