"""Imports from web servers that are slow, endless or need credentials, and of files that are no disks."""

import http.client
import http.server
import json
import os
import socket
import subprocess
import threading

from clients_api import pool
from clients_failures import mount_tmpfs
from forebay import spawn
from harness import BLOCK, MIB, Skipped, check, connect, equal, run, test, wait_for


def web_server(t, respond, host="127.0.0.1"):
    """A web server whose GET requests are answered by `respond`. Returns its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            try:
                respond(self)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client has ended the download

    server = http.server.ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    t.defer(server.shutdown)
    return f"{host}:{server.server_address[1]}"


def head(request, length=None):
    request.send_response(200)
    if length is not None:
        request.send_header("content-length", str(length))
    request.end_headers()


@test
def what_is_no_disk_is_refused_unless_the_format_is_given(t):
    s = t.server()
    with open(t.path("page"), "w") as f:
        f.write("<!DOCTYPE html>\n<html><body>404</body></html>\n")
    line = s.refused("image", "import", "page", t.path("page"))
    check("web page" in line and "--format raw" in line, line)
    equal(s.json("image", "list"), [], "images")
    # The remedy of the error.
    done = s.cli("image", "import", "page", t.path("page"), "--format", "raw")
    check("imported image 'page' (raw): 512 B" in done.stdout, done.stdout)
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", t.noise_file("noise", 4 * MIB), t.path("noise.qcow2"))
    done = s.cli("image", "import", "noise", "file://" + t.path("noise.qcow2"))
    check("imported image 'noise' (qcow2)" in done.stdout, done.stdout)
    equal(s.json("image", "import", "again", t.path("noise.qcow2"))["format"], "qcow2", "the format in JSON")
    check("not a supported URL" in s.refused("image", "import", "x", "FTP://127.0.0.1/x"), "an unknown scheme")


@test
def passwords_in_urls_are_sent_and_not_shown(t):
    s = t.server("--http", "127.0.0.1:0")
    seen = []

    def respond(request):
        seen.append(request.headers["authorization"])
        request.send_error(404)

    address = web_server(t, respond)
    url = f"http://user:se%63ret@{address}/disk.img?signature=secret"
    line = s.refused("image", "import", "x", url)
    check("***@" in line and "404" in line, line)
    equal(seen, ["Basic dXNlcjpzZWNyZXQ="], "the credentials")
    s.refused("image", "import", "x", url.replace("http", "ftp"))
    s.refused("image", "import", "x", url.replace("http://", "http:// "))
    jobs = s.cli("job", "list").stdout + str(s.json("job", "list"))
    check("fetch_failed" in jobs, jobs)
    with open(s.log) as f:
        log = f.read()
    check("import failed" in log, log)
    for name, text in (("the error", line), ("the jobs", jobs), ("the log", log)):
        check("secret" not in text and "se%63ret" not in text, f"{name}: {text}")


def own_address():
    """An address of this machine that other machines can reach; None without one."""
    found = json.loads(run("ip", "-j", "-4", "addr").stdout)
    addresses = [a["local"] for link in found for a in link["addr_info"] if a["scope"] == "global"]
    return addresses[0] if addresses else None


@test
def over_tcp_the_server_does_not_send_requests_to_itself(t):
    host = own_address()
    if host is None:
        raise Skipped("the machine has only loopback addresses")
    s = t.server("--http", "127.0.0.1:0")
    body, asked = os.urandom(MIB), []

    def respond(request):
        asked.append(request.path)
        head(request, len(body))
        request.wfile.write(body)

    address = web_server(t, respond, host)
    port = address.rsplit(":", 1)[1]
    api = json.loads(pool(s))["http"].removeprefix("http://").rstrip("/")

    def imported(authority):
        """Requests an import over TCP, and returns the status and the text of the answer."""
        connection = http.client.HTTPConnection(api, timeout=60)
        body = json.dumps({"name": "own", "source": {"url": f"http://{authority}/disk.img"}})
        headers = {"X-Forebay": "1", "Content-Type": "application/json"}
        connection.request("POST", "/api/v1/images", body, headers)
        answer = connection.getresponse()
        status, text = answer.status, answer.read().decode()
        connection.close()
        return status, text

    for authority in (address, f"[::ffff:{host}]:{port}"):
        status, text = imported(authority)
        check(status == 403 and "over the control socket" in text, f"{authority}: {status} {text}")
    # A name for the resolver, which is an address of this machine.
    number = int.from_bytes(socket.inet_aton(host), "big")
    status, text = imported(f"{number}:{port}")
    check("an address of this server" in text and "over the control socket" in text, f"{status} {text}")
    equal(asked, [], "requests to this machine")
    # The remedy of the error.
    s.cli("image", "import", "own", f"http://{address}/disk.img")
    equal(s.json("image", "list")[0]["size_bytes"], MIB, "the size")


@test
def a_download_does_not_fill_the_file_system_of_the_pool(t):
    where = mount_tmpfs(t, "512M")
    s = t.server("--cache", "16M", data=os.path.join(where, "data"))
    s.cli("volume", "create", "disk", "--size", "16M")
    h = connect(s, "disk")

    def endless(request):
        head(request)
        while True:
            request.wfile.write(bytes(MIB))

    def large(request):
        head(request, 1 << 40)
        request.wfile.write(bytes(MIB))

    for name, respond in (("endless", endless), ("large", large)):
        line = s.refused("image", "import", "x", f"http://{web_server(t, respond)}/disk.img")
        check("kept free for writes" in line, f"{name}: {line}")
        h.pwrite(name.encode(), BLOCK)
        h.flush()
        equal(bytes(h.pread(len(name), BLOCK)), name.encode(), "a write afterwards")
    line = s.refused("image", "import", "x", f"http://{web_server(t, endless)}/disk.img", "--max-size", "8M")
    check("larger than 8 MiB" in line, line)
    free = os.statvfs(where)
    check(free.f_bavail * free.f_frsize > 51 * MIB, "the file of a refused download remains")
    equal(s.json("image", "list"), [], "images")


@test
def a_server_that_answers_late_is_awaited(t):
    s = t.server(config="[import]\nfirst_byte_timeout_s = 120\n")
    go = threading.Event()
    body = os.urandom(MIB)

    def respond(request):
        go.wait(60)
        head(request, len(body))
        request.wfile.write(body)

    url = f"HTTP://{web_server(t, respond)}/disk.img"
    argv = [s.bin, "--socket", s.control, "image", "import", "late", url]
    job = spawn(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waiting = lambda: any(j["progress"]["phase"] == "download" for j in s.json("job", "list"))
    wait_for(waiting, "a job that waits for the first byte")
    go.set()
    equal(job.wait(60), 0, "the import")
    equal(s.json("image", "list")[0]["size_bytes"], MIB, "the size")


@test
def compressed_images_are_imported_from_files_and_urls(t):
    s = t.server()
    raw = t.noise_file("disk.raw", 4 * MIB)
    with open(raw, "rb") as f:
        body = f.read()
    for extension, tool in (("gz", "gzip"), ("xz", "xz"), ("zst", "zstd"), ("bz2", "bzip2")):
        packed = t.path(f"disk.raw.{extension}")
        with open(packed, "wb") as f:
            subprocess.run([tool, "-c", raw], stdout=f, check=True)
        s.cli("image", "import", f"file-{extension}", packed)

        def respond(request):
            head(request, os.path.getsize(packed))
            with open(packed, "rb") as f:
                request.wfile.write(f.read())

        address = web_server(t, respond)
        s.cli("image", "import", f"url-{extension}", f"http://{address}/disk.raw.{extension}")
        for name in (f"file-{extension}", f"url-{extension}"):
            s.cli("volume", "clone", name, f"of-{name}")
            equal(bytes(connect(s, f"of-{name}").pread(4 * MIB, 0)), body, name)


@test
def disks_of_virtualbox_and_of_appliances_are_imported(t):
    s = t.server()
    raw, other = t.noise_file("disk.raw", 4 * MIB), t.noise_file("other.raw", 2 * MIB)
    with open(raw, "rb") as f:
        body = f.read()
    for name, options in (("dynamic", ()), ("fixed", ("-o", "static=on"))):
        run("qemu-img", "convert", "-f", "raw", "-O", "vdi", *options, raw, t.path(f"{name}.vdi"))
        done = s.cli("image", "import", name, t.path(f"{name}.vdi"))
        check(f"imported image '{name}' (vdi): 4 MiB" in done.stdout, done.stdout)
    stream = ("-O", "vmdk", "-o", "subformat=streamOptimized")
    disks = (("box-1.vmdk", raw), ("box-2.vmdk", other))
    for name, source in disks:
        run("qemu-img", "convert", "-f", "raw", *stream, source, t.path(name))
    files = "".join(f'<File ovf:id="f{n}" ovf:href="{name}"/>' for n, (name, _) in enumerate(disks))
    listed = "".join(f'<Disk ovf:diskId="d{n}" ovf:fileRef="f{n}"/>' for n in range(2))
    with open(t.path("box.ovf"), "w") as f:
        f.write(f"<Envelope><References>{files}</References><DiskSection>{listed}</DiskSection></Envelope>")
    sums = run("sha256sum", "--tag", *(t.path(name) for name in ("box.ovf", "box-1.vmdk", "box-2.vmdk"))).stdout
    with open(t.path("box.mf"), "w") as f:
        f.write(sums.replace(t.dir + "/", "").replace(" = ", "= ").replace("SHA256 (", "SHA256("))
    run("tar", "-C", t.dir, "-cf", t.path("box.ova"), "box.ovf", "box.mf", "box-1.vmdk", "box-2.vmdk")
    line = s.refused("image", "import", "box", t.path("box.ova"))
    check("2 disks" in line and "--disk" in line and "1: 'box-1.vmdk' ('d0')" in line, line)
    done = s.cli("image", "import", "box", t.path("box.ova"), "--disk", "d0")
    check("imported image 'box' (ova): 4 MiB" in done.stdout, done.stdout)
    for name in ("dynamic", "fixed", "box"):
        s.cli("volume", "clone", name, f"of-{name}")
        equal(bytes(connect(s, f"of-{name}").pread(4 * MIB, 0)), body, name)


@test
def an_extent_that_the_server_cannot_read_is_named(t):
    s = t.server()
    run("qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=monolithicFlat",
        t.noise_file("disk.raw", 2 * MIB), t.path("disk.vmdk"))
    os.rename(t.path("disk-flat.vmdk"), t.path("elsewhere"))
    line = s.refused("image", "import", "x", t.path("disk.vmdk"))
    check("disk-flat.vmdk" in line and "an extent of the disk is not readable" in line, line)
    check("uploading" not in line, line)


@test
def uploads_are_listed_and_ended(t):
    s = t.server("--http", "127.0.0.1:0")
    api = json.loads(pool(s))["http"].removeprefix("http://").rstrip("/")

    def begin(image):
        connection = http.client.HTTPConnection(api, timeout=60)
        body = json.dumps({"image": image, "file_name": f"{image}.img", "len_bytes": 2 * MIB})
        connection.request("POST", "/api/v1/uploads", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())
        connection.close()
        return found

    numbers = [begin(f"image-{n}")[1]["id"] for n in range(4)]
    status, refused = begin("image-5")
    check(status == 409 and "forebay upload rm" in refused["detail"], str(refused))
    shown = s.cli("upload", "list").stdout
    check("image-0.img" in shown and "loopback" in shown and "0 B" in shown, shown)
    equal([upload["id"] for upload in s.json("upload", "list")], numbers, "the uploads")
    s.cli("upload", "rm", *map(str, numbers[:2]))
    equal([upload["id"] for upload in s.json("upload", "list")], numbers[2:], "the uploads that are left")
    equal(begin("image-5")[0], 201, "a further upload")


@test
def a_decompression_does_not_fill_the_file_system_of_the_pool(t):
    where = mount_tmpfs(t, "512M")
    s = t.server("--cache", "16M", data=os.path.join(where, "data"))
    with open(t.path("bomb"), "wb") as f:
        # About 1 MB compressed, and no zeroes, which would need no room.
        subprocess.run("yes | head -c 1G | gzip -c", shell=True, stdout=f, check=True)
    line = s.refused("image", "import", "x", t.path("bomb"))
    check("the decompression of" in line and "kept free for writes" in line, line)
    line = s.refused("image", "import", "x", t.path("bomb"), "--max-size", "8M")
    check("more than 8 MiB" in line and "--max-size" in line, line)
    free = os.statvfs(where)
    check(free.f_bavail * free.f_frsize > 51 * MIB, "the file of a refused decompression remains")
    equal(s.json("image", "list"), [], "images")


@test
def a_file_that_only_the_caller_can_read_is_uploaded(t):
    where = t.path("private")
    os.mkdir(where)
    s = t.server()
    size = 5 * MIB + BLOCK
    source = t.noise_file("noise", size)

    def imported(name, *args):
        """Imports a file of a file system that only the command has mounted."""
        script = 'mount -t tmpfs none "$1" && cp "$2" "$1/disk.img" && shift 2 && exec "$@"'
        argv = ["unshare", "-m", "sh", "-c", script, "sh", where, source]
        argv += [s.bin, "--socket", s.control, "image", "import", name, os.path.join(where, "disk.img"), *args]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    done = imported("noise")
    if "unshare" in done.stderr or "mount" in done.stderr:
        raise Skipped(done.stderr.strip())
    equal(done.returncode, 0, done.stderr)
    check("no such file as the server sees" in done.stderr and "uploading it" in done.stderr, done.stderr)
    equal(s.json("image", "list")[0]["size_bytes"], size, "the size")
    s.cli("volume", "clone", "noise", "of-noise")
    with open(source, "rb") as f:
        equal(bytes(connect(s, "of-noise").pread(size, 0)), f.read(), "the contents")
    # The name is checked before the upload, and a failed import ends the upload.
    again = imported("noise")
    check(again.returncode != 0 and "exists" in again.stderr and "uploading" not in again.stderr, again.stderr)
    for _ in range(5):
        wrong = imported("wrong", "--format", "qcow2")
        check(wrong.returncode != 0 and "not a qcow2 file" in wrong.stderr, wrong.stderr)
