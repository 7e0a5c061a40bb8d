#!/bin/bash
# build.sh - the kernel's own iWARP over TCP (siw) as a module for the lab guest. Debian builds the
# guest's kernel without it, so its source package is compiled against the kernel's headers, by that
# suite's own compiler in a directory of unpacked packages. Nothing is installed on this machine.
#
# Usage: lab/siw/build.sh
# Result: $LAB_DIR/siw/siw.ko. Idempotent.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/../lab-lib.sh"
need_root
"$HERE/../guest-build.sh"
KVER=$(awk '$1 == "kernel" { sub(",", "", $2); print $2; exit }' "$LAB_DIR/guest/img/manifest")
SERIES=$(cut -d. -f1,2 <<<"$KVER")
W=$LAB_DIR/siw ROOT=$LAB_DIR/siw/root
[ "$(cat "$W/stamp" 2>/dev/null)" = "$KVER" ] && { say "siw.ko is built for $KVER"; exit 0; }
mkdir -p "$W"
say "headers, source and compiler for $KVER"
lab_apt_debs guest "$W/debs" "$(lab_apt guest cache policy "linux-headers-$KVER" |
    awk '/^ +[0-9]+ .*main/ { sub("/main", "", $3); print $3; exit }')" \
    "linux-headers-$KVER" "linux-source-$SERIES" make dash bash coreutils sed grep mawk findutils perl-base
rm -rf "$ROOT"; mkdir -p "$ROOT"/usr/{bin,sbin,lib,lib64} "$ROOT"/{dev,proc,tmp}
for f in bin sbin lib lib64; do ln -s usr/$f "$ROOT/$f"; done   # usr-merged
for f in "$W"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$f" | tar -x -C "$ROOT" --keep-directory-symlink --no-same-owner \
        --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*'
done
[ -e "$ROOT/dev/null" ] || mknod -m 666 "$ROOT/dev/null" c 1 3
ln -sf dash "$ROOT/usr/bin/sh"; ln -sf mawk "$ROOT/usr/bin/awk"   # what no package's own files make
say "compile"
tar -x -f "$ROOT/usr/src/linux-source-$SERIES.tar.xz" -C "$ROOT/tmp" --strip-components=4 \
    "linux-source-$SERIES/drivers/infiniband/sw/siw"
# objtool looks at its limits in /proc, which is mounted for this command only
env -i PATH=/usr/bin:/usr/sbin unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' \
    "$ROOT" /usr/bin/make -C "/usr/src/linux-headers-$KVER" \
    M=/tmp/siw CONFIG_RDMA_SIW=m modules >"$W/make.log" 2>&1 || { tail -30 "$W/make.log" >&2; die "siw does not compile"; }
cp "$ROOT/tmp/siw/siw.ko" "$W/siw.ko"
echo "$KVER" >"$W/stamp"
say "built $W/siw.ko"
