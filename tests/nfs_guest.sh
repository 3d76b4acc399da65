# What the guests of tests/integration/test_nfs.py run: a trainer beside the NFS server, two workers on the other machine.
# Both mount the server's folder, and believe for 20 s what they know of names and files (actimeo=20).
set -ux
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root OMP_NUM_THREADS=1
name=$1
source /mnt/settings # CHECKOUT, INPUTS, STEPS
hostname "$name"
ip link set lo up && ip link set eth0 up
mkdir -p "$INPUTS" /shared && cp -r /mnt/inputs/. "$INPUTS"
cd "$CHECKOUT" || exit 1
wait_for() { until [ -e "$1" ]; do sleep 0.2; done; }

if [ "$name" = server ]; then
  ip address add 10.98.0.1/24 dev eth0
  mkdir -p /exported && mount -t tmpfs tmpfs /exported
  mount -t nfsd nfsd /proc/fs/nfsd
  echo '/exported *(rw,sync,fsid=0,no_root_squash,no_subtree_check,insecure)' >/etc/exports
  exportfs -ra && rpc.mountd --no-nfs-version 3 && rpc.nfsd --no-nfs-version 3 4
  at=127.0.0.1
else
  ip address add 10.98.0.2/24 dev eth0
  at=10.98.0.1
fi
until mount -t nfs -o vers=4.2,actimeo=20 $at:/ /shared; do sleep 1; done
grep ' /shared nfs4 ' /proc/mounts >"/mnt/$name.mount"
uname -r >>"/mnt/$name.mount"

run=(--data "$INPUTS/data" --policy "$INPUTS/policy" --run-dir /shared/run --engine local --mode sparse
  --max-turn-tokens 12 --max-turns 2 --max-staleness 1)
play=(-m tests.tiny_training play "${run[@]}" --follow --concurrency 1 --worker)
if [ "$name" = server ]; then
  wait_for /mnt/client.looked
  touch /shared/late /mnt/late
  .venv/bin/python -m tests.tiny_training train "${run[@]}" --rollouts service --max-steps "$STEPS" --batch-size 3 \
    --num-rollouts 4 --learning-rate 0.01 --token-budget 600 --eval-every 2 --on-collapse warn --min-entropy 0 \
    >/mnt/trainer.log 2>&1
  echo $? >/mnt/trainer.status
  wait_for /mnt/client.done
  cp -r /exported/run /mnt/run
else
  ls -la /shared /shared/late # which is not there yet
  touch /mnt/client.looked && wait_for /mnt/late
  began=$(date +%s%N) && wait_for /shared/late && echo $((($(date +%s%N) - began) / 1000000)) >/mnt/late.ms
  .venv/bin/python "${play[@]}" a >/mnt/a.log 2>&1 &
  # b is killed as it claims a question of step 1, and starts again.
  .venv/bin/python -m tests.dying '[["/000001/.*claim|/claims/.*000001", 1, 0]]' "${play[@]}" b >/mnt/b.log 2>&1
  echo $? >/mnt/b-killed.status
  sleep 5
  .venv/bin/python "${play[@]}" b >>/mnt/b.log 2>&1
  echo $? >/mnt/b.status
  wait %1
  echo $? >/mnt/a.status
  touch /mnt/client.done
fi
