#!/usr/bin/env python3
"""Long loads on the real server: run by `make soak-space`.

    run.py [NAME...]      only tests whose name contains NAME

FOREBAY_BIN is the server (target/debug/forebay), FOREBAY_SEED the seed (1), SOAK_MINUTES the duration of each
load (30), SOAK_VERBOSE=1 prints the server's statistics of each second.
"""

import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "clients"), os.path.join(HERE, "..", "..", "scripts", "pylib")]

from churn import soak  # noqa: E402
from harness import equal, run_tests, test  # noqa: E402

SECONDS = 60 * float(os.environ.get("SOAK_MINUTES", "30"))
VERBOSE = os.environ.get("SOAK_VERBOSE") == "1"


@test
def churn_at_60_percent_live(t):
    equal(soak(t, 60, SECONDS, verbose=VERBOSE).problems(), [], "violations of promises")


@test
def churn_at_80_percent_live(t):
    equal(soak(t, 80, SECONDS, verbose=VERBOSE).problems(), [], "violations of promises")


if __name__ == "__main__":
    # SIGTERM ends the servers of a test run too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_tests(sys.argv[1:], int(os.environ.get("FOREBAY_SEED", "1"))))
