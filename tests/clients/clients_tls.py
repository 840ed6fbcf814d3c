"""TLS with certificates generated for the test, through libnbd (GnuTLS) and QEMU."""

import json
import os
import signal
import socket

from harness import MIB, check, equal, run, test, wait_for


class Authority:
    """A certificate authority in a directory with the certificates that it has signed, under the file names
    that NBD clients expect."""

    def __init__(self, directory):
        self.dir = directory
        os.mkdir(directory)
        self.cert, self.key = self.path("ca-cert.pem"), self.path("ca-key.pem")
        self._make("ca", "test authority", ["-x509", "-addext", "basicConstraints=critical,CA:TRUE"], self.cert)

    def path(self, name):
        return os.path.join(self.dir, name)

    def _make(self, name, subject, options, out):
        run(
            *("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={subject}", "-keyout", self.path(f"{name}-key.pem"), "-out", out, "-days", "2", *options),
        )

    def sign(self, name, subject, extensions):
        """Makes NAME-cert.pem and NAME-key.pem."""
        request, ext = self.path(f"{name}.csr"), self.path(f"{name}.ext")
        self._make(name, subject, [], request)
        with open(ext, "w") as f:
            f.write(f"basicConstraints=critical,CA:FALSE\n{extensions}\n")
        run(
            *("openssl", "x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-days", "2"),
            *("-extfile", ext, "-out", self.path(f"{name}-cert.pem")),
        )


def authorities(t):
    """The authority that the server trusts and is signed by, and a foreign one."""
    out = []
    for name in ("ours", "theirs"):
        a = Authority(t.path(name))
        a.sign("server", "localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth")
        a.sign("client", "a client", "extendedKeyUsage=clientAuth")
        out.append(a)
    return out


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tls_server(t, authority, *args):
    """A server with TLS on TCP (and a UNIX socket); and its URI as a function of the directory with
    certificates."""
    port = free_port()
    s = t.server(
        *("--nbd", f"127.0.0.1:{port}", "--tls", "on", "--tls-certificates", authority.dir, *args),
    )
    s.cli("volume", "create", "disk", "--size", "8M")
    return s, lambda certificates: f"nbds://localhost:{port}/disk?tls-certificates={certificates}"


@test
def tls_with_a_server_certificate(t):
    ours, theirs = authorities(t)
    s, uri = tls_server(t, ours)
    anonymous = t.path("anonymous")
    os.mkdir(anonymous)
    os.link(ours.cert, os.path.join(anonymous, "ca-cert.pem"))
    noise = t.noise_file("noise", 8 * MIB)
    run("nbdcopy", "--flush", noise, uri(anonymous))
    run("nbdcopy", uri(anonymous), t.path("back"))
    run("cmp", noise, t.path("back"))
    # A client that trusts another authority must reject this server.
    equal(run("nbdinfo", uri(theirs.dir), check=False).returncode, 1, "status with a foreign authority")
    # The same through QEMU's TLS.
    port = uri("").split(":")[2].split("/")[0]
    out = run(
        *("qemu-img", "info", "--object", f"tls-creds-x509,id=t,endpoint=client,dir={anonymous}", "--image-opts"),
        f"driver=nbd,host=localhost,port={port},export=disk,tls-creds=t",
    ).stdout
    check("8 MiB" in out, f"QEMU over TLS: {out}")


@test
def tls_with_client_certificates(t):
    ours, theirs = authorities(t)
    s, uri = tls_server(t, ours, "--tls-verify-peer")
    noise = t.noise_file("noise", 8 * MIB)
    run("nbdcopy", "--flush", noise, uri(ours.dir))
    run("nbdcopy", uri(ours.dir), t.path("back"))
    run("cmp", noise, t.path("back"))
    anonymous = t.path("anonymous")
    os.mkdir(anonymous)
    os.link(ours.cert, os.path.join(anonymous, "ca-cert.pem"))
    check(run("nbdinfo", uri(anonymous), check=False).returncode != 0, "served without a client certificate")
    # Signed by another authority, while trusting this server.
    os.unlink(theirs.cert)
    os.link(ours.cert, theirs.cert)
    check(run("nbdinfo", uri(theirs.dir), check=False).returncode != 0, "served with a foreign client certificate")


