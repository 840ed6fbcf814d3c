"""Targets by command line: they persist after kill -9, errors name the reason, and secrets are never
shown."""

import json
import os

from hosts import free_port
from initiator import Initiator
from harness import ControlSocket, check, connect, equal, run, test, wait_for

A = "iqn.2026-01.org.example:a"
B = "iqn.2026-01.org.example:b"
HOST = "iqn.1993-08.org.debian:01:host"
SECRET = "a secret of all"


def say_secret(t, name, secret):
    path = t.path(name)
    with open(path, "w") as f:
        f.write(secret + "\n")
    os.chmod(path, 0o600)
    return path


def refusals(s, cases):
    for part, *args in cases:
        said = s.refused(*args)
        check(part in said, f"'forebay {' '.join(args)}' says: {said}")


@test
def targets_persist_after_kill_9_and_protect_their_disks(t):
    s = t.server()
    secret = say_secret(t, "secret", SECRET)
    for name in ("v", "w", "other"):
        s.cli("volume", "create", name, "--size", "8M")
    s.cli("snapshot", "create", "v", "s")
    said = s.cli("target", "create", A).stdout
    check(f"target allow {A}" in said, said)
    s.cli("target", "create", B, "--open", "--chap-user", "all", "--chap-secret-file", secret)
    s.cli("lun", "map", A, "v")
    s.cli("lun", "map", A, "w", "--lun", "7", "--write-back")
    equal(s.json("lun", "map", A, "v@s")["read_only"], True, "a snapshot is read-only")
    s.cli("target", "allow", A, HOST, "--lun", "7", "--chap-user", "one", "--chap-secret-file", secret)
    refusals(s, [
        ("'v' is LUN 0 of target " + A + "; unmap it first", "volume", "rm", "v"),
        ("'v@s' is LUN 1 of target", "snapshot", "rm", "v", "s"),
        ("exists already", "target", "create", A),
        ("'disks' is not an iSCSI or NVMe name", "target", "create", "disks"),
        ("LUN 7 of target " + A + " is 'w'", "lun", "map", A, "other", "--lun", "7"),
        ("'v' is LUN 0", "lun", "map", A, "v"),
        ("256 cannot be a LUN", "lun", "map", B, "v", "--lun", "256"),
        ("has no LUN 9", "lun", "unmap", A, "9"),
        ("has no LUN 9", "target", "allow", A, HOST, "--lun", "9"),
        ("there is no target", "target", "show", "iqn.2026-01.org.example:c"),
        ("has no entry for", "target", "deny", B, HOST),
        ("shorter than 12", "target", "allow", A, HOST, "--chap-user", "u", "--chap-secret-file", say_secret(t, "short", "x")),
        ("cannot read the secret", "target", "allow", A, HOST, "--chap-user", "u", "--chap-secret-file", t.path("none")),
    ])
    equal(s.cli("target", "create", B, "--chap-user", "u", check=False).returncode, 2, "a user without a secret")

    before = s.json("target", "list")
    equal([(l["lun"], l["disk"]) for l in before[0]["luns"]], [(0, "v"), (1, "v@s"), (7, "w")], "LUNs")
    equal((before[1]["open"], before[1]["chap_user"], before[1]["number"]), (True, "all", 2), "the second target")
    s.kill()
    s.start()
    equal(s.json("target", "list"), before, "targets after kill -9")
    for args in (("target", "list"), ("target", "show", A), ("lun", "list", A)):
        said = s.cli(*args).stdout
        check(SECRET not in said, said)
    check(SECRET not in json.dumps(before), "a secret in JSON")

    s.cli("target", "deny", A, HOST)
    s.cli("lun", "unmap", A, "0")
    s.cli("target", "rm", B)
    s.kill()
    s.start()
    left = s.json("target", "list")
    equal([t["name"] for t in left], [A], "targets")
    equal(([l["lun"] for l in left[0]["luns"]], left[0]["initiators"]), ([1, 7], []), "what is left of the first")
    with open(s.log) as f:
        check(SECRET not in f.read(), "a secret in the log")
    s.cli("target", "rm", A)
    s.cli("snapshot", "rm", "v", "s")
    s.cli("volume", "rm", "v")
    s.stop()
    run(s.bin, "check", "--data", s.data)


