"""Send requests to a server from several clients, each with one connection that stays open.

`python bench/_load.py PORT CLIENTS REQUESTS.json ANSWERS.json`: REQUESTS is a list of method, path
and body. ANSWERS gets the seconds and the body of each answer. Only the standard library is loaded,
so that any environment runs it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path


def main() -> None:
    """Send all requests, and write the answers."""
    port, clients, source, target = sys.argv[1:]
    requests = json.loads(Path(source).read_text(encoding="utf-8"))
    seconds = [0.0] * len(requests)
    bodies = [""] * len(requests)
    numbers = iter(range(len(requests)))
    lock = threading.Lock()
    failures: list[str] = []

    def client() -> None:
        connection = HTTPConnection("127.0.0.1", int(port))
        while not failures:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            method, path, body = requests[number]
            headers = {} if body is None else {"Content-Type": "application/json"}
            began = time.perf_counter()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read().decode()
            seconds[number] = time.perf_counter() - began
            bodies[number] = content
            if answer.status != 200:
                failures.append(f"{method} {path}: {answer.status} {content[:300]}")

    threads = [threading.Thread(target=client) for _ in range(int(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(failures[0])
    Path(target).write_text(json.dumps({"seconds": seconds, "bodies": bodies}), encoding="utf-8")


if __name__ == "__main__":
    main()
