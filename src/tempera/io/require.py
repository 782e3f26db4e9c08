"""Optional libraries: a common check and message."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import MissingLibrary

# The extras of pyproject.toml, and the modules that they bring.
EXTRAS = {
    "pictures": ("matplotlib",),
    "text": ("sentence_transformers",),
    "trainer": ("sentence_transformers", "datasets"),
    "faiss": ("faiss",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "lora": ("peft",),
    "tune": ("optuna",),
    "duckdb": ("duckdb",),
    "serve": ("fastapi", "uvicorn", "httptools", "orjson", "prometheus_client", "faiss"),
    "mcp": ("mcp", "orjson"),
    "ray": ("ray",),
    "mteb": ("mteb",),
}


def missing(library: str, purpose: str, *modules: str) -> str:
    """Return a line with the first module that is not installed, and with the way to install it;
    empty if every module is installed.

    Args:
        library: an extra of this package, such as "text", or else the name of a library.
        purpose: the words for the feature of the library, for the line.
        modules: the needed modules of the extra; if empty, all modules of the extra.

    >>> missing("tune", "tempera tune", "no_such_module")
    "tempera tune needs no-such-module: pip install 'tempera[tune]'"
    """
    for module in modules or EXTRAS.get(library, (library,)):
        if find_spec(module) is None:
            target = f"'tempera[{library}]'" if library in EXTRAS else library
            return f"{purpose} needs {module.replace('_', '-')}: pip install {target}"
    return ""


def require(library: str, purpose: str, *modules: str) -> None:
    """Refuse to go on without an optional library.

    Args:
        library: an extra of this package, such as "text", or else the name of a library.
        purpose: the words for the feature of the library, for the message.
        modules: the needed modules of the extra; if empty, all modules of the extra.

    Raises:
        MissingLibrary: a module is not installed; the message says how to install it.

    >>> require("tune", "tempera tune", "no_such_module")
    Traceback (most recent call last):
        ...
    tempera.errors.MissingLibrary: tempera tune needs no-such-module: pip install 'tempera[tune]'
    """
    line = missing(library, purpose, *modules)
    if line:
        raise MissingLibrary(line)
