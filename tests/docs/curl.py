"""Stands in for ``curl`` on a machine without it: the options that the pages use, and its exit code after ``-m`` seconds."""

from __future__ import annotations

import argparse
import http.client
import sys
import time
from urllib.parse import urlsplit

TIMED_OUT = 28


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", "-S", "-N", action="store_true")
    parser.add_argument("-m", type=float, default=60.0)
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d", type=str.encode)
    parser.add_argument("url")
    given = parser.parse_args()
    ends, url = time.monotonic() + given.m, urlsplit(given.url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=given.m)
    headers = dict(header.split(": ", 1) for header in given.H)
    connection.request("GET" if given.d is None else "POST", url._replace(scheme="", netloc="").geturl(), given.d, headers)
    try:
        answer = connection.getresponse()
        while part := answer.read1(65_536):
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
            if (left := ends - time.monotonic()) <= 0:
                return TIMED_OUT
            if connection.sock is not None:
                connection.sock.settimeout(left)
    except TimeoutError:
        return TIMED_OUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
