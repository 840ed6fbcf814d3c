"""The work of a day in the browser: import, clone, watch a load, reset, delete; by keyboard, and with names
that look like HTML."""

import contextlib
import http.server
import os
import socket
import threading

import nbd
from browser import SocketBridge, address, browser, control, start
from forebay import Failed
from harness import BLOCK, MIB, check, connect, equal, run, test
from selenium.webdriver.common.keys import Keys

CLONES = 50
# A script in a name would run here if names were inserted as HTML.
EVIL = "<img src=x onerror=window.pwned=1>"
EVIL_TENANT = "\"'><script>window.pwned=1</script>"


class Load:
    """A guest that writes and reads until the test ends."""

    def __init__(self, server, disk):
        self.handle = connect(server, disk)
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        n = 0
        while not self.stopping.is_set():
            self.handle.pwrite(n.to_bytes(4, "big") * (BLOCK // 4), n % 256 * BLOCK)
            self.handle.pread(BLOCK, n % 256 * BLOCK)
            n += 1
            self.stopping.wait(0.002)

    def stop(self):
        if not self.stopping.is_set():
            self.stopping.set()
            self.thread.join()
            self.handle.shutdown()


def noise_image(t, name, size):
    raw = t.noise_file(f"{name}.raw", size)
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, t.path(f"{name}.qcow2"))
    return t.path(f"{name}.qcow2")


@test
def a_day_of_an_administrator(t):
    server, token, b = start(t, expected=[401])
    image = noise_image(t, "golden", 24 * MIB)
    b.open()
    b.shows("Token")
    check(not b.css("nav"), "a client without a session sees the navigation")
    b.fill("Token", "forebay_" + "0" * 64)
    b.click("Log in")
    b.shows("This token is not valid.")
    b.log_in(token)

    # A file of the server is imported over the control socket: this page has the rights of its user.
    bridge = SocketBridge(server.control)
    t.defer(bridge.close)
    local = browser(t, bridge.base)
    local.open("#/images")
    local.click("Import an image")
    local.submit({"Name": "golden", "Source": "file", "Path": image})
    local.until(lambda: local.named("a", "golden"), "the image is not listed")

    b.go("#/images")
    b.until(lambda: b.named("a", "golden"), "the image is not listed")
    b.click("Clone")
    b.submit({"Name": "desk", "Number": str(CLONES), "Desktops": True, "Memory": "16 MiB"})
    b.shows(f"Created {CLONES} clones")
    b.go("#/volumes")
    b.shows(f"{CLONES} in total")

    load = Load(server, "desk-001")
    t.defer(load.stop)
    b.click("Clients")
    b.until(lambda: b.texts("tbody tr:first-child td.number")[3:4] == ["1"], "the client of the load is not shown")
    rates = "return Number(document.querySelector('tbody tr').cells[9].textContent.replace(',', ''))"
    b.until(lambda: b.script(rates) > 10, "the rate of the load is not shown")
    b.go("#/overview")
    b.until(lambda: any(text and text.endswith("%") for text in b.texts(".hero-number")[:1]), "no offload is shown")
    guests = "return parseFloat(document.querySelector('.chart-box .legend .number').textContent.replace(',', ''))"
    b.until(lambda: b.script(guests) > 10, "the chart does not show the load")
    b.until(lambda: b.css(".chart canvas"), "no chart is drawn")
    b.until(lambda: b.named("a", "desk-001"), "the busiest disk is not shown")
    b.screenshot("overview-load")

    # One client is disconnected, after a confirmation.
    guest = connect(server, "desk-002")
    b.go("#/volumes/desk-002")
    b.shows(f"process {os.getpid()}")
    check(b.named("button", f"Disconnect process {os.getpid()}"), "the button does not name the client")
    b.click("Disconnect")
    b.shows("after the requests in progress")
    b.submit({})
    b.shows("Disconnected process")
    equal(control(server, "GET", "/volumes/desk-002/clients"), [], "clients after the disconnect")
    try:
        guest.pread(BLOCK, 0)
        raise Failed("the client is still served")
    except nbd.Error:
        pass

    # A desktop with a client cannot be reset or deleted: the page shows why.
    b.go("#/volumes/desk-001")
    b.shows("desktop")
    for action in ("Reset", "Delete"):
        b.click(action)
        b.shows(f"1 client is connected (process {os.getpid()}); stop it first.")
        check(not b.css("dialog button[type=submit]:enabled"), f"{action} is offered with a client")
        b.click("Cancel")
    load.stop()
    server.wait_unused("desk-001")
    b.click("Reset")
    b.fill("To confirm", "desk-00")
    check(not b.css("dialog button[type=submit]:enabled"), "a wrong name confirms")
    b.click("Cancel")
    b.click("Reset")
    b.submit({"To confirm": "desk-001"})
    b.shows("Reset desk-001")
    equal(control(server, "GET", "/stats/desk-001")["cached_bytes"], 0, "bytes in RAM after the reset")

    b.click("Delete")
    b.submit({"To confirm": "desk-001"})
    b.shows(f"{CLONES - 1} in total")
    equal(len(control(server, "GET", "/volumes")), CLONES - 1, "volumes after the deletion")
    select_all = "Select all rows that match the filter"
    b.click(select_all, "input")
    b.click("Limits")
    b.submit({"Operations per second": "5000"})
    b.shows(f"Changed the limits of {CLONES - 1} volumes")
    for volume in ("desk-002", f"desk-0{CLONES}"):
        equal(control(server, "GET", f"/volumes/{volume}/limits")["limits"], {"iops": 5000}, f"limits of {volume}")
    b.click("Delete")
    b.submit({"To confirm": f"delete {CLONES - 1} volumes"})
    b.shows("There are no volumes yet.")
    b.go("#/images/golden")
    b.click("Delete")
    b.submit({"To confirm": "golden"})
    b.shows("There are no images yet.")
    b.go("#/events")
    b.shows("golden removed")


@test
def a_volume_is_created_and_deleted_by_keyboard_alone(t):
    server, token, b = start(t, expected=[401])
    b.open()
    b.shows("Token")
    b.press(token, Keys.ENTER)
    b.until(lambda: b.css("nav a"), "no navigation after the login")
    b.tab_to("Volumes & desktops").send_keys(Keys.ENTER)
    b.shows("There are no volumes yet.")
    b.tab_to("Create a volume").send_keys(Keys.ENTER)
    b.until(lambda: b.css("dialog[open]"), "no dialog")
    # The focus is in the dialog, and stays there.
    b.press("typed", Keys.TAB, "1 GiB")
    for _ in range(12):
        b.press(Keys.TAB)
        # The body follows the last control, for the controls of the browser.
        inside = "const e = document.activeElement; return e === document.body || Boolean(e.closest('dialog'))"
        check(b.script(inside), "the focus has left the dialog")
    b.tab_to("Create").send_keys(Keys.ENTER)
    b.until(lambda: b.named("a", "typed"), "the volume is not listed")
    equal(control(server, "GET", "/volumes/typed")["size_bytes"], 1 << 30, "size of the volume")
    # Escape closes a dialog, and the focus returns to its button.
    b.tab_to("Create a volume").send_keys(Keys.ENTER)
    b.until(lambda: b.css("dialog[open]"), "no dialog")
    b.press(Keys.ESCAPE)
    b.until(lambda: not b.css("dialog"), "the dialog is still open")
    equal(b.driver.switch_to.active_element.text, "Create a volume", "element with the focus")
    b.tab_to("typed").send_keys(Keys.ENTER)
    b.shows("Properties")
    b.tab_to("Delete").send_keys(Keys.ENTER)
    b.until(lambda: b.css("dialog[open]"), "no dialog")
    b.press("typed", Keys.ENTER)
    b.shows("There are no volumes yet.")
    equal(control(server, "GET", "/volumes"), [], "volumes")


@test
def names_with_html_are_shown_as_text(t):
    server, token, b = start(t, expected=[401, 404])
    control(server, "POST", "/volumes", {"name": EVIL, "size_bytes": MIB})
    path = "/volumes/" + EVIL.replace("<", "%3C").replace(">", "%3E").replace(" ", "%20")
    control(server, "POST", f"{path}/snapshots", {"name": "<b>s<b>"})
    control(server, "PUT", f"{path}/limits", {"tenant": EVIL_TENANT, "limits": {}})
    control(server, "POST", "/images/%3Ci%3Ei%3Ci%3E", {"source": f"{EVIL}@<b>s<b>"})
    control(server, "POST", "/clones", {"source": "<i>i<i>", "name": "<u>clone<u>"})
    b.log_in(token)
    b.go("#/volumes")
    b.shows(EVIL)
    b.shows(EVIL_TENANT)
    b.click(EVIL)
    b.shows("<b>s<b>")
    b.click("Roll back")
    b.shows(f"Roll {EVIL} back to <b>s<b>?")
    b.press(Keys.ESCAPE)
    b.go("#/images")
    b.shows("<i>i<i>")
    b.go("#/events")
    b.shows(f"{EVIL} created")
    b.go("#/overview")
    b.shows(f"{EVIL}@<b>s<b> created")
    b.go("#/volumes/%3Cscript%3Ewindow.pwned%3D1%3C%2Fscript%3E")
    b.shows("There is no such volume.")
    equal(b.script("return window.pwned ?? null"), None, "what a name has executed")
    check(not b.css("main img, main script, main u, main i, main b"), "a name was inserted as HTML")


class HalfImage(http.server.BaseHTTPRequestHandler):
    """Sends one half of an image, and the other half when the test permits it."""

    def do_GET(self):
        data = self.server.image
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:len(data) // 2])
        self.wfile.flush()
        self.server.permitted.wait(120)
        self.wfile.write(data[len(data) // 2:])

    def log_message(self, *_):
        pass


@test
def an_import_survives_its_browser(t):
    server, token, b = start(t, "--import-allow-private", expected=[401])
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HalfImage)
    web.image, web.permitted = t.random.randbytes(8 * MIB), threading.Event()
    threading.Thread(target=web.serve_forever, daemon=True).start()
    t.defer(web.shutdown)
    t.defer(web.permitted.set)
    b.log_in(token)
    b.go("#/images")
    b.click("Import an image")
    b.submit({"Name": "slow", "URL": f"http://127.0.0.1:{web.server_port}/slow.raw", "Format": "raw"})
    b.shows("import slow")
    b.shows("download: ")
    b.screenshot("import")
    # The browser disappears without a word.
    b.vanish()
    again = browser(t, address(server), expected=[401])
    again.log_in(token)
    again.go("#/jobs")
    again.shows("running")
    again.go("#/images")
    again.shows("import slow")
    web.permitted.set()
    again.until(lambda: again.named("a", "slow"), "the import does not end")
    equal(control(server, "GET", "/images/slow")["size_bytes"], 8 * MIB, "size of the image")
    # Another one is cancelled on the page.
    web.permitted.clear()
    again.click("Import an image")
    again.submit({"Name": "given-up", "URL": f"http://127.0.0.1:{web.server_port}/x.raw", "Format": "raw"})
    again.shows("import given-up")
    again.click("Cancel")
    again.submit()
    web.permitted.set()
    again.lacks("import given-up")
    equal([d["name"] for d in control(server, "GET", "/images")], ["slow"], "images after the cancellation")


class BreakingBridge(SocketBridge):
    """A bridge whose connections break after some MiB."""

    broken = 0

    def copy(self, source, sink):
        left = 3 * MIB
        try:
            while left > 0 and (data := source.recv(1 << 16)):
                sink.sendall(data)
                left -= len(data)
            self.broken += left <= 0
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@test
def a_file_of_the_browser_is_uploaded_over_connections_that_break(t):
    server = t.server()
    bridge = BreakingBridge(server.control)
    t.defer(bridge.close)
    b = browser(t, bridge.base, expected=[400, 409])
    raw = t.noise_file("uploaded.raw", 16 * MIB)
    server.cli("volume", "create", "taken", "--size", "1M")
    b.open("#/images")
    b.click("Import an image")
    # The name is checked before the file is sent.
    for label, value in (("Name", "taken"), ("Source", "upload"), ("File", raw)):
        b.fill(label, value)
    b.click("Import", "dialog[open] button")
    b.shows("exists")
    b.fill("Name", "uploaded")
    b.fill("Format", "qcow2")
    b.click("Import", "dialog[open] button")
    b.shows("not a qcow2 file")
    b.screenshot("upload-refused")
    # Another format is tried without sending the file again.
    breaks = bridge.broken
    check(breaks >= 4, f"only {breaks} connections have broken")
    b.submit({"Format": "raw"})
    b.until(lambda: b.named("a", "uploaded"), "the image is not listed")
    equal(control(server, "GET", "/images/uploaded")["size_bytes"], 16 * MIB, "the size of the image")
    check(bridge.broken <= breaks + 1, "the file was sent again")
