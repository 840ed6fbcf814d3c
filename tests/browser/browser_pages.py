"""All pages: no serious fault of accessibility in both themes, no sideways scrolling on a phone, no message
in the console."""

import os
import socket

from browser import DESKTOP, PHONE, SocketBridge, address, browser, control
from browser_flow import Load, noise_image
from clients_failures import fill_until_refused, mount_tmpfs
from harness import MIB, check, connect, equal, test

TARGET = "iqn.2026-01.org.example:cluster"
PAGES = (
    ("overview", "Busiest disks"), ("volumes", "web-001"), ("volumes/web-001", "Block classes"), ("images", "debian"),
    ("images/debian", "Boot profile"), ("tenants", "acme"), ("iscsi", TARGET),
    (f"iscsi/{TARGET}", "Allowed initiators"), ("pools", "Data directory"),
    ("cache", "Read cache"), ("jobs", "import"), ("events", "created"), ("access", "There are no tokens"),
)
DIALOGS = (
    ("volumes", "Create a volume"), ("volumes", "Create clones"), ("images", "Import an image"),
    ("access", "Create a token"), ("volumes/db", "Delete"), ("volumes/db", "Change"), ("volumes/db", "Connect"),
    (f"iscsi/{TARGET}", "Connect"), ("iscsi", "Create a target"),
)


def furnished(t):
    """A server with something on each page, and a browser."""
    server = t.server("--iscsi", "127.0.0.1:0")
    image = noise_image(t, "debian", 32 * MIB)
    server.cli("image", "import", "debian", image)
    control(server, "POST", "/clones", {"source": "debian", "name": "web", "count": 12, "write_cache_bytes": 16 * MIB})
    control(server, "POST", "/clones", {"source": "debian", "name": "db"})
    control(server, "POST", "/volumes", {"name": "files", "size_bytes": 2 << 40})
    control(server, "POST", "/volumes/db/snapshots", {"name": "monday"})
    control(server, "PUT", "/volumes/db/limits", {"tenant": "acme", "limits": {"iops": 5000, "bandwidth": 100 * MIB}})
    control(server, "POST", "/targets", {"name": TARGET, "chap": {"user": "hosts", "secret": "0123456789ab"}})
    control(server, "POST", f"/targets/{TARGET}/luns", {"disk": "files"})
    control(server, "PUT", f"/targets/{TARGET}/initiators/iqn.1998-01.com.vmware:esx-1", {})
    for name in ("web-001", "web-002", "db"):
        t.defer(Load(server, name).stop)
    bridge = SocketBridge(server.control)
    t.defer(bridge.close)
    return server, browser(t, bridge.base)


def visit(b, page, shown):
    b.go(f"#/{page}")
    b.shows(shown)
    b.until(lambda: not b.css("#banner:not([hidden])"), "the connection is lost")


@test
def no_page_has_a_serious_fault_in_both_themes(t):
    server, b = furnished(t)
    b.open()
    for scheme in ("light", "dark"):
        b.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        for page, shown in PAGES:
            visit(b, page, shown)
            equal(b.script("return document.documentElement.dataset.theme"), scheme, f"the theme of {page}")
            if page in ("overview", "volumes/web-001"):
                b.until(lambda: b.css(".chart canvas"), "no chart")
            equal(b.faults(), [], f"faults on {page} ({scheme})")
            b.screenshot(f"{page.split('/')[0]}{'-detail' if '/' in page else ''}-{scheme}")
    for page, name in DIALOGS:
        b.go(f"#/{page}")
        b.click(name, "main button")
        b.until(lambda: b.css("dialog[open]"), "no dialog")
        equal(b.faults(), [], f"faults of the dialog '{name}'")
        b.screenshot(f"dialog-{page.split('/')[0]}-{name.lower().replace(' ', '-')}")
        b.click("Close" if name == "Connect" else "Cancel")
    # The switch overrides the system, and is kept.
    b.prefer(prefers_color_scheme="light")
    theme = "return document.documentElement.dataset.theme"
    b.until(lambda: b.script(theme) == "light", "the page does not follow the system")
    background = "return getComputedStyle(document.body).backgroundColor"
    light = b.script(background)
    b.click("Switch between light and dark")
    b.until(lambda: b.script(background) != light, "the theme is the same")
    b.driver.refresh()
    b.until(lambda: b.css("nav"), "no page")
    check(b.script(background) != light, "the theme was forgotten")


