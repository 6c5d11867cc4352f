# SPDX-License-Identifier: BSD-3-Clause
"""A server of one object, which misbehaves as a test says, and keeps what it was asked for."""

import http.server
import re
import sys
import threading


class Listening:
    """A server on a port of this machine, whose requests are of a class with an `owner`. Use it as a context manager."""

    def listen(self, request):
        self.lock = threading.Lock()
        self.http = Quiet(("127.0.0.1", 0), type("Handler", (request,), {"owner": self}))
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


class Server(Listening):
    """Serves `data` at every path; or a dict of it, by the path's last part.

    behave: a function (request) -> None, which may answer by the methods of Request; if it does not,
    the range is sent as a good server would.
    """

    def __init__(self, data, behave=None, etag='"one"'):
        self.data, self.behave, self.etag = data, behave, etag
        self.requests = []
        self.listen(Request)

    def ranges(self):
        return [request["Range"] for request in self.requests]


class Quiet(http.server.ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the client has seen enough
            super().handle_error(request, client_address)


class Request(http.server.BaseHTTPRequestHandler):
    """One request. n: its number, from 0 on; first, last: the bytes that it asks for."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.owner
        with server.lock:
            self.n = len(server.requests)
            server.requests.append(dict(self.headers, path=self.path))
        self.answered = False
        self.data = server.data
        if isinstance(self.data, dict):
            self.data = self.data.get(self.path.partition("?")[0].rpartition("/")[2])
            if self.data is None:
                self.send(404)
                return
        size = len(self.data)
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers["Range"] or "")
        if found and found[1]:
            self.first, self.last = int(found[1]), min(int(found[2]), size - 1)
        elif found:
            self.first, self.last = max(size - int(found[2]), 0), size - 1
        if server.behave:
            server.behave(self)
        if not self.answered:
            self.send_range()

    def send_range(self, **changes):
        """A range as it should be, but for what is changed: status, size, first, last, length, etag, body."""
        size = len(self.data)
        say = {"status": 206, "size": size, "first": self.first, "last": self.last, "etag": self.owner.etag,
               "body": self.data[self.first:self.last + 1], **changes}
        length = say.get("length", len(say["body"]))
        self.send(say["status"], say["body"], length, ETag=say["etag"],
                  Content_Range=f"bytes {say['first']}-{say['last']}/{say['size']}")

    def send(self, status, body=b"", length=..., **headers):
        """length None: no Content-Length; the connection ends the body."""
        self.answered = True
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), value)
        if length is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body) if length is ... else length))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:  # the client has seen enough
            self.close_connection = True
        if length not in (..., len(body)):
            self.close_connection = True

    def cut(self, nbytes):
        """Sends so much of the range, and closes the connection."""
        asked = self.data[self.first:self.last + 1]
        self.send_range(body=asked[:nbytes], length=len(asked))
