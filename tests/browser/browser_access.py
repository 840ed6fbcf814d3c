"""Tokens and roles on the pages: what a client may not do is not offered, and is refused if it is sent."""

import time

from browser import PHONE, address, browser, control, make_token, start
from harness import MIB, check, equal, test

ACTIONS = (
    ("POST", "/volumes", {"name": "x", "size_bytes": MIB}),
    ("DELETE", "/volumes/v", None),
    ("POST", "/resets", {"volumes": ["v"]}),
    ("POST", "/volumes/v/snapshots", {"name": "s"}),
    ("POST", "/pool/gc", None),
    ("POST", "/pool/checkpoint", None),
    ("POST", "/tokens", {"name": "x", "role": "administrator"}),
    ("GET", "/tokens", None),
    ("POST", "/targets", {"name": "iqn.2026-01.org.example:t"}),
    ("PUT", "/tenants/t", {"quota": MIB}),
    ("DELETE", "/images/i", None),
)

# What the console reports while there is no server.
LOST = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED_ENCODING")
# Pages of a reader, and a text of each.
READ = (
    ("volumes", "1 in total"), ("volumes/v", "kept"), ("images", "1 in total"), ("images/i", "Boot profile"),
    ("tenants", "There are no tenants."), ("iscsi", "There are no targets yet."), ("pools", "Data directory"),
    ("cache", "Read cache"), ("jobs", "No job"), ("events", "created"),
)


@test
def a_reader_sees_no_actions_and_the_server_refuses_them(t):
    server, _, b = start(t, expected=[401, 403, 404])
    control(server, "POST", "/volumes", {"name": "v", "size_bytes": MIB})
    control(server, "POST", "/images/i", {"source": "v"})
    control(server, "POST", "/volumes/v/snapshots", {"name": "kept"})
    b.log_in(make_token(server, "looks", "reader"))
    b.shows("Offload of the store")
    check(not b.named("nav a", "Access"), "a reader sees the page of tokens")
    for page, shown in READ:
        b.go(f"#/{page}")
        b.shows(shown)
        offered = [text for text in b.texts("main button:not(.sort)") if text is not None]
        # It changes nothing.
        equal([text for text in offered if text != "Connect"], [], f"actions that a reader sees on {page}")
        check(not b.css("main input[type=checkbox][aria-label^=Select]"), "a reader can select rows")
    for method, path, body in ACTIONS:
        status, answer = b.fetch(method, path, body)
        equal((status, answer.get("code")), (403, "forbidden"), f"{method} {path} of a reader")
    # The page of tokens cannot be reached by its address.
    b.go("#/access")
    b.shows("Offload of the store")


@test
def an_operator_sees_only_its_scope(t):
    server, _, b = start(t, expected=[401, 403, 404])
    for name in ("web-1", "web-2", "db"):
        control(server, "POST", "/volumes", {"name": name, "size_bytes": MIB})
    b.log_in(make_token(server, "ops", "operator", "--disks", "web-*"))
    b.shows("2 in total")
    b.lacks("db")
    pages = ["Volumes & desktops", "Images", "Tenants", "Jobs", "Events"]
    equal(b.texts("nav a"), pages, "pages of an operator")
    check(not b.named("button", "Create a volume"), "an operator can create volumes")
    b.click("web-1")
    b.click("Create a snapshot")
    b.submit({"Name": "before"})
    b.shows("before")
    equal(b.texts(".page-head .actions button"), ["Connect", "Snapshot"], "actions of an operator")
    # Targets and their initiators concern the whole server.
    status, connect = b.fetch("GET", "/volumes/web-1/connect")
    equal((status, {way["for"] for way in connect["ways"]}), (200, {"uri", "qemu", "libvirt", "nbd-client"}), "ways")
    equal(connect["missing"], [], "what is said about iSCSI")
    equal(b.fetch("GET", "/volumes/db/connect")[0], 404, "the ways to a disk of another scope")
    b.go("#/volumes/db")
    b.shows("There is no such volume.")
    b.go("#/events")
    b.shows("web-1@before created")
    check("db" not in b.text(), "an event of another disk is shown")
    names = {disk["name"] for disk in b.fetch("GET", "/activity")[1]}
    equal(names, {"web-1", "web-2", "web-1@before"}, "activities in the scope")


@test
def a_revoked_token_leaves_nothing_on_the_page(t):
    server, token, b = start(t, expected=[401])
    control(server, "POST", "/volumes", {"name": "secret-volume", "size_bytes": MIB})
    b.log_in(token)
    b.go("#/volumes")
    b.shows("secret-volume")
    boss = browser(t, address(server), expected=[401])
    boss.log_in(make_token(server, "boss", "administrator"))
    boss.go("#/access")
    boss.until(lambda: boss.named("button", "Revoke"), "no tokens are shown")

    def revoke():
        rows = [row for row in boss.css("tbody tr") if row.text.startswith("admin")]
        return any(row.find_element("css selector", "button").click() or True for row in rows[:1])

    boss.until(revoke, "the token cannot be revoked")
    boss.submit()
    boss.shows("Revoked admin")
    b.until(lambda: b.css("#token"), "no login after the token was revoked", 15)
    check("secret-volume" not in b.script("return document.documentElement.outerHTML"), "data is left on the page")
    boss.go("#/events")
    boss.shows("boss · DELETE · /api/v1/tokens/admin · from 127.0.0.1")
    equal(b.script("return document.cookie"), "", "cookies that scripts see")
    equal(b.script("return JSON.stringify(localStorage)"), "{}", "what is stored")
    b.shows("Log in again")
    # Logging out by the button.
    boss.click("Log out")
    boss.until(lambda: boss.css("#token"), "no login after the log-out")
    equal(boss.fetch("GET", "/volumes")[0], 401, "status after the log-out")


@test
def the_first_token_on_a_loopback_address_keeps_the_page(t):
    server, _, b = start(t, tokens=False, expected=[401])
    b.open()
    b.shows("This server has no tokens")
    b.screenshot("open")
    b.click("Create a token", "p a")
    b.click("Create a token", "main button")
    b.submit({"Name": "first"})
    secret = b.until(lambda: b.css(".secret"), "the secret is not shown")[0].get_attribute("value")
    b.click("Close")
    b.until(lambda: b.named("button", "Log out"), "the page has no session")
    b.lacks("This server has no tokens")
    other = browser(t, address(server), expected=[401], size=PHONE)
    other.log_in(secret)
    equal(other.fetch("GET", "/session")[1]["name"], "first", "the token of the session")


@test
def a_page_survives_a_restart_of_its_server(t):
    server, _, _ = start(t, tokens=False)
    port = address(server).rsplit(":", 1)[1]
    server.stop()
    server.args = ["--http", f"127.0.0.1:{port}"]
    server.start()
    b = browser(t, address(server), expected=[*LOST, 503])
    b.open("#/volumes")
    b.shows("There are no volumes yet.")
    server.kill()
    b.shows("The connection to the server is lost")
    server.start()
    b.lacks("The connection to the server is lost")
    control(server, "POST", "/volumes", {"name": "after", "size_bytes": MIB})
    begin = time.monotonic()
    b.until(lambda: b.named("a", "after"), "a volume that was created after the restart is not shown")
    print(f"an event reached the page after {time.monotonic() - begin:.1f} s")