@test
def targets_are_updated_to_match_the_configuration(t):
    secret, config = say_secret(t, "secret", SECRET), t.path("config.toml")
    with open(config, "w") as f:
        f.write(f"""
[[iscsi.target]]
name = "{A}"
chap_user = "all"
chap_secret_file = "{secret}"
luns = [{{ lun = 0, disk = "v" }}, {{ lun = 3, disk = "later" }}]
initiators = [{{ name = "{HOST}", luns = [0] }}]
""")
    s = t.server("--config", config)
    equal(s.json("target", "show", A)["luns"], [], "LUNs without disks")
    s.cli("target", "create", B)
    for name in ("v", "later"):
        s.cli("volume", "create", name, "--size", "1M")
    s.cli("target", "deny", A, HOST)
    s.stop()
    s.start()
    target = s.json("target", "show", A)
    equal([(l["lun"], l["disk"]) for l in target["luns"]], [(0, "v"), (3, "later")], "LUNs")
    equal((target["chap_user"], target["number"]), ("all", 1), "user and number")
    equal([(i["name"], i["luns"]) for i in target["initiators"]], [(HOST, [0])], "initiators")
    names = [other["name"] for other in s.json("target", "list")]
    check(B in names, "a target outside of the configuration is missing")


@test
def clients_of_a_disk_are_listed(t):
    nbd_port, iscsi_port = free_port(), free_port()
    s = t.server("--nbd", f"127.0.0.1:{nbd_port}", "--iscsi", f"127.0.0.1:{iscsi_port}")
    for name in ("v", "w"):
        s.cli("volume", "create", name, "--size", "8M")
    s.cli("snapshot", "create", "v", "s")
    s.cli("target", "create", A)
    s.cli("lun", "map", A, "v")
    s.cli("lun", "map", A, "w")
    for host, luns in ((HOST, "0"), (HOST + "2", "1")):
        s.cli("target", "allow", A, host, "--lun", luns)
    equal(s.json("volume", "clients", "v"), [], "clients of an idle volume")
    check("no clients" in s.cli("volume", "clients", "v").stdout, "the text without clients")
    check("'nosuch'" in s.refused("volume", "clients", "nosuch"), "a volume that does not exist")

    def listed(disk):
        return sorted(
            # Without the port.
            (client["protocol"], client["client"].rsplit(":", 1)[0], client["initiator"], client["read_only"])
            for client in s.json("volume", "clients", disk)
        )

    import nbd

    local = connect(s, "v")
    remote = nbd.NBD()
    remote.connect_uri(f"nbd://127.0.0.1:{nbd_port}/v")
    snapshot = connect(s, "v@s")
    portal = ("127.0.0.1", iscsi_port)
    first, second = (Initiator(portal, A, name=host) for host in (HOST, HOST + "2"))
    for initiator, lun in ((first, 0), (second, 1)):
        # The session opens its LUNs before its first command.
        initiator.ready(lun)
    here = f"process {os.getpid()}"
    of_v = [
        ("iscsi", "127.0.0.1", HOST, False),
        ("nbd", "127.0.0.1", None, False),
        ("nbd", here, None, False),
    ]
    equal(listed("v"), of_v, "clients of the volume")
    equal(listed("v@s"), [("nbd", here, None, True)], "clients of its snapshot")
    equal(listed("w"), [("iscsi", "127.0.0.1", HOST + "2", False)], "an initiator that sees this LUN only")
    check(here in s.cli("volume", "clients", "v").stdout, "the text")

    s.upgrade()
    equal(listed("v"), of_v, "clients that continue in an upgraded server")
    for client in (local, remote, snapshot):
        client.shutdown()
    first.logout()
    second.logout()
    wait_for(lambda: not any(listed(disk) for disk in ("v", "w", "v@s")), "no client is listed")


def get(s, path):
    """The body of a resource of the API."""
    connection = ControlSocket(s.control)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


