# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints for the tests of URLs, made once by PyTorch; and nginx, which serves them."""

import atexit
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile

import case

PYTHON = os.environ.get("BERTH_PYTHON", sys.executable)
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
MAKE = """
import torch
torch.manual_seed(1)
torch.save({f"layers.{i}.weight": torch.zeros(8) for i in range(10000)}, "many.pt")
torch.save({f"layers.{i}.weight": torch.zeros(1) for i in range(25000)}, "more.pt")
torch.save({f"layers.{i}.weight": torch.randn(1 << 19) for i in range(12)}, "mid.pt")
torch.save({"weight": torch.randn(100), "epoch": 7}, "small.pt")
torch.save({"linear": torch.nn.Linear(2, 2)}, "classes.pt")
torch.save({f"layers.{i}.weight": torch.randn(1 << 18) for i in range(4)}, "old.pt",
           _use_new_zipfile_serialization=False)
"""


@functools.cache
def folder():
    """The folder of the checkpoints, which every server may read."""
    there = tempfile.mkdtemp(prefix="berth-url-")
    atexit.register(shutil.rmtree, there, ignore_errors=True)
    os.chmod(there, 0o755)
    subprocess.run([PYTHON, "-c", MAKE], cwd=there, check=True)
    subprocess.run([case.BERTH, "convert", "many.pt", "many.safetensors"], cwd=there, check=True)
    with open(os.path.join(there, "huge.pt"), "wb") as sparse:
        sparse.truncate(65 << 20)
    for name in os.listdir(there):
        os.chmod(os.path.join(there, name), 0o644)
    return there


def path(name):
    return os.path.join(folder(), name)


def read(name):
    with open(path(name), "rb") as file:
        return file.read()


def cost_limit(name):
    """What opening may take: pickle, directory and 1 MiB."""
    with zipfile.ZipFile(path(name)) as archive:
        pickle = next(entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
        return pickle.file_size + os.path.getsize(path(name)) - archive.start_dir + (1 << 20)


# ---- nginx ----

CONFIGURATION = """
daemon off; master_process off; worker_processes 1; pid {there}/pid; error_log {there}/error.log;
events {{ }}
http {{
    log_format asked '$server_port $request_method $uri $status $body_bytes_sent $server_protocol '
                     '$http_range';
    access_log {there}/access.log asked;
    client_body_temp_path {there}/1; proxy_temp_path {there}/2; fastcgi_temp_path {there}/3;
    uwsgi_temp_path {there}/4; scgi_temp_path {there}/5;
    root {root};
    server {{ listen 127.0.0.1:{ranges}; }}
    server {{ listen 127.0.0.1:{no_ranges}; max_ranges 0; }}
    server {{ listen 127.0.0.1:{slow}; limit_rate 1m; }}
    server {{
        listen 127.0.0.1:{tls} ssl http2; server_name localhost;
        ssl_certificate {there}/server.pem; ssl_certificate_key {there}/server.key;
        location /down/ {{ return 302 http://127.0.0.1:{ranges}/small.pt; }}
    }}
    server {{ listen unix:{there}/ready; }} # the last to be there
}}
"""
CERTIFICATES = r"""
key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${key[@]}" -days 2 -subj /CN=tests -keyout ca.key -out ca.pem
openssl req "${key[@]}" -subj /CN=localhost -keyout server.key -out server.csr
printf 'subjectAltName=DNS:localhost' >names
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names \
    -out server.pem
"""


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Nginx:
    """nginx: with ranges, without, slow, and with HTTP/2 over TLS."""

    def __init__(self):
        self.there = tempfile.mkdtemp(prefix="berth-nginx-")
        names = ("ranges", "no_ranges", "slow", "tls")
        ports = dict(zip(names, free_ports(len(names))))
        subprocess.run(["bash", "-e", "-c", CERTIFICATES], cwd=self.there, check=True, capture_output=True)
        with open(f"{self.there}/nginx.conf", "w", encoding="utf-8") as file:
            file.write("user root;\n" * (os.getuid() == 0) +
                       CONFIGURATION.format(there=self.there, root=folder(), **ports))
        self.process = subprocess.Popen([NGINX, "-c", f"{self.there}/nginx.conf", "-p", self.there, "-e",
                                         f"{self.there}/error.log"],
                                        stderr=subprocess.PIPE)
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        self.urls["tls"] = f"https://localhost:{ports['tls']}"
        self.ports, self.n_waits = ports, 0
        while not os.path.exists(f"{self.there}/ready"):
            if self.process.poll() is not None:
                raise RuntimeError(self.process.stderr.read().decode())
            time.sleep(0.02)

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stderr.close()
        shutil.rmtree(self.there, ignore_errors=True)

    def _wait_for_log(self):
        """A client has its answer before nginx has logged it; one process logs in order, so a last line is waited for."""
        self.n_waits += 1
        with socket.socket(socket.AF_UNIX) as marker:
            marker.connect(f"{self.there}/ready")
            marker.sendall(b"GET /log-%d HTTP/1.0\r\n\r\n" % self.n_waits)
            while marker.recv(4096):
                pass
        while True:
            with open(f"{self.there}/access.log", encoding="utf-8") as lines:
                if f" /log-{self.n_waits} " in lines.read():
                    return
            time.sleep(0.01)

    def asked(self, name, n_seen=0):
        """The requests to one server since n_seen: (method, path, status, nbytes, protocol, range)."""
        self._wait_for_log()
        with open(f"{self.there}/access.log", encoding="utf-8") as lines:
            all_of_them = [line.split() for line in lines if line.startswith(f"{self.ports[name]} ")]
        return [(words[1], words[2], int(words[3]), int(words[4]), words[5], words[6])
                for words in all_of_them[n_seen:]]
