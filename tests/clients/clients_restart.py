"""The time until a client that was waiting is served again, when the server was killed under load."""

import re
import time

from clients_memory import Writers
from harness import BLOCK, MIB, alone, check, connect, equal, test

# Large segments, and no checkpoint nor reclaim: recovery reads all of the log.
LONG_LOG = """
[log]
segment = "512M"
checkpoint = "8G"
[memory]
write_buffer = "256M"
"""
LOG_MIB = 1024
# The fastest of some restarts, because the tests of others use the same machine.
RESTARTS = 5
LIMIT_S = 3


def restart(s):
    """Starts the server; returns the time until it has answered a client that has been trying to connect."""
    import nbd

    begin = time.monotonic()
    s.launch()
    while True:
        try:
            h = connect(s, "disk")
            break
        except nbd.Error:
            check(time.monotonic() < begin + 60, f"no answer in 60 s:\n{s.log_tail()}")
            time.sleep(0.005)
    h.pread(BLOCK, 0)
    took = time.monotonic() - begin
    h.shutdown()
    return took


@alone
@test
def a_restart_with_a_gigabyte_of_log_takes_three_seconds(t):
    s = t.server(config=LONG_LOG)
    s.cli("volume", "create", "disk", "--size", "2G")
    h = connect(s, "disk")
    for n in range(LOG_MIB):
        # Neither duplicates nor compressible. The writers below overwrite the first blocks.
        h.pwrite(t.random.randbytes(MIB), n * MIB)
    h.flush()
    writers = Writers(s, ["disk"])
    writers.wait_beyond({"disk": 200})
    writers.end()
    took = [restart(s)]
    recovered = [int(n) for n in re.findall(r"recovered (\d+) MiB", s.log_tail(1000))]
    check(recovered[-1] >= LOG_MIB, f"the log was too short: {recovered[-1]} MiB")
    while min(took) >= LIMIT_S and len(took) < RESTARTS:
        s.kill()
        took.append(restart(s))
    writers.verify()
    equal(writers.errors, [], "errors of writers")
    print(f"     {min(took):.2f} s from the start of the process to the first answer; log of {recovered[-1]} MiB")
    check(min(took) < LIMIT_S, f"the fastest of {len(took)} restarts took {min(took):.1f} s")