@test
def all_figures_count_the_same_clients(t):
    port = free_port()
    s = t.server("--iscsi", f"127.0.0.1:{port}", )
    s.cli("volume", "create", "v", "--size", "8M")
    s.cli("snapshot", "create", "v", "s")
    for name in (A, B):
        s.cli("target", "create", name, "--open")
        s.cli("lun", "map", name, "v")

    def figures():
        in_list = next(volume for volume in s.json("volume", "list") if volume["name"] == "v")
        shown = s.json("volume", "show", "v")
        activity = next(disk for disk in json.loads(get(s, "/api/v1/activity")) if disk["name"] == "v")
        listed = s.json("volume", "clients", "v")
        return in_list["clients"], shown["clients"], activity["clients"], len(listed)

    equal(figures(), (0,) * 4, "an idle volume")
    portal = ("127.0.0.1", port)
    # Two initiators on one LUN, and one of them on the same volume at another target.
    initiators = [Initiator(portal, target, name=host) for target, host in ((A, HOST), (A, HOST + "2"), (B, HOST))]
    for initiator in initiators:
        initiator.ready()
    equal(figures(), (3,) * 4, "with three sessions")
    guest = connect(s, "v")
    equal(figures(), (4,) * 4, "with an NBD connection")
    check("in use by 4 clients: process" in s.refused("snapshot", "rollback", "v", "s"), "the number in a refusal")
    s.upgrade()
    equal(figures(), (4,) * 4, "after an upgrade")
    # A registration keeps the unit open; it is no client.
    initiators[0].command(bytes([0x5F, 6, 0, 0, 0, 0, 0, 0, 24, 0]), out=bytes(15) + b"\1" + bytes(8))
    for initiator in initiators:
        initiator.logout()
    guest.shutdown()
    wait_for(lambda: figures() == (0,) * 4, "no client is counted")


@test
def the_lines_to_connect_are_right(t):
    nbd_port, port = free_port(), free_port()
    s = t.server("--nbd", f"127.0.0.1:{nbd_port}", "--iscsi", f"127.0.0.1:{port}")
    secret = say_secret(t, "secret", SECRET)
    s.cli("volume", "create", "a b&c", "--size", "8M")
    import nbd

    uris = [way["text"] for way in s.json("volume", "connect", "a b&c", "--for", "uri")]
    equal(len(uris), 2, "addresses of NBD")
    for uri in uris:
        handle = nbd.NBD()
        handle.connect_uri(uri)
        equal(handle.get_size(), 8 << 20, uri)
        handle.shutdown()
    check("forebay lun map TARGET 'a b&c'" in s.refused("volume", "connect", "a b&c", "--for", "iscsi"), "no target")
    said = s.cli("target", "create", A, "--chap-user", "all", "--chap-secret-file", secret).stdout
    check("no iSCSI or NVMe listener" not in said, said)
    s.cli("lun", "map", A, "a b&c")
    s.cli("target", "allow", A, HOST, "--lun", "0")
    s.cli("target", "allow", A, HOST + "2", "--chap-user", "two", "--chap-secret-file", secret)
    s.cli("lun", "map", A, "a b&c", "--lun", "0", "--read-only")
    said = s.cli("volume", "connect", "a b&c", "--for", "iscsi").stdout
    for part in (f"-T {A} -p 127.0.0.1:{port} --login", "username -v USER", "password -v SECRET", "CHAP users: all, two", HOST):
        check(part in said, f"'{part}' is missing in {said}")
    check(SECRET not in said, said)
    way = json.loads(get(s, f"/api/v1/targets/{A}/connect"))["ways"][0]
    equal((way["target"], way["address"], way["lun"]), (A, f"127.0.0.1:{port}", None), "the target")
    # The portal and the credentials lead to the disk.
    initiator = Initiator(("127.0.0.1", port), way["target"], name=HOST + "2", chap=("two", SECRET))
    initiator.ready()
    initiator.logout()


@test
def a_target_without_a_listener_says_so(t):
    s = t.server()
    said = s.cli("target", "create", A).stdout
    check("no iSCSI or NVMe listener; start it with --iscsi" in said, said)
    unconfirmed = s.cli("target", "rm", "--all", check=False)
    equal(unconfirmed.returncode, 2, "all targets without confirmation")
    check("--yes" in unconfirmed.stderr, unconfirmed.stderr)
    equal(len(s.json("target", "list")), 1, "targets")
    s.cli("target", "rm", "--all", "--yes")
    equal(s.json("target", "list"), [], "targets")
