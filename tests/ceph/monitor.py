"""Requests to the monitor of a test cluster, for `cluster.sh`:

    monitor.py CONF keyring OSDS            print new keys of all processes, and of client.admin
    monitor.py CONF new-osds UUID...        add OSDs, numbered from 0
    monitor.py CONF wait-up OSDS SECONDS    wait until as many OSDs are up
    monitor.py CONF wait-clean SECONDS      wait until all placement groups are active and clean
    monitor.py CONF pool NAME PGS           create a pool
    monitor.py CONF ec-pool NAME PGS        create an erasure-coded pool
    monitor.py CONF acting POOL NAMESPACE OBJECT  print the OSDs that have an object, the primary first
    monitor.py CONF growing POOL NAMESPACE SECONDS  print the objects that grow within this time
    monitor.py CONF quota NAME BYTES        limit the bytes in a pool; 0: no limit
"""

import base64
import ctypes
import json
import os
import signal
import struct
import sys
import time

PR_SET_PDEATHSIG = 1
CONNECT_S = 20
POLL_S = 0.1

ALL = {"mon": "allow *", "osd": "allow *", "mgr": "allow *"}
MGR = {"mon": "allow profile mgr", "osd": "allow *"}
OSD = {"mon": "allow profile osd", "osd": "allow *", "mgr": "allow profile osd"}


def new_key():
    """A secret in Ceph's encoding: type (1: AES), time, length, bytes."""
    header = struct.pack("<HIIH", 1, int(time.time()), 0, 16)
    return base64.b64encode(header + os.urandom(16)).decode()


def keyring(osds):
    """A keyring of the whole cluster."""
    osds = {f"osd.{n}": OSD for n in range(osds)}
    entities = {"mon.": {"mon": "allow *"}, "client.admin": ALL, "mgr.x": MGR, **osds}
    lines = []
    for name, capabilities in entities.items():
        lines += [f"[{name}]", f"key = {new_key()}"]
        lines += [f'caps {service} = "{what}"' for service, what in capabilities.items()]
    return "\n".join(lines)


class Monitor:
    """A connection to the monitor. The library may crash if the process ends without closing it."""

    def __init__(self, conf):
        import rados

        self.cluster = rados.Rados(conffile=conf)
        try:
            self.cluster.connect(timeout=CONNECT_S)
        except rados.Error as e:
            raise SystemExit(f"the monitor does not answer: {e}") from e
        # Without keys, only this detects that another cluster uses the port.
        found, expected = self.cluster.get_fsid(), self.cluster.conf_get("fsid")
        if found != expected:
            self.close()
            raise SystemExit(f"{self.cluster.conf_get('mon_host')} belongs to cluster {found}, not {expected}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.cluster.shutdown()

    def request(self, prefix, **arguments):
        """Executes a command; its parsed answer."""
        command = json.dumps({"prefix": prefix, "format": "json", **arguments})
        status, out, error = self.cluster.mon_command(command, b"", timeout=CONNECT_S)
        if status:
            raise SystemExit(f"{prefix}: {error} ({status})")
        return json.loads(out) if out.strip() else None

    def new_osds(self, uuids):
        for number, uuid in enumerate(uuids):
            self.request("osd new", uuid=uuid, id=number)
        # The module would create another pool some seconds later.
        off = {"name": "mgr/devicehealth/enable_monitoring", "value": "false"}
        self.request("config set", who="mgr", force=True, **off)
        for flag in ("noscrub", "nodeep-scrub"):
            self.request("osd set", key=flag)

    def wait(self, condition, seconds, what):
        """Waits until `condition` returns no state that it still waits for."""
        deadline = time.monotonic() + seconds
        while state := condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"{what} after {seconds} s: {state}")
            time.sleep(POLL_S)

    def wait_up(self, osds, seconds):
        def missing():
            found = self.request("osd stat")
            return None if min(found["num_up_osds"], found["num_in_osds"]) >= osds else found

        self.wait(missing, seconds, "not all OSDs are up")

    def wait_clean(self, seconds):
        """Waits for what the manager reports: of all groups, and of all pools."""

        def missing():
            groups = self.request("status")["pgmap"]
            pools = len(self.request("osd pool ls"))
            states = {s["state_name"] for s in groups.get("pgs_by_state", [])}
            return None if states == {"active+clean"} and groups["num_pools"] >= pools else groups

        self.wait(missing, seconds, "not clean")

    def pool(self, name, groups):
        self.request("osd pool create", pool=name, pg_num=groups, pgp_num=groups)
        self.request("osd pool application enable", pool=name, app="forebay", yes_i_really_mean_it=True)

    def ec_pool(self, name, groups):
        profile = ["k=2", "m=1", "crush-failure-domain=osd"]
        self.request("osd erasure-code-profile set", name=name, profile=profile)
        kind = {"pool_type": "erasure", "erasure_code_profile": name}
        self.request("osd pool create", pool=name, pg_num=groups, pgp_num=groups, **kind)

    def acting(self, pool, namespace, name):
        return self.request("osd map", pool=pool, object=name, nspace=namespace)["acting"]

    def growing(self, pool, namespace, seconds):
        """Names of objects whose length changes."""
        with self.cluster.open_ioctx(pool) as io:
            io.set_namespace(namespace)

            def lengths():
                return {name: io.stat(name)[0] for name in (found.key for found in io.list_objects())}

            before = lengths()
            time.sleep(seconds)
            return [name for name, length in lengths().items() if length != before.get(name)]

    def quota(self, name, size):
        self.request("osd pool set-quota", pool=name, field="max_bytes", val=size)


def main(conf, command, *arguments):
    # The library waits for a monitor that was destroyed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if command == "keyring":
        print(keyring(int(arguments[0])))
        return
    with Monitor(conf) as monitor:
        match command:
            case "new-osds":
                monitor.new_osds(arguments)
            case "wait-up":
                monitor.wait_up(int(arguments[0]), float(arguments[1]))
            case "wait-clean":
                monitor.wait_clean(float(arguments[0]))
            case "pool":
                monitor.pool(arguments[0], int(arguments[1]))
            case "ec-pool":
                monitor.ec_pool(arguments[0], int(arguments[1]))
            case "acting":
                print(*monitor.acting(*arguments), sep="\n")
            case "growing":
                pool, namespace, seconds = arguments
                print(*monitor.growing(pool, namespace, float(seconds)), sep="\n")
            case "quota":
                monitor.quota(arguments[0], arguments[1])
            case _:
                raise SystemExit(f"unknown command {command}")


if __name__ == "__main__":
    main(*sys.argv[1:])
