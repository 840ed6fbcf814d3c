#!/usr/bin/env python3
"""The dashboard in a real browser: run by `make test-browser`, and by `make test`.

    run.py [NAME...]      only tests whose name contains NAME

Debian's Chromium is controlled by its driver (packages chromium, chromium-driver and python3-selenium).
Environment variables, with their defaults:

    FOREBAY_BIN           the server (target/debug/forebay)
    FOREBAY_SEED          seed of all random data (1)
    FOREBAY_SCREENSHOTS   directory for pictures of all pages, in both themes and on a phone (none)
    FOREBAY_BROWSER_VOLUMES  number of volumes of the test with many (2000); a quarter of them has a client
    FOREBAY_BROWSER_ROUNDS   times that this test shows each page (1); it prints the median
    FOREBAY_BROWSER_PAGE_MS  longest median in milliseconds (10000)
"""

import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "clients"), os.path.join(ROOT, "scripts", "pylib")]

from harness import run_tests  # noqa: E402

import browser_flow  # noqa: E402, F401
import browser_access  # noqa: E402, F401
import browser_pages  # noqa: E402, F401
import browser_many  # noqa: E402, F401
import browser_cluster  # noqa: E402, F401

if __name__ == "__main__":
    os.environ.setdefault("FOREBAY_TEST_JOBS", "2")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_tests(sys.argv[1:], int(os.environ.get("FOREBAY_SEED", "1")), "browser_"))
