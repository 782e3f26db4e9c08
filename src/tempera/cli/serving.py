"""The commands that serve runs to other programs and to people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError

TOKEN = "TEMPERA_TOKEN"


def serve(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    host: str = "127.0.0.1",
    allow_host: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
    token_file: Path | None = None,
    writable: bool = False,
    open_page: Annotated[bool, typer.Option("--open")] = False,
) -> None:
    """Serve runs over HTTP, with a page.

    Programs search, get recommendations, and get embeddings in OpenAI's form.

    Args:
        runs: run folders; a request names one by its folder's name, and asks the first without.
        port: port to listen on; 0 for any free one.
        host: address to listen on; other machines reach only another than the default, and need a
            token.
        allow_host: further name of the server, such as a proxy's; may be repeated.
        token_file: file with the token that requests have to bear (default: the environment
            variable TEMPERA_TOKEN; none on this machine alone).
        writable: let requests that bear the token add documents and remove them.
        open_page: open the page in a browser.
    """
    from ..io.require import require

    require("serve", "tempera serve")
    from ..server.listening import serve as run_serving

    token = _token(token_file)
    started = _open_browser if open_page else None
    run_serving(runs, host, port, allow_host or [], token, writable, started)


def _token(file: Path | None) -> str | None:
    """Return the token of a file, or of the environment; None without one."""
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"--token-file {file} cannot be read: {reason}") from None


def _open_browser(address: str) -> None:
    import webbrowser
    from threading import Thread

    # Some browsers only return when they are closed.
    Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def mcp(runs: Annotated[list[Path], typer.Argument(metavar="RUN...")]) -> None:
    """Serve runs to an assistant as tools (MCP).

    The assistant's program starts the command and talks to it over standard input and output.

    Args:
        runs: run folders; a call names one by its folder's name, and asks the first without.
    """
    from ..io.require import require

    require("mcp", "tempera mcp")
    from ..server.mcp_tools import serve_tools

    serve_tools(runs)
