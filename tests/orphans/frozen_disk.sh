# frozen_disk.sh FOLDER CMD…: runs CMD FOLDER PID, while process PID holds FOLDER/nvidia0 and hangs for good in a write to a frozen disk.
# In a mount namespace of its own, as root. Exits with 77 where such a disk cannot be made here.
d=$1
shift
dd if=/dev/zero of="$d/img" bs=1M count=16 status=none && mkfs.ext4 -q "$d/img" && mkdir "$d/mnt" && mount -o loop "$d/img" "$d/mnt" || exit 77
touch "$d/nvidia0"
fsfreeze -f "$d/mnt" || exit 77
sh -c 'exec 9<"$0/nvidia0"; echo $$ > "$0/pid"; echo x > "$0/mnt/f"' "$d" &
until [ -s "$d/pid" ] && grep -q '^State:.D' "/proc/$(cat "$d/pid")/status"; do :; done
"$@" "$d" "$(cat "$d/pid")"
code=$?
fsfreeze -u "$d/mnt"
wait
umount "$d/mnt"
exit $code
