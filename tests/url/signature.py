# SPDX-License-Identifier: BSD-3-Clause
"""Verifies signatures of AWS, version 4, of requests to S3. Checked against Amazon's published examples."""

import hashlib
import hmac
import re
import urllib.parse


def digest(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def sign(secret, method, target, headers, signed, date, region, service="s3"):
    """The signature, in hexadecimal. headers: names in lower case; signed: those that are signed."""
    path, _, query = target.partition("?")
    pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
    quoted = "&".join(f"{urllib.parse.quote(k, '-_.~')}={urllib.parse.quote(v, '-_.~')}" for k, v in pairs)
    lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in signed)
    canonical = "\n".join([method, path, quoted, lines, ";".join(signed), headers["x-amz-content-sha256"]])
    scope = f"{date[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in (date[:8], region, service, "aws4_request"):
        key = digest(key, part)
    return digest(key, text).hex()


def problem(method, target, headers, key, secret, region):
    """What is wrong with a signed request; None: nothing."""
    headers = {name.lower(): value for name, value in headers.items()}
    found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^,]*), *SignedHeaders=([^,]*), *Signature=(\w+)",
                         headers.get("authorization", ""))
    if not found:
        return f"no signature: {headers.get('authorization')}"
    date = headers.get("x-amz-date", "")
    if found[1] != f"{key}/{date[:8]}/{region}/s3/aws4_request":
        return f"another credential: {found[1]}"
    signed = found[2].split(";")
    needed = {"host", "x-amz-date", "x-amz-content-sha256"} | {name for name in headers
                                                               if name.startswith("x-amz-")}
    if signed != sorted(signed) or needed - set(signed):
        return f"not all is signed, or in another order: {signed}"
    expected = sign(secret, method, target, headers, signed, date, region)
    return None if expected == found[3] else f"signature {found[3]}, expected {expected}"
