"""A browser for tests: Chromium without a window, on loopback addresses only.

Everything is found as a user finds it: by the text of buttons and links, by the labels of fields. Waits are
for a state, never for a time.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time

from selenium import webdriver
from selenium.common.exceptions import JavascriptException, StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from forebay import Failed
from harness import ControlSocket, check

WAIT_S = 60
DESKTOP, PHONE = (1360, 900), (390, 844)
HERE = os.path.dirname(os.path.abspath(__file__))
# No service of the browser's maker is contacted, and nothing outside of a new profile is read.
ARGUMENTS = (
    "--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage",
    "--disable-extensions", "--no-default-browser-check", "--force-device-scale-factor=1",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


# Sets `timed`, which calls `done` with the milliseconds from `begin` to the end of the frame in which the
# page shows a text. The page measures itself: the driver needs hundreds of milliseconds to read the text of
# a long table.
TIMER = """
    window.timed = (text, begin, done) => {
      const look = () => {
        if (!document.getElementById("main")?.textContent.includes(text)) return;
        observer.disconnect();
        // The second frame begins when the first one is drawn.
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));
      };
      const observer = new MutationObserver(look);
      observer.observe(document, { subtree: true, childList: true, characterData: true });
    };"""


class Browser:
    """A browser with a new profile. `expected` are statuses of responses and errors of connections that the
    scenario causes; every other message of the console fails the test when the browser is closed."""

    def __init__(self, base, size=DESKTOP, expected=()):
        self.base, self.expected = base, set(expected)
        self.messages, self.gone = [], False
        self.profile = tempfile.mkdtemp(prefix="forebay-browser-")
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in ARGUMENTS:
            options.add_argument(argument)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        options.add_argument(f"--user-data-dir={self.profile}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service(executable_path="/usr/bin/chromedriver"), options=options)
        self.driver.set_script_timeout(WAIT_S)
        self.resize(size)

    def resize(self, size):
        """Sets the size of the page, which may be smaller than a window can be."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, **features):
        """Sets media features, such as prefers_color_scheme="dark"."""
        found = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": found})

    def open(self, page=""):
        """Opens a page by its address."""
        self.driver.get(f"{self.base}/{page}")

    def go(self, page):
        """Goes to a page of the dashboard, as a link within it does."""
        self.driver.execute_script("location.hash = arguments[0]", page)

    def time_to_go(self, page, text):
        """Goes to a page as a link does, and returns the milliseconds until it shows a text."""
        code = "const [page, text, done] = arguments; timed(text, performance.now(), done); location.hash = page;"
        return self.driver.execute_async_script(TIMER + code, page, text)

    def time_to_open(self, page, text, cached=True):
        """Goes to a page and loads it again, as a new document; returns the milliseconds until it shows a
        text. `cached` is whether the browser has kept the files of the dashboard."""
        code = f"{TIMER} timed({json.dumps(text)}, 0, (took) => (window.took = took));"
        run = self.driver.execute_cdp_cmd
        run("Network.enable", {})
        run("Network.setCacheDisabled", {"cacheDisabled": not cached})
        script = run("Page.addScriptToEvaluateOnNewDocument", {"source": code})
        self.go(page)
        self.driver.refresh()
        took = self.until(lambda: self.script("return window.took"), f"'{text}' is not shown")
        run("Page.removeScriptToEvaluateOnNewDocument", script)
        run("Network.setCacheDisabled", {"cacheDisabled": False})
        return took

    def wait_idle(self):
        """Waits until the browser has nothing to do for the page."""
        self.driver.execute_async_script("requestIdleCallback(arguments[0])")

    def elements(self):
        """Number of elements of the page."""
        return self.script("return document.querySelectorAll('*').length")

    def until(self, condition, what, timeout=WAIT_S):
        """Waits until `condition` returns a true value, and returns it."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = condition()
            except (StaleElementReferenceException, JavascriptException):
                found = None
            if found:
                return found
            if time.monotonic() > deadline:
                raise Failed(f"after {timeout} s: {what}; the page is\n{self.text()[:2000]}\n{self.console()}")
            time.sleep(0.03)

    def text(self):
        return self.driver.find_element(By.TAG_NAME, "body").text

    def shows(self, text, timeout=WAIT_S):
        """Waits until the page shows a text."""
        return self.until(lambda: text in self.text(), f"'{text}' is not shown", timeout)

    def lacks(self, text, timeout=WAIT_S):
        return self.until(lambda: text not in self.text(), f"'{text}' is still shown", timeout)

    def texts(self, selector):
        """The texts or labels of all elements, at one moment: the page may replace an element between two
        requests. The text of an element that is not visible is None."""
        text = "(e) => e.checkVisibility() ? e.innerText.trim() || e.ariaLabel || '' : null"
        return self.script(f"return Array.from(document.querySelectorAll(arguments[0]), {text})", selector)

    def css(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def named(self, kind, name):
        """Visible elements of a kind (CSS) with this text or label; only those of an open dialog."""
        # In one request: the page may replace an element between two requests.
        return self.script(
            "const root = Array.from(document.querySelectorAll('dialog[open]')).pop() ?? document.body;"
            "const [kind, name] = arguments;"
            "const isNamed = (e) => [e.innerText.trim(), e.getAttribute('aria-label')].includes(name);"
            "return Array.from(root.querySelectorAll(kind)).filter((e) => e.checkVisibility() && isNamed(e));",
            kind,
            name,
        )

    def click(self, name, kind="button, a"):
        """Clicks the first button or link with this name, as soon as it can be clicked."""
        def click():
            try:
                return any(e.is_enabled() and (e.click() or True) for e in self.named(kind, name)[:1])
            except WebDriverException:  # moved, or covered by what is about to disappear
                return False
        self.until(click, f"nothing named '{name}' can be clicked")

    def field(self, label):
        """The control of a label, which may begin with this text."""
        def find():
            labels = self.css("dialog[open] label, main label")
            labels = [e for e in labels if e.text.strip().startswith(label) and e.is_displayed()]
            return labels and self.driver.find_element(By.ID, labels[-1].get_attribute("for"))
        return self.until(find, f"no field is named '{label}'")

    def fill(self, label, value):
        control = self.field(label)
        if control.tag_name == "select":
            code = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
            self.script(code, control, value)
            check(control.get_attribute("value") == value, f"'{label}' has no choice '{value}'")
            return
        if control.get_attribute("type") == "checkbox":
            if control.is_selected() != value:
                control.click()
            return
        if control.get_attribute("type") != "file":
            control.clear()
        control.send_keys(value)

    def submit(self, fields=None):
        """Fills the open dialog, by labels, and sends it; waits until it is closed."""
        for label, value in (fields or {}).items():
            self.fill(label, value)
        self.until(lambda: self.css("dialog[open] button[type=submit]:enabled"), "the dialog cannot be sent")
        self.css("dialog[open] button[type=submit]")[-1].click()
        self.until(lambda: not self.css("dialog[open] form"), "the dialog is still open")

    def press(self, *keys):
        """Presses keys, wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def tab_to(self, name, most=80):
        """Moves the focus with the tabulator key until it is on what has this name."""
        for _ in range(most):
            active = self.driver.switch_to.active_element
            labels = self.script("return [...(arguments[0].labels ?? [])].map((l) => l.textContent)", active)
            if name in (active.text.strip(), active.get_attribute("aria-label"), *labels):
                return active
            active.send_keys(Keys.TAB)
        raise Failed(f"'{name}' is not reached with the tabulator key")

    def log_in(self, token):
        self.open()
        self.fill("Token", token)
        self.click("Log in")
        self.until(lambda: self.css("nav a"), "no navigation after the login")

    def script(self, code, *args):
        return self.driver.execute_script(code, *args)

    def fetch(self, method, path, body=None):
        """Sends a request of the page itself, with its cookie; returns the status and the JSON."""
        code = """
            const [method, path, body, done] = arguments;
            const headers = {"X-Forebay": "1", ...(body === null ? {} : {"Content-Type": "application/json"})};
            fetch("/api/v1" + path, {method, headers, body}).then(async (r) => done([r.status, await r.json()]));"""
        return self.driver.execute_async_script(code, method, path, None if body is None else json.dumps(body))

    def faults(self):
        """The serious and critical faults that axe finds on the page."""
        with open(os.path.join(HERE, "vendor", "axe-core", "axe.min.js")) as f:
            source = f.read()
        if not self.script("return Boolean(window.axe)"):
            self.script(source)
        found = self.driver.execute_async_script("axe.run(document, {resultTypes: ['violations']}).then(arguments[0])")
        return [
            f"{v['id']} ({v['impact']}): {v['help']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for v in found["violations"] if v["impact"] in ("serious", "critical") for node in v["nodes"][:3]
        ]

    def console(self):
        """Messages of the console that the scenario does not cause."""
        for entry in self.driver.get_log("browser"):
            texts = [f"status of {one} " if isinstance(one, int) else one for one in self.expected]
            caused = entry["source"] == "network" and any(text in entry["message"] for text in texts)
            if entry["level"] in ("SEVERE", "WARNING") and not caused:
                self.messages.append(f"{entry['source']}: {entry['message']}")
        return self.messages

    def screenshot(self, name):
        directory = os.environ.get("FOREBAY_SCREENSHOTS")
        if directory:
            os.makedirs(directory, exist_ok=True)
            self.driver.save_screenshot(os.path.join(directory, f"{name}.png"))

    def vanish(self):
        """Kills all processes of the browser: its connections end without a word."""
        self.gone = True
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{process}/cmdline", "rb") as f:
                    if self.profile.encode() in f.read():
                        os.kill(int(process), signal.SIGKILL)
        self.driver.service.stop()

    def close(self):
        """Ends the browser, unless it has ended, and fails the test if its console has messages."""
        messages = [] if self.gone else self.console()
        if not self.gone:
            self.driver.quit()
            self.gone = True
        shutil.rmtree(self.profile, ignore_errors=True)
        check(not messages, "messages in the console:\n" + "\n".join(messages))


