"""TLS, with certificates made for the test, through libnbd (GnuTLS) and QEMU."""

import os
import socket

from harness import MIB, check, equal, run, test


class Authority:
    """A certificate authority in a directory, and what it has signed, under the names that NBD clients expect."""

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
    """One that the server trusts and is signed by, and a stranger."""
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
    """A server with TLS on TCP (and, as always, a UNIX socket); and its URI without the certificates."""
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
    # A client that trusts another authority has to refuse this server.
    equal(run("nbdinfo", uri(theirs.dir), check=False).returncode, 1, "status with a foreign authority")
    # QEMU's TLS, too.
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
    # Signed by somebody else, while trusting this server.
    os.unlink(theirs.cert)
    os.link(ours.cert, theirs.cert)
    check(run("nbdinfo", uri(theirs.dir), check=False).returncode != 0, "served with a foreign client certificate")
