#!/usr/bin/env python3
"""Real clients against the real server: run by `make test-clients`.

    run.py [NAME...]      only tests whose name contains NAME

FOREBAY_BIN is the server (target/debug/forebay), FOREBAY_SEED the seed of all random data (1),
FOREBAY_CRASH_ROUNDS how often the crash test kills the server (200), FOREBAY_POWER_CUTS how often the power of its disk
is cut, on each file system (4), FOREBAY_HOSTILE_S for how many seconds clients of each hostile kind stay (5).
"""

import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts", "pylib")]

from harness import run_tests  # noqa: E402

# The order in which they run: what is simple first, so that the first failure is the one to look at.
import clients_tools  # noqa: E402, F401
import clients_semantics  # noqa: E402, F401
import clients_input  # noqa: E402, F401
import clients_tls  # noqa: E402, F401
import clients_filesystems  # noqa: E402, F401
import clients_space  # noqa: E402, F401
import clients_soak  # noqa: E402, F401
import clients_desktops  # noqa: E402, F401
import clients_targets  # noqa: E402, F401
import clients_iscsi  # noqa: E402, F401
import clients_access  # noqa: E402, F401
import clients_luns  # noqa: E402, F401
import clients_initiators  # noqa: E402, F401
import clients_classes  # noqa: E402, F401
import clients_hostile  # noqa: E402, F401
import clients_failures  # noqa: E402, F401
import clients_crash  # noqa: E402, F401
import clients_power  # noqa: E402, F401

if __name__ == "__main__":
    # A test run that is told to end ends its servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_tests(sys.argv[1:], int(os.environ.get("FOREBAY_SEED", "1"))))
