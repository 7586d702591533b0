#!/bin/bash
# A real S3 server for tests: one-node Ceph (monitor, one OSD on a file, RADOS gateway) on loopback, without systemd.
#
#   ceph-rgw.sh start DIR PORT OWNER   first start makes the cluster (about 20 s), later ones reuse DIR (7 to 22 s)
#   ceph-rgw.sh gateway DIR PORT       starts the gateway alone, beside the rest
#   ceph-rgw.sh kill DIR               SIGKILL to everything it started: a crash; start again afterwards
#
# Once the process OWNER is gone, however it ended, everything is killed and DIR is removed: its disk is a file of 10 GiB,
# which takes what was written to it.
#
# Debian packages: radosgw ceph-mon ceph-osd. Ceph 16 refuses the SDK's streamed checksum trailer (411): checksums only when
# required, path style, region "default". What matters below: cephx stays on, and the gateway's cache stays off (with it,
# CreateBucket hung for 20 s after a SIGKILL).
set -euo pipefail
verb=${1:?start, gateway or kill}; D=${2:?a folder}; PORT=${3:-0}; OWNER=${4:-0}
mkdir -p "$D"; D=$(cd "$D" && pwd)
C=(-c "$D/ceph.conf")

free_port() { node -e 'const s = require("net").createServer(); s.listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })'; }

make() {
  mkdir -p "$D"/{mon,osd,run,log,rgw}
  local fsid osd; fsid=$(cat /proc/sys/kernel/random/uuid); osd=$(cat /proc/sys/kernel/random/uuid)
  local v1 v2; v1=$(free_port); v2=$(free_port)
  cat > "$D/ceph.conf" <<C
[global]
fsid = $fsid
mon host = [v2:127.0.0.1:$v2,v1:127.0.0.1:$v1]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon max pg per osd = 1000
osd crush chooseleaf type = 0
mon data = $D/mon
osd data = $D/osd
run dir = $D/run
admin socket = $D/run/\$name.asok
pid file = $D/run/\$name.pid
log file = $D/log/\$name.log
osd objectstore = bluestore
bluestore block size = 10737418240
bluestore block create = true
osd memory target = 939524096
bluestore cache autotune = false
bluestore cache size = 67108864
mon data avail warn = 2
mon data avail crit = 1
[client.admin]
keyring = $D/admin.keyring
[client.rgw]
keyring = $D/rgw/keyring
rgw frontends = beast endpoint=127.0.0.1:$PORT tcp_nodelay=1
rgw data = $D/rgw
rgw thread pool size = 32
rgw cache enabled = false
C
  ceph-authtool --create-keyring "$D/mon.keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
  ceph-authtool --create-keyring "$D/admin.keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
  ceph-authtool "$D/mon.keyring" --import-keyring "$D/admin.keyring" >/dev/null
  monmaptool --create --addv a "[v2:127.0.0.1:$v2,v1:127.0.0.1:$v1]" --fsid "$fsid" "$D/monmap" >/dev/null
  ceph-mon "${C[@]}" --mkfs -i a --monmap "$D/monmap" --keyring "$D/mon.keyring"
  ceph-mon "${C[@]}" -i a
  ceph-authtool --create-keyring "$D/osd/keyring" --gen-key -n osd.0 >/dev/null
  echo "{\"cephx_secret\":\"$(ceph-authtool -p -n osd.0 "$D/osd/keyring")\"}" | ceph "${C[@]}" osd new "$osd" -i - >/dev/null
  ceph-osd "${C[@]}" -i 0 --mkfs --osd-uuid "$osd" 2>/dev/null
  ceph-osd "${C[@]}" -i 0 2>/dev/null
  ceph "${C[@]}" auth get-or-create client.rgw mon 'allow rw' osd 'allow rwx' -o "$D/rgw/keyring"
  until ceph "${C[@]}" osd stat 2>/dev/null | grep -q '1 up'; do sleep 0.2; done
  radosgw-admin "${C[@]}" -n client.rgw user create --uid=skrepka --display-name=skrepka \
    --access-key=AKSKREPKATEST --secret-key=SKSKREPKATESTSECRET >/dev/null
  touch "$D/made"
}

gateway() {
  setsid radosgw "${C[@]}" -n client.rgw -f >>"$D/log/rgw.out" 2>&1 < /dev/null &
  echo $! > "$D/run/rgw.pid"
  until (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; do kill -0 "$(cat "$D/run/rgw.pid")"; sleep 0.1; done
}

# A process that has ended and that nobody has waited for is not alive.
alive() { [[ -e /proc/$1 ]] && ! grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"; }

kill_all() {
  local pids; pids=$(cat "$D"/run/*.pid 2>/dev/null || true)
  for p in $pids; do kill -KILL "$p" 2>/dev/null || true; done
  for p in $pids; do while alive "$p"; do sleep 0.05; done; done
  rm -f "$D"/run/*
}

guard() {
  while alive "$OWNER" && [[ -e $D ]]; do sleep 1; done
  kill_all
  rm -rf "$D"
}

case $verb in
  start)
    if [[ -e $D/made ]]; then ceph-mon "${C[@]}" -i a; ceph-osd "${C[@]}" -i 0 2>/dev/null
    else
      setsid bash "$0" guard "$D" 0 "$OWNER" >/dev/null 2>&1 < /dev/null &
      make
    fi
    gateway ;;
  gateway) gateway ;;
  kill) kill_all ;;
  guard) guard ;;
  *) echo "start, gateway or kill" >&2; exit 2 ;;
esac
