#!/bin/bash
# hosts.sh - make N "hosts" on one Linux machine: own network, UTS (hostname), PID and mount
# namespaces, joined by a bridge that itself lives in a namespace ("fabric"), so nothing at all
# appears on the machine's own interfaces or ports.  Root needed.  No docker, no systemd.
#
#   hosts.sh up   N            make hosts n1..nN and "hub"       (10.88.0.10+i, hub = 10.88.0.1)
#   hosts.sh exec HOST CMD...  run CMD on that host (its net+uts+pid+mnt namespaces)
#   hosts.sh pid  HOST         pid (seen from here) of that host's init
#   hosts.sh cut  HOST         pull the network cable   | hosts.sh heal HOST   plug it in again
#   hosts.sh crash HOST        cable out, then kill the host's init: every process in it dies
#   hosts.sh boot  HOST        start the host again after a crash
#   hosts.sh down              end all inits that we started, delete the namespaces
#
# FIX (environment): name prefix for the namespaces (default px); DIR: state dir (default /tmp/px-hosts)
set -eu
FIX=${FIX:-rp}; DIR=${DIR:-/tmp/$FIX-hosts}; NET=10.88.0
ip_of() { [ "$1" = hub ] && echo $NET.1 || echo $NET.$((10 + ${1#n})); }

boot() {            # one host's init: sleeps, reaps, holds the namespaces open
  local h=$1
  # nsenter, not "ip netns exec": the latter mounts a fresh /sys and so hides /sys/fs/cgroup
  nsenter --net=/run/netns/$FIX-$h \
    unshare --uts --pid --mount --fork --kill-child --mount-proc \
      bash -c 'hostname "$1";
               mount --bind "$2" /etc/hosts
               trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done' init "$h" "$DIR/hosts" \
      >/dev/null 2>&1 </dev/null &
  local outer=$!; echo $outer > "$DIR/$h.outer"
  for _ in $(seq 100); do           # the init is the only child of that unshare
    p=$(cat /proc/$outer/task/$outer/children 2>/dev/null | tr -d ' ') || true
    [ -n "${p:-}" ] && [ "$(nsenter --uts=/proc/$p/ns/uts hostname 2>/dev/null)" = "$h" ] && break
    sleep 0.02
  done
  echo "$p" > "$DIR/$h.pid"
}

plug() {            # a fresh network namespace with one cable to the bridge
  local h=$1
  ip netns add $FIX-$h
  ip -n $FIX-$h link set lo up
  ip -n $FIX-hub link add v-$h type veth peer name eth0 netns $FIX-$h
  ip -n $FIX-hub link set v-$h master br0 up
  ip -n $FIX-$h addr add "$(ip_of $h)/24" dev eth0
  ip -n $FIX-$h link set eth0 up
}

case ${1:?} in
up)
  N=${2:?}; mkdir -p "$DIR"; : > "$DIR/names"
  { echo 127.0.0.1 localhost; for h in hub $(seq -f n%g "$N"); do echo "$(ip_of $h) $h"; done; } > "$DIR/hosts"
  ip netns add $FIX-hub
  ip -n $FIX-hub link set lo up
  ip -n $FIX-hub link add br0 type bridge
  ip -n $FIX-hub addr add $NET.1/24 dev br0
  ip -n $FIX-hub link set br0 up
  for h in $(seq -f n%g "$N"); do plug $h; done
  for h in hub $(seq -f n%g "$N"); do echo $h >> "$DIR/names"; boot $h; done ;;
exec)
  h=${2:?}; shift 2; p=$(cat "$DIR/$h.pid")
  exec nsenter --target "$p" --net --uts --pid --mount --wdns="$PWD" -- "$@" ;;
pid)   cat "$DIR/${2:?}.pid" ;;
cut)   ip -n $FIX-hub link set v-${2:?} down ;;
heal)  ip -n $FIX-hub link set v-${2:?} up ;;
crash) ip -n $FIX-hub link set v-${2:?} down       # no FIN, no RST gets out: power loss
       kill -9 "$(cat "$DIR/$2.pid")"
       for _ in $(seq 100); do ip -n $FIX-hub link del v-$2 2>/dev/null; ip netns del $FIX-$2 2>/dev/null && break; sleep 0.02; done ;;
boot)  plug ${2:?}; boot "$2" ;;
down)
  for h in $(cat "$DIR/names" 2>/dev/null); do
    kill -9 "$(cat "$DIR/$h.pid" 2>/dev/null)" 2>/dev/null || true
    ip netns del $FIX-$h 2>/dev/null || true
  done; rm -rf "$DIR" ;;
*) sed -n 2,20p "$0"; exit 2 ;;
esac
