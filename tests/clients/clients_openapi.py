"""The API does what its OpenAPI document states: generated requests for every route, in a short form. `make
test-api` has the long one."""

import os
import sys

from harness import Skipped, check, run, test
from tools import Unavailable, schemathesis

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "test-api.py")
# Of each route, in addition to its examples and to the boundaries of each parameter.
EXAMPLES = 3


@test
def the_api_is_as_documented(t):
    try:
        tool = schemathesis()
    except Unavailable as e:
        raise Skipped(str(e)) from e
    environment = {**os.environ, "SCHEMATHESIS": tool}
    done = run(sys.executable, SCRIPT, EXAMPLES, env=environment, check=False, timeout=600)
    check(done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:])
