"""The HTTP/JSON API over TLS: tokens, roles, sessions, renewed certificates, and hostile clients."""

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import ssl
import struct

from clients_tls import Authority
from harness import ControlSocket, check, equal, test, wait_for

HOST = "127.0.0.1"
WAIT_S = 60


class Api:
    """A client of the API over TLS. Each request has a connection."""

    def __init__(self, server, authority):
        self.port = int(json.loads(pool(server))["http"].rsplit(":", 1)[1])
        self.tls = ssl.create_default_context(cafile=authority.cert)

    def connect(self):
        return http.client.HTTPSConnection(HOST, self.port, context=self.tls, timeout=WAIT_S)

    def __call__(self, method, path, token=None, body=None, headers=None):
        """Returns status, headers and the JSON body."""
        headers = {"X-Forebay": "1", **(headers or {})}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self.connect()
        try:
            body = None if body is None else json.dumps(body)
            connection.request(method, f"/api/v1{path}", body=body, headers=headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, response.headers, json.loads(text) if text else None
        finally:
            connection.close()


def pool(server):
    connection = ControlSocket(server.control, WAIT_S)
    try:
        connection.request("GET", "/api/v1/pool")
        return connection.getresponse().read()
    finally:
        connection.close()


def start(t, *args):
    authority = Authority(t.path("ca"))
    authority.sign("server", "localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth")
    files = ("--http-certificate", authority.path("server-cert.pem"), "--http-key", authority.path("server-key.pem"))
    server = t.server("--http", f"{HOST}:0", *files, *args)
    return authority, server, Api(server, authority)


def make_token(server, name, role, *args):
    return server.cli("token", "create", name, "--role", role, *args).stdout.strip()


@test
def api_tokens_and_sessions_over_tls(t):
    audit = t.path("audit.log")
    authority, s, api = start(t, "--http-tokens", "always", "--audit-log", audit)
    equal(api("GET", "/pool")[0], 401, "status without a token")
    admin = make_token(s, "admin", "administrator")
    operator = make_token(s, "web", "operator", "--disks", "web-*", "--expires", "1h")
    check(admin.startswith("forebay_") and admin != operator, "tokens")

    for name in ("web-1", "db"):
        equal(api("POST", "/volumes", admin, {"name": name, "size_bytes": 1 << 20})[0], 201, "status of a create")
    equal([v["name"] for v in api("GET", "/volumes", operator)[2]], ["web-1"], "volumes that the operator sees")
    equal(api("POST", "/volumes/web-1/snapshots", operator, {"name": "s"})[0], 201, "status of a snapshot")
    status, headers, problem = api("POST", "/volumes/db/reset", operator)
    equal((status, problem["code"]), (404, "not_found"), "a volume outside of the scope")
    equal(headers["content-type"], "application/problem+json", "media type of an error")
    equal(api("DELETE", "/volumes/web-1", operator)[2]["code"], "forbidden", "a removal by the operator")
    file = {"name": "x", "source": {"file": "/etc/passwd"}}
    equal(api("POST", "/images", admin, file)[2]["code"], "not_here", "an import of a server file over TCP")

    status, headers, _ = api("POST", "/session", body={"token": operator})
    cookie = headers["set-cookie"]
    equal(status, 201, "status of a login")
    for attribute in ("__Host-", "HttpOnly", "SameSite=Strict", "Secure"):
        check(attribute in cookie, f"{attribute} in {cookie}")
    session = {"Cookie": cookie.split(";")[0]}
    equal(api("GET", "/session", headers=session)[2]["name"], "web", "the client of a session")
    cross = {**session, "Origin": "https://evil.example"}
    equal(api("GET", "/volumes", headers=cross)[2]["code"], "foreign_origin", "a request of another site")
    s.cli("token", "revoke", "web")
    equal(api("GET", "/session", headers=session)[0], 401, "a session of a revoked token")
    equal(api("GET", "/volumes", operator)[2]["code"], "bad_token", "a revoked token")

    path = os.path.join(t.path("data"), "tokens.json")
    equal(os.stat(path).st_mode & 0o777, 0o600, "mode of the tokens")
    with open(path) as f:
        check(admin.removeprefix("forebay_") not in f.read(), "no secret in the file")
    with open(audit) as f:
        text = f.read()
    events = [json.loads(line) for line in text.splitlines()]
    found = [e for e in events if e["who"] == "web" and e["code"] == "forbidden" and e["from"] == HOST]
    equal(len(found), 1, "audited refusals of the operator")
    check(admin not in text and operator not in text, "no secret in the audit log")
    s.stop()
    s.start()
    equal(Api(s, authority)("GET", "/pool", admin)[0], 200, "a token after a restart")


@test
def api_certificates_are_renewed_without_a_restart(t):
    authority, s, api = start(t)

    def serial():
        with contextlib.closing(api.connect()) as c:
            c.connect()
            return c.sock.getpeercert()["serialNumber"]

    first = serial()
    authority.sign("server", "localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    wait_for(lambda: serial() != first, "the changed files are read", WAIT_S)
    second = serial()
    with open(authority.path("server-key.pem"), "w") as f:
        f.write("no key")
    s.process.send_signal(signal.SIGHUP)
    equal(serial(), second, "the certificate stays in use while its files are invalid")


@test
def api_hostile_clients(t):
    """Huge headers and bodies, slow bodies, floods of connections: each is answered or cut, and others are
    served."""
    _, s, api = start(t)
    token = make_token(s, "admin", "administrator")

    def raw(data, wait=True):
        sock = api.tls.wrap_socket(socket.create_connection((HOST, api.port), WAIT_S), server_hostname=HOST)
        try:
            sock.sendall(data)
            return sock.recv(64) if wait else b""
        except OSError:
            return b""
        finally:
            sock.close()

    head = b"GET /api/v1/pool HTTP/1.1\r\nHost: localhost\r\n"
    flood = b"".join(b"X-%d: y\r\n" % i for i in range(1000))
    check(b" 431 " in raw(head + flood + b"\r\n"), "too many header fields")
    # The server answers and closes before it has read everything, so the answer can be lost.
    huge = raw(head + b"X: " + b"y" * (1 << 20))
    check(huge == b"" or b" 431 " in huge, f"a huge header: {huge}")
    check(b" 400 " in raw(b"\0\1\2 nonsense\r\n\r\n"), "no HTTP")
    for body in (b"{", b"[" * 100_000, b"\xff", b'{"name": "a", "name": "b"}'):
        request = (
            b"POST /api/v1/volumes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token.encode()
            + b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        check(raw(request)[9:12] in (b"400", b"422"), f"an invalid body: {body[:20]}")
    long = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    check(b" 413 " in raw(long + b"Content-Length: 9999999\r\n\r\n"), "a body that is announced as too long")

    # Clients that stop in the middle of a handshake, a header and a body.
    stuck = []
    for data in (None, head[:20], long + b"Content-Length: 100\r\n\r\n{"):
        sock = socket.create_connection((HOST, api.port), WAIT_S)
        if data is not None:
            sock = api.tls.wrap_socket(sock, server_hostname=HOST)
            sock.sendall(data)
        stuck.append(sock)
    equal(api("GET", "/pool", token)[0], 200, "another client at the same time")
    ends = []
    for sock in stuck:
        sock.settimeout(WAIT_S)
        try:
            ends.append(sock.recv(64)[9:12])
        except ConnectionError:
            ends.append(b"")
        sock.close()
    equal(ends[2], b"408", "the answer to a body that does not arrive")
    check(ends[0] == b"" and ends[1] in (b"", b"408"), f"ends of stuck clients: {ends}")

    codes = [api("GET", "/pool", "forebay_wrong")[0] for _ in range(15)]
    check(codes[0] == 401 and codes[-1] == 429, f"statuses of wrong tokens: {codes}")
    equal(api("GET", "/pool", token)[0], 200, "a valid token is accepted nevertheless")


@test
def api_slow_readers_of_long_lists_share_a_budget_of_memory(t):
    """A token does not read long lists on many connections: memory is bounded, all clients get lists."""
    _, s, api = start(t)
    admin, reader = make_token(s, "admin", "administrator"), make_token(s, "reader", "reader")
    count, most_mib, prefixes = 8_000, 120, ("desktop-a", "desktop-b")
    s.cli("volume", "create", "base", "--size", "1M")
    s.cli("snapshot", "create", "base", "s")
    for prefix in prefixes:
        status, _, made = api("POST", "/clones", admin, {"source": "base@s", "name": prefix, "count": count})
        equal((status, len(made)), (201, count), "clones")

    def resident_mib():
        with open(f"/proc/{s.process.pid}/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) >> 10

    def names(token, path="/volumes"):
        status, headers, disks = api("GET", path, token)
        equal(status, 200, f"status of {path}")
        return headers, [disk["name"] for disk in disks]

    everything = ["base", *(f"{prefix}-{n:04}" for prefix in prefixes for n in range(1, count + 1))]
    equal(names(admin)[1], everything, "the list")
    before = resident_mib()
    with contextlib.ExitStack() as stack:
        unread = []
        for n in range(40):
            connection = stack.enter_context(contextlib.closing(api.connect()))
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            path = ("/volumes", "/volumes?limit=8000", "/activity")[n % 3]
            connection.request("GET", f"/api/v1{path}", headers={"Authorization": f"Bearer {reader}"})
            unread.append(connection.sock)
        while unread:
            arrived = select.select(unread, [], [], 60)[0]
            check(arrived, f"{len(unread)} responses have not begun after a minute")
            unread = [sock for sock in unread if sock not in arrived]
        headers, found = names(admin, "/volumes?limit=3000")
        equal((found, "etag" in headers, "link" in headers), (everything[:3000], True, True), "a page of another token")
        equal(names(reader)[1], everything, "the list of the same token")
        grown = resident_mib() - before
        check(grown < most_mib, f"{grown} MiB for responses that are not read")
        equal(len(json.loads(s.cli("volume", "ls", "--json").stdout)), len(everything), "the list over the control socket")


@test
def api_tokens_expire(t):
    """An expired token is refused on every kind of route; the session and the stream that it began end."""
    _, s, api = start(t)
    admin = make_token(s, "admin", "administrator")
    request = {"name": "short", "role": "administrator", "expires_in_s": 8}
    status, _, made = api("POST", "/tokens", admin, request)
    equal(status, 201, "status of a token")
    token = made["secret"]
    equal(api("GET", "/pool", token)[0], 200, "status before it expires")
    status, headers, _ = api("POST", "/session", body={"token": token})
    equal(status, 201, "status of a login")
    session = {"Cookie": headers["set-cookie"].split(";")[0]}
    with contextlib.closing(api.connect()) as stream:
        stream.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token}"})
        events = stream.getresponse()
        equal(events.status, 200, "status of the events")
        wait_for(lambda: api("GET", "/pool", token)[0] == 401, "the token expires")
        # The stream looks when something happens.
        s.cli("volume", "create", "noticed", "--size", "1M")
        events.read()
    for method, path, body in (
        ("GET", "/volumes", None),
        ("POST", "/volumes", {"name": "v", "size_bytes": 1 << 20}),
        ("DELETE", "/volumes/noticed", None),
        ("GET", "/events", None),
        ("POST", "/session", {"token": token}),
    ):
        status, _, problem = api(method, path, None if path == "/session" else token, body)
        equal((status, problem["code"]), (401, "token_expired"), f"{method} {path} with an expired token")
    equal(api("GET", "/session", headers=session)[0], 401, "the session of an expired token")
    equal([v["name"] for v in api("GET", "/volumes", admin)[2]], ["noticed"], "volumes afterwards")


def drop(connection, how):
    """Ends a connection as browsers, or their machines, disappear."""
    sock = connection.sock
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == "half-closed":
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
    connection.close()


@test
def api_browsers_that_drop_off(t):
    """Pages that follow events and disappear leave nothing behind; one that does not read harms no other."""
    _, s, api = start(t)
    token = make_token(s, "admin", "administrator")
    authorization = {"Authorization": f"Bearer {token}"}

    def follow():
        """A connection and its response, as soon as a stream is free."""
        found = []

        def accepted():
            connection = api.connect()
            connection.request("GET", "/api/v1/events?topics=volume", headers=authorization)
            # The response takes the socket of a connection that is to be closed after it.
            sock = connection.sock
            response = connection.getresponse()
            if response.status == 200:
                connection.sock = sock
                found.append((connection, response))
                return True
            connection.close()
            equal(response.status, 429, "status of a stream too many")
            return False

        wait_for(accepted, "the streams of pages that are gone end")
        return found[0]

    def descriptors():
        return len(os.listdir(f"/proc/{s.process.pid}/fd"))

    # Opens what the server keeps open.
    drop(follow()[0], "closed")
    s.cli("volume", "create", "first", "--size", "1M")
    before = descriptors()
    for round_number in range(40):
        pages = [follow()[0] for _ in range(4)]
        for page, how in zip(pages, ("closed", "reset", "half-closed", "reset")):
            drop(page, how)
        if round_number % 10 == 0:
            s.cli("volume", "create", f"v{round_number}", "--size", "1M")
    # Events reveal the last ones.
    s.cli("volume", "create", "last", "--size", "1M")
    wait_for(lambda: descriptors() <= before + 2, f"{before} open files before, {descriptors()} after")

    stalled, _ = follow()
    reader, events = follow()
    for number in range(300):
        s.cli("volume", "resize", "first", f"{number + 2}M")
    s.cli("volume", "create", "seen", "--size", "1M")
    seen = b""
    while b'"seen"' not in seen:
        line = events.readline()
        check(line, "the stream of a page that reads does not end")
        seen = line if line.startswith(b"data:") else seen
    equal(api("GET", "/pool", token)[0], 200, "another client")
    drop(stalled, "reset")
    drop(reader, "closed")
