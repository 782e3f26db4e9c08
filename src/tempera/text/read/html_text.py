"""The text of an HTML page as Markdown: headings and paragraphs."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_UNREAD = {"script", "style", "template", "noscript", "svg", "nav"}
_BLOCKS = {
    "p",
    "div",
    "section",
    "article",
    "ul",
    "ol",
    "table",
    "pre",
    "blockquote",
    "dl",
    "main",
    "header",
    "footer",
}
_LINES = {"br", "li", "tr", "dt", "dd"}  # begin a line
_CELLS = {"td", "th"}
_HEADING = re.compile("h[1-6]")
_FENCE = "```"  # around code, whose lines and blanks stay


def markdown(page: str) -> str:
    r"""Return the text of a page, each heading behind its number signs, `pre` in fences, without
    scripts, styles and navigation.

    The title of a page becomes the first heading if the page has no heading of level 1.

    >>> markdown("<h1>Tea</h1><script>x</script><p>Steep <b>it</b>.</p>Drink&nbsp;it.")
    '# Tea\n\nSteep it.\n\nDrink it.'
    >>> markdown("<title>Tea</title><p>Steep it.</p>"), markdown("<title>Tea | A shop</title><h1>Tea</h1>")
    ('# Tea\n\nSteep it.', '# Tea')
    """
    parser = _Page()
    parser.feed(page)
    parser.close()
    lines, fenced, headed = [], False, False
    for line in "".join(parser.parts).split("\n"):
        fenced ^= line == _FENCE
        text = line.rstrip() if fenced else " ".join(line.split())
        headed |= text.startswith("# ") and not fenced
        lines.append(
            "" if re.fullmatch("#+", text) and not fenced else text
        )  # a heading may be empty
    title = " ".join("".join(parser.title).split())
    if title and not headed:
        lines = [f"# {title}", "", *lines]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.title: list[str] = []
        self.in_title = False
        self.in_code = False
        self.unread = 0  # depth of elements that are not read
        self.is_whole = False  # no more of the page follows

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.unread += tag in _UNREAD
        self.in_title = tag == "title" and not self.unread
        heading = _HEADING.fullmatch(tag) is not None
        # A heading ends code without an end tag.
        self._fence((self.in_code or tag == "pre") and not heading and not self.unread)
        self._space(tag)
        self.parts.append("\n" if tag in _LINES else " " if tag in _CELLS else "")
        if heading and not self.unread:
            self.parts.append("#" * int(tag[1]) + " ")

    def handle_endtag(self, tag: str) -> None:
        self.unread = max(0, self.unread - (tag in _UNREAD))
        self.in_title = False
        self._fence(self.in_code and tag != "pre")
        self._space(tag)

    def handle_data(self, data: str) -> None:
        if not self.unread:
            (self.title if self.in_title else self.parts).append(
                data if self.in_code else data.replace("\n", " ")
            )

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Read `<![` as browsers do if Python's parser does not know the section (AssertionError):
        as a comment up to the next `>`."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i)

    def close(self) -> None:
        self.is_whole = True
        super().close()

    def parse_comment(self, i: int, report: bool = True) -> int:
        """Read a comment without an end up to the end of the page, as browsers and later versions
        of Python do; Python 3.11 searches the whole page again for each of many."""
        end = super().parse_comment(i, report)
        if end < 0 and self.is_whole:
            return len(self.rawdata)
        return end

    def _fence(self, in_code: bool) -> None:
        """Add a fence where code begins or ends."""
        if in_code != self.in_code:
            self.parts.append(f"\n{_FENCE}\n")
            self.in_code = in_code

    def _space(self, tag: str) -> None:
        if not self.in_code and (tag in _BLOCKS or _HEADING.fullmatch(tag)):
            self.parts.append("\n\n")
