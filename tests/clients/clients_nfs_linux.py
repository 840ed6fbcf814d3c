"""The Linux kernel's NFS client in an emulated guest: data that fio verifies, a churn of names with listings,
and a server that is killed and upgraded under load, on a hard mount."""

import os
import re

from harness import Failed, check, equal, run, test, wait_for
from hosts import GATEWAY, LinuxHost, free_port

KILLS = int(os.environ.get("FOREBAY_NFS_KILLS", "3"))
CHURN = int(os.environ.get("FOREBAY_NFS_CHURN", "300"))
COMPLAINTS = re.compile(r"NFS: .*(error|bogus)|I/O error|BUG:|Oops|readdir loop", re.IGNORECASE)
LOAD = """
(
  trap '[[ -s /tmp/ended ]] || echo badly >/tmp/ended' EXIT
  set -e
  n=0
  until [[ -e /tmp/stop ]]; do
    fio --ioengine=psync --rw=randwrite --bsrange=1k-64k --size=5M --fsync=16 --verify=crc32c \
      --verify_fatal=1 --name=a --directory=/mnt/a/data &>/tmp/fio
    fio --ioengine=psync --direct=1 --rw=randwrite --bs=4k --size=2M --verify=crc32c --verify_fatal=1 \
      --name=b --directory=/mnt/a/data &>/tmp/fio
    n=$((n + 1)); echo $n >/tmp/rounds
  done
  echo well >/tmp/ended
) &
"""
# Files are created, renamed twice and removed; each third one stays.
CHURN_LOAD = """
(
  trap '[[ -s /tmp/churned ]] || echo badly >/tmp/churned' EXIT
  set -e
  cd /mnt/a/names
  for ((n = 0; n < $CHURN; n++)); do
    echo $n >file$n
    mv file$n moved$n
    [[ $(<moved$n) == $n ]]
    if ((n % 3)); then rm moved$n; else mv moved$n stays$n; fi
    ((n % 10)) || echo $n >/tmp/at
  done
  echo well >/tmp/churned
) &
(
  # A listing never shows a name twice, and shows all names that stay.
  cd /mnt/a/names
  until [[ -s /tmp/churned ]]; do
    before=$(cat /tmp/at 2>/dev/null || echo 0)
    ls -1U >/tmp/list
    [[ -z $(sort /tmp/list | uniq -d) ]] || echo twice >>/tmp/wrong
    stays=$(grep -c ^stays /tmp/list || true)
    ((stays >= before / 3)) || echo "$stays of $before" >>/tmp/wrong
  done
) &
"""


@test
def linux_nfs_client(t):
    port = free_port()
    s = t.server("--nfs", f"127.0.0.1:{port}")
    guest = LinuxHost(t, s, "nfs", "iqn.2026-01.org.example:unused").wait_up()
    guest.run("modprobe nfsv3")
    # The guest has no nfs-common: its kernel does the whole mount.
    options = f"vers=3,proto=tcp,port={port},mountproto=tcp,mountport={port},nolock,hard,timeo=50"
    options += f",addr={GATEWAY}"
    mount = f"mount -i -t nfs -o {options} {GATEWAY}:/ /mnt/a"
    guest.run(mount)
    guest.run("cd /mnt/a; mkdir data names; df .; echo text >data/small; sync -f data/small")
    guest.run(
        """
        cd /mnt/a/data
        ln -s small link; ln small hard; [[ $(cat link) == text && $(stat -c %h small) == 2 ]]
        truncate -s 100G sparse; echo end | dd of=sparse bs=1 seek=$((50 << 30)) conv=notrunc status=none
        [[ $(stat -c %s sparse) == $((100 << 30)) ]]
        [[ $(dd if=sparse bs=3 skip=$((50 << 30)) iflag=skip_bytes count=1 status=none) == end ]]
        (echo first; echo second) >append; echo third >>append; [[ $(wc -l <append) == 3 ]]
        : >append; [[ ! -s append ]]
        chmod 640 small; chown 1000:100 small; [[ $(stat -c '%a %u %g' small) == '640 1000 100' ]]
        touch -d 2001-02-03T04:05:06Z small; [[ $(stat -c %Y small) == $(date -d 2001-02-03T04:05:06Z +%s) ]]
        exec 9<>open; echo open >&9; rm open; [[ $(cat /proc/self/fd/9) == open ]]; exec 9>&-
        mkdir full; touch full/x; ! rmdir full 2>/dev/null; rm -r full
        head -c 3M /dev/urandom >kept; sha256sum kept >/tmp/sums; sync -f kept
        """
    )
    guest.run(LOAD)
    rounds = lambda: int(guest.run("cat /tmp/rounds 2>/dev/null || echo 0"))  # noqa: E731
    for n in range(KILLS):
        before = rounds()
        if n % 3 == 1:
            s.upgrade()
        else:
            s.kill()
            s.start()

        def is_over():
            if guest.run("cat /tmp/ended 2>/dev/null || true"):
                raise Failed(f"fio has ended:\n{guest.run('cat /tmp/fio; dmesg | tail')}")
            return rounds() > before

        wait_for(is_over, "fio during restarts", 600)
    script = "touch /tmp/stop; until [[ -s /tmp/ended ]]; do sleep 1; done; cat /tmp/ended /tmp/fio"
    ended = guest.run(script, timeout=1200)
    check(ended.startswith("well\n"), f"fio ended {ended}")
    guest.run("rm -f /mnt/a/data/a.0.0 /mnt/a/data/b.0.0")
    guest.run(CHURN_LOAD.replace("$CHURN", str(CHURN)))
    at = lambda: int(guest.run("cat /tmp/at 2>/dev/null || echo 0"))  # noqa: E731
    for part in (1, 2):
        wait_for(lambda: at() >= CHURN * part // 3, "the churn", 1200)
        s.kill()
        s.start()
    script = "until [[ -s /tmp/churned ]]; do sleep 1; done; touch /tmp/wrong; cat /tmp/churned /tmp/wrong"
    churned = guest.run(script, timeout=2400)
    equal(churned, "well", "the churn, and wrong listings")
    guest.run(f"cd /mnt/a/names; [[ $(ls | wc -l) == {-(-CHURN // 3)} ]]; ! ls | grep -v ^stays")
    guest.run(f"umount /mnt/a; {mount}; cd /mnt/a/data; sha256sum -c /tmp/sums; cd /")
    found = COMPLAINTS.findall(guest.dmesg())
    check(not found, f"the guest's log has {found}:\n{guest.dmesg()}")
    guest.run("umount /mnt/a")
    guest.kill()
    s.stop()
    run(s.bin, "check", "--data", s.data)