@test
def a_full_store_is_seen_on_every_page(t):
    server = t.server("--cache", "16M", data=os.path.join(mount_tmpfs(t, "320M"), "data"))
    server.cli("volume", "create", "disk", "--size", "1G")
    handle = connect(server, "disk")
    fill_until_refused(t, handle)
    bridge = SocketBridge(server.control)
    t.defer(bridge.close)
    b = browser(t, bridge.base)
    b.open()
    for page in ("overview", "volumes", "iscsi", "jobs"):
        b.go(f"#/{page}")
        b.until(lambda: b.css("#conditions .problem"), f"no problem is shown on {page}")
        check("no room for data" in b.css("#conditions")[0].text, b.css("#conditions")[0].text)
        # A screen reader announces what is wrong, not the whole list with its remedies.
        spoken = b.script("return document.querySelector('.content [role=status].hidden').textContent")
        check("no room for data" in spoken and "To do" not in spoken, f"announced: {spoken}")
        equal(b.faults(), [], f"faults on {page}")
    b.go("#/overview")
    # The reserve is not room for guests, so their writes find nothing free.
    b.shows("100.0 % of")
    b.shows("Reserve")
    b.screenshot("problem")
    handle.shutdown()
    server.wait_unused("disk")
    server.cli("volume", "rm", "disk")
    server.cli("gc")
    b.until(lambda: not b.css("#conditions .problem"), "the problem is still shown")


# Results of the functions that the pages compute with.
COMPUTED = r"""
    const done = arguments[0];
    const base = document.querySelector("script[type=module]").src;
    const files = ["format.js", "api.js", "live.js", "pages/overview.js"];
    Promise.all(files.map((file) => import(new URL(file, base)))).then(
      ([format, api, live, overview]) => {
        const refused = (text) => { try { return format.parseSize(text); } catch (error) { return error.message; } };
        done({
          sizes: ["10 GiB", "512M", "4096", "1.5k", "2 TB"].map(format.parseSize),
          refused: ["", "ten", "1.1", "-1", "99999 PiB"].map(refused),
          bytes: [0, 1023, 1024, 1536, 10 * 2 ** 30, NaN].map(format.bytes),
          size: [2 ** 30, 1536, 3 * 2 ** 40].map(format.size),
          times: [5, 1500, 2.5e6].map(format.micros), percent: [0, 0.5, 0.9992, 1].map(format.percent),
          path: api.url`/volumes/${"a/b ?"}/x`, grown: [live.grown(5, 7), live.grown(7, 5)],
          events: api.parseEvents("id: 1\nevent: job\ndata: {}\n\n:\n\nid: 2\nda"),
          quantiles: [0.5, 0.99, 1].map((q) => overview.quantile([10, 20, 50], [50, 30, 10, 10], q)),
          none: overview.quantile([10], [0, 0], 0.5),
        });
      }, (error) => done(String(error)));"""


@test
def what_pages_compute(t):
    server = t.server("--http", "127.0.0.1:0")
    b = browser(t, address(server))
    b.open()
    b.until(lambda: b.css("nav"), "no page")
    found = b.driver.execute_async_script(COMPUTED)
    check(isinstance(found, dict), f"the modules cannot be loaded: {found}")
    equal(found["sizes"], [10 << 30, 512 << 20, 4096, 1536, 2 << 40], "sizes that were read")
    check(all("is not a size" in str(text) for text in found["refused"]), f"accepted sizes: {found['refused']}")
    equal(found["bytes"], ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "10.0 GiB", "–"], "numbers of bytes")
    equal(found["size"], ["1 GiB", "1536 B", "3 TiB"], "sizes")
    equal(found["times"], ["5.00 µs", "1.50 ms", "2.50 s"], "times")
    equal(found["percent"], ["0.0 %", "50.0 %", "99.92 %", "100.0 %"], "shares")
    equal(found["path"], "/volumes/a%2Fb%20%3F/x", "a path")
    equal(found["grown"], [2, 5], "growth of a counter, also after a restart")
    equal(found["events"], {"events": [{"id": "1", "kind": "job", "data": "{}"}], "rest": "id: 2\nda"}, "events")
    equal((found["quantiles"], found["none"]), ([10, 50, 50], None), "quantiles")


# The tables of which a part is outside of their card.
CLIPPED = """
    return [...document.querySelectorAll(".table-scroll")].filter((e) => e.offsetParent && e.scrollWidth > e.clientWidth)
      .map((e) => `${e.getAttribute("aria-label")}: ${e.scrollWidth} > ${e.clientWidth}`);"""


@test
def all_pages_fit(t):
    server, b = furnished(t)
    b.open()
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for size in ((1366, 768), (1024, 768), PHONE):
        b.resize(size)
        for page, shown in PAGES:
            visit(b, page, shown)
            equal(b.script(overflow), 0, f"pixels by which {page} is wider than {size[0]} pixels")
            equal(b.script(CLIPPED), [], f"tables of {page} that are clipped at {size[0]} pixels")
            b.screenshot(f"{size[0]}-{page.split('/')[0]}{'-detail' if '/' in page else ''}")
    check(not b.named("nav a", "Images"), "the menu is open")
    b.click("Menu")
    b.screenshot("phone-menu")
    b.click("Images", "nav a")
    b.shows("debian")
    check(not b.named("nav a", "Images"), "the menu is still open")
    b.click("Import an image")
    equal(b.script(overflow), 0, "pixels by which a dialog is wider than a phone")
    equal(b.faults(), [], "faults on a phone")
    b.screenshot("phone-dialog")
    b.resize(DESKTOP)
    b.click("Cancel")


