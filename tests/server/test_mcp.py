"""Runs as tools of an assistant, asked by the official client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tempera import Run

pytest.importorskip("mcp")


def conversation(story: Any, *folders: Path, log: Path) -> None:
    """Start `tempera mcp` and let a client talk to it."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def talk() -> None:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "tempera", "mcp", *map(str, folders)],
            env=dict(os.environ),
        )
        with log.open("w") as errors:
            async with Client(stdio_client(parameters, errlog=errors)) as client:
                await story(client)

    asyncio.run(asyncio.wait_for(talk(), 120))


def test_an_assistant_searches(tiny_run: Path, tmp_path: Path) -> None:
    async def story(client: Any) -> None:
        listed = await client.list_tools()
        (tool,) = listed.tools
        assert tool.name == "search" and "whole text" in tool.description
        assert tool.input_schema["required"] == ["query"]
        assert tool.input_schema["properties"]["k"]["maximum"] == 100

        result = await client.call_tool("search", {"query": "kaban locel", "k": 3})
        assert not result.is_error
        hits = Run(tiny_run).search("kaban locel", 3)
        answer = result.structured_content
        assert [hit["id"] for hit in answer["results"][0]] == [hit.id for hit in hits]
        assert answer["results"][0][0]["text"] == hits[0].text
        assert json.loads(result.content[0].text) == answer

        result = await client.call_tool("search", {"query": "kaban", "hybrid": True})
        assert len(result.structured_content["results"][0]) == 5

        for wrong in (
            {"query": ""},
            {"query": "a\0b"},
            {"query": "kaban", "k": 0},
            {"query": "kaban", "model": "other"},
            {},
        ):
            result = await client.call_tool("search", wrong)
            assert result.is_error, wrong
            assert str(tiny_run.parent) not in result.content[0].text

    log = tmp_path / "log"
    conversation(story, tiny_run, log=log)
    assert log.read_text() == "serving tools of tiny over standard input and output\n"


def test_a_recommender_is_asked_in_this_process(
    recommender: dict[str, Any], tmp_path: Path
) -> None:
    from mcp import Client

    from tempera.run.train import train
    from tempera.server.mcp_tools import tools_of
    from tempera.server.replacement import open_all
    from tempera.server.shelf import Shelf

    train(recommender, tmp_path / "shop")
    shelf = Shelf([tmp_path / "shop"])
    shelf.runs = open_all(shelf.folders)
    shelf.is_ready = True

    async def talk() -> None:
        async with Client(tools_of(shelf)) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["recommend"]
            result = await client.call_tool("recommend", {"user": "7", "k": 3})
            expected = Run(tmp_path / "shop").recommend("7", k=3)
            ids = [hit["id"] for hit in result.structured_content["results"]]
            assert ids == [hit.id for hit in expected.hits]
            result = await client.call_tool("recommend", {"history": ["no such item"]})
            assert result.is_error and "no such item in shop" in result.content[0].text
            assert str(tmp_path) not in result.content[0].text

    asyncio.run(talk())
