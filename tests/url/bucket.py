# SPDX-License-Identifier: BSD-3-Clause
"""A bucket of S3 that can be written: objects and uploads in memory, each signature and checksum verified.

Source of the rules: the reference of Amazon S3 (PutObject, CreateMultipartUpload, UploadPart,
CompleteMultipartUpload, AbortMultipartUpload, ListMultipartUploads, HeadObject).
"""

import base64
import hashlib
import http.server
import re
import time
import urllib.parse
import zlib

import signature
from server import Listening

KEY, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-west-1"
MIN_PART = 5 << 20


def quote(key):
    return urllib.parse.quote(key, errors="surrogateescape")


def crc32(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


class Bucket(Listening):
    """Serves s3://bucket.

    behave: a function (request) -> None or an answer of Request; called before anything is done. A request has a
        number n (from 0 on), a step ("begin", "part", "complete", "abort", "put", "get", "head", "list"), and
        its key.
    after: the same when all is done, and before it is told.
    tells_checksums: of objects. is_idempotent: what is gone is removed with success. long_ids: what ids end with.
    """

    tells_checksums, is_idempotent, long_ids = True, False, ""

    def __init__(self, behave=None, after=None):
        self.behave, self.after = behave, after
        self.objects, self.uploads, self.steps, self.problems = {}, {}, [], []
        self.n_now = 0
        self.listen(Request)
        self.env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION,
                    "AWS_ENDPOINT_URL": self.url}


class Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answered = False
    etag = object = content_range = None

    def log_message(self, *_):
        pass

    def do(self):
        bucket = self.owner
        path, _, query = self.path.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        name, _, key = urllib.parse.unquote(path[1:]).partition("/")
        self.key = key
        self.step = self.find_step()
        self.body = self.etag = self.object = None  # one Request serves all of its connection
        with bucket.lock:
            self.n = len(bucket.steps)
            bucket.steps.append(self.step)
            bucket.n_now += 1
        try:
            if bucket.behave:
                bucket.behave(self)
            if self.answered:
                return
            self.take()
            problem = signature.problem(self.command, self.path, self.headers, KEY, SECRET, REGION)
            if problem:
                bucket.problems.append(problem)
                return self.fail(403, "SignatureDoesNotMatch")
            if name != "bucket":
                return self.fail(404, "NoSuchBucket")
            with bucket.lock:
                self.said = None
                getattr(self, "do_" + self.step)(bucket)
            if bucket.after:
                bucket.after(self)
            if not self.answered:
                self.send(*self.said)
        finally:
            self.answered = False
            with bucket.lock:
                bucket.n_now -= 1

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do

    def find_step(self):
        if self.command == "PUT":
            return "part" if "partNumber" in self.query else "put"
        if self.command == "POST":
            return "begin" if "uploads" in self.query else "complete"
        if self.command == "GET":
            return "list" if "uploads" in self.query else "get"
        return {"DELETE": "abort", "HEAD": "head"}[self.command]

    def take(self):
        """Reads the body. Who answers before does not want it."""
        if self.body is None:
            self.body = self.rfile.read(int(self.headers["Content-Length"] or 0))

    # ---- answers ----

    def send(self, status, body=b"", **headers):
        self.answered = True
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        size = len(self.object[0]) if self.object and self.step == "head" else len(body)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if status >= 300:
            self.close_connection = True

    def fail(self, status, code, **headers):
        self.send(status, f"<Error><Code>{code}</Code></Error>", **headers)

    def cut(self):
        """No answer: the connection ends."""
        self.answered = True
        self.close_connection = True

    # ---- steps; under the lock ----

    def refuse(self, status, code):
        self.said = (status, f"<Error><Code>{code}</Code></Error>")

    def checked(self):
        """Whether the body has the checksum that its header says."""
        if self.headers["x-amz-checksum-crc32"] == crc32(self.body):
            return True
        self.refuse(400, "BadDigest")
        return False

    def allowed(self, bucket):
        there = bucket.objects.get(self.key)
        if self.headers["If-None-Match"] == "*" and there:
            return self.refuse(412, "PreconditionFailed")
        if self.headers["If-Match"] and (not there or there[1] != self.headers["If-Match"]):
            return self.refuse(412, "PreconditionFailed")
        return True

    def do_put(self, bucket):
        if self.checked() and self.allowed(bucket):
            etag = f'"{hashlib.md5(self.body).hexdigest()}"'
            bucket.objects[self.key] = (self.body, etag, crc32(self.body))
            self.said = (200,)
            self.etag = etag

    def do_begin(self, bucket):
        if self.headers["x-amz-checksum-type"] != "FULL_OBJECT" or self.headers["x-amz-checksum-algorithm"] != "CRC32":
            return self.refuse(400, "InvalidRequest")
        name = f"id+/{self.n}={bucket.long_ids}"  # it must be encoded
        bucket.uploads[name] = {"key": self.key, "parts": {}, "since": time.time()}
        self.said = (200, f"<InitiateMultipartUploadResult><Key>k</Key><UploadId>{name}</UploadId>"
                          "</InitiateMultipartUploadResult>")

    def do_part(self, bucket):
        upload = bucket.uploads.get(self.query["uploadId"])
        if not upload or upload["key"] != self.key:
            return self.refuse(404, "NoSuchUpload")
        if self.checked():
            etag = f'"{hashlib.md5(self.body).hexdigest()}"'
            upload["parts"][int(self.query["partNumber"])] = (self.body, etag)
            self.said, self.etag = (200,), etag

    def do_complete(self, bucket):
        upload = bucket.uploads.get(self.query["uploadId"])
        if not upload or upload["key"] != self.key:
            return self.refuse(404, "NoSuchUpload")
        listed = re.findall(r"<Part><ChecksumCRC32>(.*?)</ChecksumCRC32><ETag>(.*?)</ETag><PartNumber>(\d+)"
                            r"</PartNumber></Part>", self.body.decode())
        parts = [upload["parts"].get(int(number)) for _, _, number in listed]
        numbers = [int(number) for _, _, number in listed]
        if not parts or numbers != sorted(set(numbers)) or any(
                not part or part[1] != etag or crc32(part[0]) != crc
                for part, (crc, etag, _) in zip(parts, listed, strict=True)):
            return self.refuse(400, "InvalidPart")
        if any(len(data) < MIN_PART for data, _ in parts[:-1]):
            return self.refuse(400, "EntityTooSmall")
        whole = b"".join(data for data, _ in parts)
        if self.headers["x-amz-checksum-crc32"] != crc32(whole) or \
                self.headers["x-amz-checksum-type"] != "FULL_OBJECT" or \
                self.headers["x-amz-mp-object-size"] != str(len(whole)):
            return self.refuse(400, "BadDigest")
        if self.allowed(bucket):
            digests = b"".join(hashlib.md5(data).digest() for data, _ in parts)
            etag = f'"{hashlib.md5(digests).hexdigest()}-{len(parts)}"'
            bucket.objects[self.key] = (whole, etag, crc32(whole))
            del bucket.uploads[self.query["uploadId"]]
            self.said = (200, f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>")

    def do_abort(self, bucket):
        upload = bucket.uploads.get(self.query["uploadId"])
        self.said = (204,)
        if not upload and bucket.is_idempotent:
            return
        if not upload or upload["key"] != self.key:
            return self.refuse(404, "NoSuchUpload")
        del bucket.uploads[self.query["uploadId"]]

    def do_head(self, bucket):
        there = bucket.objects.get(self.key)
        self.said = (200,) if there else (404,)
        self.object = there

    def do_get(self, bucket):
        there = bucket.objects.get(self.key)
        if not there:
            return self.refuse(404, "NoSuchKey")
        size = len(there[0])
        first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers["Range"]).groups()
        first, last = (int(first), min(int(last), size - 1)) if first else (max(size - int(last), 0), size - 1)
        self.said = (206, there[0][first:last + 1])
        self.object, self.content_range = there, f"bytes {first}-{last}/{size}"

    def do_list(self, bucket):
        """Two at a time, so that lists go on."""
        prefix = self.query["prefix"]
        after = (self.query.get("key-marker", ""), self.query.get("upload-id-marker", ""))
        found = sorted((upload["key"], name, upload["since"]) for name, upload in bucket.uploads.items()
                       if upload["key"].startswith(prefix))
        left = [each for each in found if each[:2] > after]
        text = "".join(f"<Upload><Key>{quote(key)}</Key><UploadId>{name}</UploadId><Initiated>"
                       f"{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(since))}</Initiated></Upload>"
                       for key, name, since in left[:2])
        more = "".join(f"<NextKeyMarker>{quote(key)}</NextKeyMarker><NextUploadIdMarker>{name}"
                       "</NextUploadIdMarker>" for key, name, _ in left[1:2])
        self.said = (200, f"<ListMultipartUploadsResult><EncodingType>url</EncodingType>{more}<IsTruncated>"
                          f"{'true' if len(left) > 2 else 'false'}</IsTruncated>{text}</ListMultipartUploadsResult>")

    def end_headers(self):
        if self.answered and self.etag:  # not of 100
            self.send_header("ETag", self.etag)
        if self.answered and self.object:
            self.send_header("ETag", self.object[1])
        if self.answered and self.object and self.step == "head":
            if self.owner.tells_checksums:
                self.send_header("x-amz-checksum-crc32", self.object[2])
        elif self.answered and self.object:
            self.send_header("Content-Range", self.content_range)
        super().end_headers()