@test
def tls_tenants_see_their_own_exports(t):
    """Two tenants on one listener: each lists and opens only its own disks, and gets no information about the
    other's."""
    ours, _ = authorities(t)
    for tenant in ("a", "b"):
        ours.sign("client", f"host-{tenant}", "extendedKeyUsage=clientAuth")
        os.mkdir(t.path(tenant))
        os.link(ours.cert, os.path.join(t.path(tenant), "ca-cert.pem"))
        for name in ("client-cert.pem", "client-key.pem"):
            os.rename(ours.path(name), os.path.join(t.path(tenant), name))
    port = free_port()
    config = t.path("forebay.toml")
    with open(config, "w") as f:
        f.write(
            f"""
[nbd.tls]
mode = "on"
certificates = "{ours.dir}"
[[nbd.listener]]
listen = ["127.0.0.1:{port}"]
clients = {{ "CN=host-a" = ["a-*"], "CN=host-b" = ["b-*"] }}
"""
        )
    http_port = free_port()
    s = t.server("--config", config, "--http", f"127.0.0.1:{http_port}")
    for name in ("a-1", "b-1"):
        s.cli("volume", "create", name, "--size", "8M")
    s.cli("snapshot", "create", "b-1", "s")
    # A token with a scope learns no names of certificates.
    token = s.cli("token", "create", "scoped", "--role", "reader", "--disks", "a-*").stdout.split()[-1]
    check("CN=host-a" in str(s.json("volume", "connect", "a-1")), "an administrator sees the names")
    api = f"http://127.0.0.1:{http_port}"
    header = f"Authorization: Bearer {token}"
    shown = run("curl", "-sS", "--fail", "-H", header, f"{api}/api/v1/volumes/a-1/connect").stdout
    check("nbds://" in shown and "Only some certificates" in shown and "CN=" not in shown, shown)

    def uri(name, tenant):
        return f"nbds://localhost:{port}/{name}?tls-certificates={t.path(tenant)}"

    for tenant, own, other in (("a", ["a-1"], "b-1"), ("b", ["b-1", "b-1@s"], "a-1")):
        listed = json.loads(run("nbdinfo", "--list", "--json", uri("", tenant)).stdout)
        equal([e["export-name"] for e in listed["exports"]], own, f"exports of tenant {tenant}")
        run("nbdcopy", "--flush", t.noise_file("noise", 8 * MIB), uri(own[0], tenant))
        answers = []
        for name in (other, "x-1"):
            p = run("nbdinfo", uri(name, tenant), check=False)
            check(p.returncode != 0, f"tenant {tenant} opened {name}")
            answers.append((p.stdout + p.stderr).replace(name, "NAME"))
        equal(answers[0], answers[1], "errors of a hidden and of a missing export")
    clear = run("nbdinfo", f"nbd://localhost:{port}/a-1", check=False)
    check(clear.returncode != 0, "served without TLS")
    # For addresses other than loopback, the server does not start without TLS.
    p = run(s.bin, "serve", "--data", t.path("other"), "--nbd", f"0.0.0.0:{port}", check=False, timeout=60)
    refused = p.returncode != 0 and "--nbd-allow-remote" in p.stderr
    check(refused, f"TCP without TLS for remote clients: {p.stderr}")


@test
def tls_certificates_are_read_again_on_sighup(t):
    ours, theirs = authorities(t)
    s, uri = tls_server(t, ours)
    run("nbdinfo", uri(ours.dir))

    def replace(name, text):
        with open(ours.path(name), "w") as f:
            f.write(text)

    def hang_up(expected):
        """Sends SIGHUP and waits for a message in the log."""
        before = logged(expected)
        s.process.send_signal(signal.SIGHUP)
        wait_for(lambda: logged(expected) != before, f"'{expected}' in the log")

    def logged(text):
        with open(s.log) as f:
            return f.read().count(text)

    files = ("ca-cert.pem", "server-cert.pem", "server-key.pem")
    # A certificate that does not match the key is not used.
    with open(theirs.path("server-cert.pem")) as f:
        replace("server-cert.pem", f.read())
    hang_up("the former one stays")
    anonymous = t.path("anonymous")
    os.mkdir(anonymous)
    for authority, works in ((ours, True), (theirs, False)):
        with open(authority.cert) as f, open(os.path.join(anonymous, "ca-cert.pem"), "w") as to:
            to.write(f.read())
        equal(run("nbdinfo", uri(anonymous), check=False).returncode == 0, works, "the old certificate serves")
    for name in files:
        with open(theirs.path(name)) as f:
            replace(name, f.read())
    hang_up("TLS certificates read again")
    run("nbdinfo", uri(anonymous))
    # A key that is readable for all users is rejected at the next start.
    s.stop()
    os.chmod(ours.path("server-key.pem"), 0o644)
    p = run(s.bin, "serve", "--data", s.data, "--nbd", "127.0.0.1:0", *("--tls-certificates", ours.dir), check=False, timeout=60)
    check(p.returncode == 1 and "chmod 600" in p.stderr, f"a key readable for all users: {p.stderr}")
