"""The bodies of requests: their fields, their bounds, and one line for a body that does not fit."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from ..corpus.where import LONGEST
from ..errors import one_line
from .bounds import DOCUMENTS, IDS, LETTERS, RESULTS, TEXTS
from .refusals import invalid

_LONGEST_NAME = 60  # letters of a field's name that a message repeats

# With a letter or a sign, and without the character NUL.
Text = Annotated[str, StringConstraints(max_length=LETTERS, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
ItemId = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]
Condition = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST)]
Model = Annotated[str, StringConstraints(max_length=255)]


class Body(BaseModel):
    """A JSON object with known fields, each of its own type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class SearchBody(Body):
    """Search the documents of a run."""

    query: Text | Annotated[list[Text], Field(min_length=1, max_length=TEXTS)] = Field(
        description="A text, or a list of texts that are searched for at once.",
        examples=["how do I reset my password?"],
    )
    k: int = Field(10, ge=1, le=RESULTS, description="Hits of each query.")
    threshold: float | None = Field(
        None, ge=0, le=1, description="Least probability of a hit, if the run is calibrated."
    )
    where: Condition | None = Field(
        None, description="Condition on the kept columns, such as `lang = 'de' and year >= 2024`."
    )
    hybrid: bool | Literal["words"] | None = Field(
        None, description="Rank by words and vectors together, or by `words` alone."
    )
    model: Model | None = Field(None, description="Name of the run (default: the first).")
    explain: bool = Field(False, description="Add to each hit where its score comes from.")


class EmbeddingsBody(Body):
    """Embed texts, in the form of OpenAI."""

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=TEXTS)] = Field(
        description="A text, or a list of texts.", examples=[["a text", "another text"]]
    )
    model: Model | None = Field(None, description="Name of the run (default: the first).")
    encoding_format: str = Field(
        "float", pattern="^(float|base64)$", description="`float`, or `base64` of float32."
    )
    dimensions: int | None = Field(
        None, ge=1, description="First numbers of each vector to keep; the length is 1 again."
    )
    user: str | None = Field(None, description="Of no influence.")


class RecommendBody(Body):
    """Recommend items to a user, or by a history."""

    user: ItemId | int | None = Field(None, description="Id of a user.", examples=["196"])
    history: Annotated[list[ItemId | int], Field(max_length=IDS)] | None = Field(
        None, description="Ids of items, the latest last, in place of the known history."
    )
    k: int = Field(10, ge=1, le=RESULTS, description="Number of items.")
    now: int | float | str | None = Field(
        None, description="Moment of the question, as the data have times."
    )
    candidates: Annotated[list[ItemId | int], Field(min_length=1, max_length=IDS)] | None = Field(
        None, description="Ids of the only items to rank."
    )
    exclude: Annotated[list[ItemId | int], Field(max_length=IDS)] | None = Field(
        None, description="Ids of items to leave out."
    )
    where: Condition | None = Field(
        None, description="Condition on the items' columns, such as `genre = 'Drama'`."
    )
    similar: ItemId | int | None = Field(
        None, description="Id of an item, for the nearest items in place of a user's."
    )
    diversity: float = Field(
        0.0, ge=0, le=1, description="From 0, the best items, to 1, the items least alike."
    )
    model: Model | None = Field(None, description="Name of the run (default: the first).")
    explain: bool = Field(False, description="Add to each item where its score comes from.")


class NewDocument(Body):
    """A document to add; one with the same id is replaced."""

    id: ItemId
    text: Annotated[str, StringConstraints(pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
    name: str = ""
    columns: dict[str, str | int | float | bool | None] = {}


class DocumentsBody(Body):
    """Add documents to a run, and remove documents."""

    documents: list[NewDocument] = Field([], max_length=DOCUMENTS)
    remove: list[ItemId] = Field([], max_length=DOCUMENTS)
    model: Model | None = None


AnyBody = TypeVar("AnyBody", bound=Body)


def read_body(content: bytes, kind: type[AnyBody]) -> AnyBody:
    """Return the body of a request.

    Raises:
        Refused: the content is not JSON in UTF-8, names a field twice, or does not fit; the one
            line names the field.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8 (byte {error.start})", 400) from None
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise invalid(f"the body is not JSON: {error.msg} (letter {error.pos})", 400) from None
    except RecursionError:
        raise invalid("the body is not JSON of a request: it is nested too deeply", 400) from None
    except ValueError as error:  # of a duplicate, of NaN, or of a number with thousands of digits
        raise invalid(f"the body is not JSON of a request: {_short(str(error))}", 400) from None
    if not isinstance(value, dict):
        raise invalid("the body is not a JSON object", 400)
    if "\\u" in text and not _is_whole(value):
        raise invalid("the body has half a character (a lone surrogate)", 400)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise invalid(line_of(error, kind)) from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raises ValueError for a name that stands twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{_short(name)} stands twice")
            seen.add(name)
    return value


def _is_whole(value: dict[str, Any]) -> bool:
    """Return False if a text of a JSON object has a surrogate without its other half, which
    no encoding has."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_refuse_constant)


def line_of(error: ValidationError, kind: type[Body]) -> str:
    """Return the line for a body that does not fit, with the name of the field."""
    errors = error.errors(include_url=False, include_input=False)
    # Of a field with several types, each type has an error; the deepest is that of the type meant.
    first = errors[0]["loc"][0] if errors[0]["loc"] else ""
    same = [each for each in errors if each["loc"][:1] == (first,)]
    meant = [each for each in same if not each["type"].endswith("_type")]
    chosen = max(meant or same, key=lambda each: len(each["loc"]))
    name = str(first)
    for part in chosen["loc"][1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part in NewDocument.model_fields:  # the other parts name types
            name += f".{part}"
    if chosen["type"] == "extra_forbidden":
        known = kind.model_fields
        if len(chosen["loc"]) > 1:
            known = NewDocument.model_fields
            name += f".{chosen['loc'][-1]}"
        return f"{_short(name)}: no such field; known: {', '.join(known)}"
    if chosen["type"] == "missing":
        return f"{_short(name)}: missing"
    if chosen["type"] == "string_pattern_mismatch" and name != "encoding_format":
        return f"{_short(name)}: expected a text with words, without the character NUL"
    if not meant and len(same) > 1:
        expected = dict.fromkeys(_EXPECTED.get(each["type"], "another type") for each in same)
        return f"{_short(name)}: expected {' or '.join(expected)}"
    message = chosen["msg"]
    return f"{_short(name)}: {message[0].lower()}{message[1:]}"


_EXPECTED = {
    "string_type": "a text",
    "list_type": "a list",
    "int_type": "a whole number",
    "float_type": "a number",
}


def _short(name: str) -> str:
    """Return a name of a request as part of a line."""
    line = one_line(name)
    return line if len(line) <= _LONGEST_NAME else line[:_LONGEST_NAME] + "..."