class SocketBridge:
    """A loopback address that leads to the control socket: a page with the rights of the server's user."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(self.path)
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def copy(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        self.listener.close()


def start(t, *args, expected=(), tokens=True, **options):
    """A server with an address for browsers, a token of an administrator, and a browser without a session."""
    server = t.server("--http", "127.0.0.1:0", *args, **options)
    token = make_token(server, "admin", "administrator") if tokens else None
    base = address(server)
    return server, token, browser(t, base, expected=expected)


def control(server, method, path, body=None):
    """Sends a request over the control socket; returns the JSON, and fails unless it succeeds."""
    with contextlib.closing(ControlSocket(server.control, WAIT_S)) as connection:
        headers = {"X-Forebay": "1", "Content-Type": "application/json"}
        connection.request(method, f"/api/v1{path}", body=None if body is None else json.dumps(body), headers=headers)
        response = connection.getresponse()
        text = response.read()
        check(response.status < 300, f"{method} {path}: {response.status} {text[:300]}")
        return json.loads(text)


def address(server):
    """The address of the server for browsers."""
    return "http://" + control(server, "GET", "/pool")["http"].removeprefix("http://")


def make_token(server, name, role, *args):
    return server.cli("token", "create", name, "--role", role, *args).stdout.strip()


def browser(t, base, **options):
    """A browser that ends with the test."""
    made = Browser(base, **options)
    t.defer(made.close)
    return made
