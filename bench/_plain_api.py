"""A hand-made server of embeddings, as people write it: FastAPI over `SentenceTransformer.encode`.

`MODEL=FOLDER uvicorn --app-dir bench _plain_api:app` answers POST /v1/embeddings in OpenAI's form.
"""

from __future__ import annotations

import os

from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
model = SentenceTransformer(os.environ["MODEL"], device="cpu")


class Request(BaseModel):
    """Texts to embed."""

    input: list[str]


@app.post("/v1/embeddings")
def embeddings(request: Request) -> dict:
    """Return the vectors of texts."""
    vectors = model.encode(request.input, normalize_embeddings=True, show_progress_bar=False)
    data = []
    for index, vector in enumerate(vectors.tolist()):
        data.append({"object": "embedding", "index": index, "embedding": vector})
    return {"object": "list", "data": data, "model": "model"}
