"""Sustained load on a store that is short of space, in its short form; `make soak` runs the long one."""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "soak"))

from churn import soak  # noqa: E402
from harness import equal, test  # noqa: E402


@test
def overwrites_and_snapshots_at_60_percent_live_meet_no_enospc(t):
    equal(soak(t, 60, seconds=10, scale=8).problems(), [], "violations of promises")


@test
def overwrites_and_snapshots_at_80_percent_live_meet_no_enospc(t):
    equal(soak(t, 80, seconds=15, scale=8).problems(), [], "violations of promises")
