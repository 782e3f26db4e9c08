"""Bounds of what a request may ask for, so that no request takes the server from the others."""

from __future__ import annotations

BODY = 2 << 20  # bytes of a request's body
BODIES = 256 << 20  # bytes of all bodies and large answers in memory at a time
LARGE = 256 << 10  # bytes of an answer that is sent in parts, as fast as the client reads
PART = 64 << 10  # bytes of such a part
TEXTS = 2048  # texts of a request for embeddings, as at OpenAI
LETTERS = 32_768  # of a query, or of a text to embed
RESULTS = 1000  # k, the hits of a query
HITS = 10_000  # k times the number of queries
EXPLAINED = 100  # hits of a request whose scores are explained
EXPLAINED_LETTERS = 2000  # of a query whose hits are explained
PARTS = 200  # of an explanation, the largest; the others are in its rest
IDS = 10_000  # of a history, or of a list of items
DOCUMENTS = 10_000  # of a request that adds documents
CHANGES = 8  # requests that add documents and wait
WAITING = 256  # requests in the queue
WAITING_TEXTS = 8192  # texts of all requests in the queue
REQUESTS = 512  # requests in progress
CONNECTIONS = 1000  # open connections
HEADERS = 32 << 10  # bytes of a request before its body
PAUSE = 1.0  # seconds after the start, before what the first answers do not need is opened
SECONDS = 30.0  # from the first byte of a request to its answer
SECONDS_TO_SEND = 10.0  # until a client has sent the headers, and then the body of a request
SECONDS_TO_READ = 60.0  # until a client has read a large answer
SECONDS_IDLE = 65  # of a connection between two requests, longer than a proxy's usual 60
SECONDS_TO_RETRY = 1  # after an answer that the server is busy
