"""Names of files and columns in a run folder, for writers and readers."""

from __future__ import annotations

USERS = "model/users.parquet"
ITEMS = "model/items.parquet"
HISTORIES = "histories.parquet"
CONTEXTS = "model/contexts.parquet"
ADDED = "added_events.parquet"  # number of events of each item that were added after training
WORDS = "words.parquet"  # the index of the documents' words
CALIBRATION = "calibration.json"  # beside a model
DOCUMENTS = "documents.arrow"  # of an index, with what a search shows
FAISS_FILE = "index.faiss"  # of an approximate index
BEGINNING = 400  # letters of a text in a preview
GIVEN_ID = "given_doc_id"  # column of the documents' ids as the source has them
