#!/usr/bin/env python3
"""Runs schemathesis against a server and its OpenAPI document: no status 5xx, nothing undocumented.

    test-api.py [EXAMPLES]     examples of each route (30)

schemathesis is SCHEMATHESIS, or is fetched from PyPI. FOREBAY_BIN is the server. The generated requests are
the same in each run. `make test` runs it with few examples (tests/clients/clients_openapi.py).
"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "pylib"))

from forebay import Server  # noqa: E402
from tools import Unavailable, schemathesis  # noqa: E402

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# A stream without an end; and the route that replaces the server.
EXCLUDED = "^/api/v1/(events|pool/upgrade)$"
# The URLs of imports lead to other machines, and the failure of a download is status 502. The token of the
# test must stay valid.
EXCLUDED_OPERATIONS = ("post_images", "delete_tokens_name")


def main():
    examples = sys.argv[1] if len(sys.argv) > 1 else "30"
    try:
        tool = schemathesis()
    except Unavailable as e:
        sys.exit(f"test-api.py: {e}; set SCHEMATHESIS to an installed one")
    with tempfile.TemporaryDirectory(prefix="forebay-api-") as place:
        server = Server(os.path.join(place, "data"), args=("--http", "127.0.0.1:0", "--import-max-size", "1M"))
        with server:
            # Something that requests can be about.
            server.cli("volume", "create", "volume", "--size", "1M")
            server.cli("image", "create", "image", "volume")
            token = server.cli("token", "create", "test", "--role", "administrator").stdout.strip()
            address = pool(server)["http"]
            done = subprocess.run(
                [
                    *(tool, "run", f"http://{address}/api/v1/openapi.json"),
                    *("-H", f"Authorization: Bearer {token}", "-H", "X-Forebay: 1", "--max-examples", examples),
                    *("--checks", CHECKS, "--exclude-path-regex", EXCLUDED),
                    *(f"--exclude-operation-id={name}" for name in EXCLUDED_OPERATIONS),
                    *("--generation-deterministic", "--generation-with-security-parameters", "false"),
                    *("--phases", "examples,coverage,fuzzing", "--request-timeout", "60", "--continue-on-failure"),
                ],
                cwd=place,
            )
            pool(server)
    sys.exit(done.returncode)


def pool(server):
    """What `GET /pool` returns, over the control socket."""
    curl = ["curl", "-sSf", "--unix-socket", server.control, "http://localhost/api/v1/pool"]
    return json.loads(subprocess.run(curl, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
