"""A Ceph cluster for tests, and servers whose pools are in it."""

import os
import shutil
import socket
import tempfile
import time

from forebay import Failed, Server, run
from hosts import free_port

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ceph", "cluster.sh")
# Below the ports that Linux gives to clients. Each cluster uses a range of them.
FIRST_PORT, LAST_PORT, PORTS = 18000, 30000, 200
# Longest wait for a state of the cluster on a busy machine.
CLUSTER_S = 60


def claim_ports():
    """The first port of an unused range, and a socket that claims the range for this process."""
    for port in range(FIRST_PORT, LAST_PORT, PORTS):
        claim = socket.socket(socket.AF_UNIX)
        try:
            # An abstract name ends with its process.
            claim.bind(f"\0forebay-test-ports-{port}")
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            claim.close()
            continue
        return port, claim
    raise Failed("no free range of ports for a Ceph cluster")


class Cluster:
    """A throw-away cluster of one monitor and `OSDS` OSDs: see `tests/ceph/cluster.sh`.

    It ends with the process that started it. Forked processes may control it, too.
    """

    OSDS = 3

    def __init__(self, store=None, **settings):
        self.settings = {"STORE": store or os.environ.get("FOREBAY_CEPH_STORE", "memstore"), **settings}
        self.dir = self.claim = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    @property
    def conf(self):
        """The configuration file of its clients."""
        return os.path.join(self.dir, "ceph.conf")

    def start(self):
        port, self.claim = claim_ports()
        self.dir = tempfile.mkdtemp(prefix="forebay-ceph-", dir="/tmp")
        self.settings.update(DIR=self.dir, PORT=port, OSDS=self.OSDS, OWNER=os.getpid())
        self.command("start")
        return self

    def close(self):
        """Ends all processes, and removes all files."""
        if self.dir:
            self.command("destroy", check=False)
            shutil.rmtree(self.dir, ignore_errors=True)
            self.dir = None
        if self.claim:
            self.claim.close()

    def command(self, *args, check=True):
        """Runs a command of the script."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CL_")}
        environment.update((f"CL_{name}", str(value)) for name, value in self.settings.items())
        return run(SCRIPT, *args, check=check, env=environment)

    def kill_osd(self, number):
        """SIGKILL. With memstore, the OSD has no data when it is started again."""
        self.command("kill-osd", number)

    def start_osd(self, number):
        self.command("start-osd", number)

    def pause_osd(self, number):
        """SIGSTOP: it hangs until `resume_osd`."""
        self.command("pause-osd", number)

    def resume_osd(self, number):
        self.command("resume-osd", number)

    def kill_mon(self):
        self.command("kill-mon")

    def start_mon(self):
        self.command("start-mon")

    def wait_up(self, timeout=CLUSTER_S):
        """Waits until the monitor answers and reports all OSDs as up."""
        self.command("wait-up", timeout)

    def wait_clean(self, timeout=CLUSTER_S):
        """Waits until all objects have all replicas."""
        self.command("wait-clean", timeout)

    def heal(self):
        """Ends all outages: for tests, so that a failed one does not affect the next one."""
        self.start_mon()
        for number in range(self.OSDS):
            self.start_osd(number)
            self.resume_osd(number)
        self.wait_up()
        self.wait_clean()

    def pool(self, name):
        """Creates a pool."""
        self.command("pool", name)

    def ec_pool(self, name):
        """Creates an erasure-coded pool."""
        self.command("ec-pool", name)

    def acting(self, pool, namespace, name):
        """The numbers of the OSDs that have an object."""
        return [int(n) for n in self.command("acting", pool, namespace, name).stdout.split()]

    def growing(self, pool, namespace, seconds=0.5):
        """The names of the objects that grow within this time."""
        return self.command("growing", pool, namespace, seconds).stdout.split()

    def quota(self, pool, size):
        """Limits the bytes in a pool. The limit takes effect after some seconds."""
        self.command("quota", pool, size)


class LargeCluster(Cluster):
    """A cluster in which an OSD does not have all objects."""

    OSDS = 6


class RadosServer(Server):
    """A server whose pool is in a cluster, as `rados:POOL/NAME`. It listens on TCP as well.

    Servers of one pool are on separate nodes: each has a directory, which contains only its sockets, and
    retained memory, which the others cannot read.
    """

    def __init__(
        self, t, cluster, name, *args, pool="test", node="a", conf=None, config=None, address="127.0.0.1"
    ):
        directory = f"{name}-{node}"
        memory = os.path.join(t.memory, directory)
        os.makedirs(memory, mode=0o700, exist_ok=True)
        super().__init__(t.path(directory), log=t.path(f"{directory}.log"), memory=memory)
        self.address = f"rados:{pool}/{name}"
        self.conf = conf or cluster.conf
        self.host, self.port = address, free_port()
        self.fixed_args = ["--nbd", f"{self.host}:{self.port}", *args]
        if config is not None:
            file = t.path(f"{directory}.toml")
            with open(file, "w") as f:
                f.write(config)
            self.fixed_args += ["--config", file]
        t.defer(self.close)

    def location(self):
        return ["--pool", self.address, "--ceph-conf", self.conf]

    def launch(self, standby=False):
        self.args = [*self.location(), *self.fixed_args, *(["--standby"] if standby else [])]
        return super().launch()

    def stand_by(self):
        """Starts the process, which waits until the pool has no other server."""
        self.remove_sockets()
        return self.launch(standby=True)

    def tcp_uri(self, export):
        return f"nbd://{self.host}:{self.port}/{export}"


class OverTcp:
    """A server whose clients use TCP: its answers to writes mean that they are durable."""

    def __init__(self, server):
        self.server = server

    def __getattr__(self, name):
        return getattr(self.server, name)

    def uri(self, export):
        return self.server.tcp_uri(export)


class Nodes:
    """Two servers of one pool: one serves, the other one stands by. All other attributes are those of the
    serving one, in forked processes as well.
    """

    def __init__(self, t, cluster, name, *args, config=None):
        self.servers = [RadosServer(t, cluster, name, *args, node=node, config=config) for node in "ab"]
        self.file = t.path(f"{name}.serving")
        self.write_serving(0)

    def __getattr__(self, name):
        return getattr(self.serving, name)

    def write_serving(self, number):
        with open(f"{self.file}.new", "w") as f:
            f.write(str(number))
        os.replace(f"{self.file}.new", self.file)

    def read_serving(self):
        with open(self.file) as f:
            return int(f.read())

    @property
    def serving(self):
        return self.servers[self.read_serving()]

    @property
    def waiting(self):
        return self.servers[1 - self.read_serving()]

    def start(self):
        """Starts both."""
        self.serving.start()
        self.waiting.stand_by()
        return self

    def check_waiting(self):
        """Fails unless one serves and the other one waits."""
        for server, ready in ((self.serving, True), (self.waiting, False)):
            if server.process.poll() is not None:
                raise Failed(f"a server ended with status {server.process.returncode}:\n{server.log_tail()}")
            if server.is_ready() != ready:
                raise Failed(f"{server.log} is of a server that should {'serve' if ready else 'wait'}")

    def take_over(self, timeout):
        """Waits until the waiting server serves. Returns it; the former one may be launched again."""
        self.waiting.wait_ready(timeout)
        self.write_serving(1 - self.read_serving())
        return self.serving

    def stop(self):
        """Stops both, the waiting one first."""
        if self.waiting.process:
            self.waiting.kill()
        return self.serving.stop()


def first_answer(server, export, since):
    """Seconds from `since` until a client that connects now has read a block."""
    import nbd

    h = nbd.NBD()
    h.connect_uri(server.tcp_uri(export))
    h.pread(4096, 0)
    return time.monotonic() - since