@test
def changes_on_all_pages(t):
    """Actions that no other test performs."""
    server, b = furnished(t)
    b.open("#/volumes/db")
    b.until(lambda: b.texts("header .server") == [socket.gethostname()], "the header does not name the server")
    b.click("Connect")
    b.shows("nbd-client")
    uri = server.uri("db")
    check(uri in b.texts("dialog .copy-text"), f"{uri} is not shown: {b.texts('dialog .copy-text')}")
    b.click("Copy: NBD URI")
    # A browser may refuse the clipboard; then the text is selected.
    b.until(lambda: any("opied" in text or "Ctrl+C" in text for text in b.texts(".toast")), "the text was not copied")
    b.click("Close")
    b.click("Resize")
    b.submit({"Size": "64 MiB"})
    b.until(lambda: control(server, "GET", "/volumes/db")["size_bytes"] == 64 * MIB, "the volume was not resized")
    b.click("Change")
    b.submit({"Operations per second": "777", "Weight": ""})
    limits = lambda: control(server, "GET", "/volumes/db/limits")["limits"]  # noqa: E731
    b.until(lambda: limits()["iops"] == 777, "the limit was not set")
    equal(limits()["bandwidth"], 100 * MIB, "the limit that was kept")
    b.go("#/volumes/web-012")
    b.shows("Make persistent")
    b.click("Make persistent")
    b.submit()
    converted = lambda: control(server, "GET", "/volumes/web-012")["write_cache_bytes"] is None  # noqa: E731
    b.until(converted, "the desktop was not converted")
    b.click("Rename")
    b.submit({"New name": "kiosk"})
    b.shows("Renamed web-012 to kiosk")
    names = lambda: [volume["name"] for volume in control(server, "GET", "/volumes")]  # noqa: E731
    b.until(lambda: "kiosk" in names() and "web-012" not in names(), "the volume was not renamed")
    b.until(lambda: b.script("return location.hash") == "#/volumes/kiosk", "the page of the old name stays")
    b.go("#/images/debian")
    # The first boot of a clone is recorded without a request; the load is one.
    b.click("Stop recording")
    b.shows("Stopped the recording")
    b.until(lambda: not b.named("button", "Stop recording"), "the recording was not stopped")
    b.go("#/tenants")
    b.click("Change")
    b.submit({"Quota": "1 GiB"})
    b.until(lambda: control(server, "GET", "/tenants/acme")["limits"].get("quota") == 1 << 30, "the quota was not set")
    b.go(f"#/iscsi/{TARGET}")
    b.click("Map a disk")
    b.submit({"Disk": "db", "LUN": "7"})
    luns = lambda: [lun["lun"] for lun in control(server, "GET", f"/targets/{TARGET}")["luns"]]  # noqa: E731
    b.until(lambda: luns() == [0, 7], "the disk was not mapped")
    b.click("Reservations")
    b.shows("No registrations.")
    b.click("Close")
    b.click("Allow an initiator")
    b.submit({"Name": "iqn.2026-01.org.example:host", "LUNs": "0, 7"})
    b.shows("iqn.2026-01.org.example:host")
    b.click("Delete", "main .actions button")
    b.submit({"To confirm": TARGET})
    b.shows("There are no targets yet.")
    b.go("#/pools")
    b.click("Write a checkpoint")
    b.shows("Wrote a checkpoint")
    b.click("Reclaim space")
    b.submit()
    b.go("#/jobs")
    b.shows("gc")
    states = lambda: [(job["kind"], job["state"]) for job in control(server, "GET", "/jobs")]  # noqa: E731
    b.until(lambda: ("gc", "done") in states(), "no reclaim has ended")
    b.go("#/volumes")
    b.css("input[type=search]")[0].send_keys("web-00")
    b.shows("9 of 14")
    # An invalid value is explained where it was entered.
    b.click("Create a volume")
    b.fill("Name", "bad")
    b.fill("Size", "much")
    b.css("dialog button[type=submit]")[0].click()
    b.shows("'much' is not a size")
    b.expected.add(400)
    b.fill("Size", "1000 B")
    b.css("dialog button[type=submit]")[0].click()
    b.until(lambda: any(text and "multiple" in text for text in b.texts("dialog .error")[:1]), "the server's reason is not shown")
    b.fill("Size", "4 MiB")
    b.submit()
    b.shows("9 of 15")
