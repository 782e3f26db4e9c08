"""The page of the server by clicks and keys in headless Chromium, over made answers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tests.server.page_server import (
    DOCUMENTS,
    HISTORIES,
    ITEMS,
    OVERRIDE,
    PAGE,
    POLICY,
    Behaviour,
    page_server,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE = {"width": 1200, "height": 900}
NARROW = {"width": 400, "height": 800}
QUERY = "my telly is stuck"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api")
    paths = [path for name in BROWSERS if (path := shutil.which(name))]
    if not paths:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=paths[0], args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport=WIDE, reduced_motion="reduce")  # type: ignore[arg-type]
    context.set_default_timeout(10_000)
    yield context
    context.close()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Behaviour]]:
    with page_server() as server:
        yield server


@pytest.fixture
def behaviour(served: tuple[str, Behaviour]) -> Iterator[Behaviour]:
    behaviour = served[1]
    yield behaviour
    behaviour.__init__()  # type: ignore[misc]


class Visit:
    """A page of the browser, and all that it should not have done."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.address = address
        self.page: Page = context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("console", self._heard)
        self.page.on("request", self._requested)
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))

    def _heard(self, message: Any) -> None:
        is_refusal = message.text.startswith("Failed to load resource: ")
        if message.type in ("error", "warning") and not is_refusal:
            self.faults.append(f"console: {message.text}")

    def _requested(self, request: Any) -> None:
        url = urlsplit(request.url)
        if url.scheme != "data" and f"{url.scheme}://{url.netloc}/" != self.address:
            self.faults.append(f"request: {request.url}")

    def open(self, place: str = "") -> Page:
        """Open the page at a place behind its address."""
        self.page.goto(self.address + place)
        self.page.locator("main > section:visible").wait_for()
        return self.page


@pytest.fixture
def visit(
    context: BrowserContext, served: tuple[str, Behaviour], behaviour: Behaviour
) -> Iterator[Visit]:
    """The page at 1,200 pixels; at the end, it has broken nothing and asked nobody else."""
    visit = Visit(context, served[0])
    yield visit
    assert visit.page.title() != "broken"
    visit.page.close()
    assert visit.faults == []


@pytest.fixture
def visited(visit: Visit) -> Page:
    """The page with the hits of a query."""
    page = visit.open("#q=my+telly+is+stuck")
    page.locator(".hit").first.wait_for()
    settled(page)
    return page


def settled(page: Page) -> None:
    """Wait until no column waits for an answer."""
    page.locator(".columns .column, .columns .trouble").first.wait_for()
    has(page.locator("[aria-busy], .waiting-hit"), 0)


def has(locator: Locator, count: int) -> None:
    """Wait until a locator has a number of elements."""
    # The page's policy forbids to evaluate text, and with it `wait_for_function`.
    from playwright.sync_api import expect

    expect(locator).to_have_count(count)


def titled(page: Page, query: str) -> None:
    """Wait until the title of the page has a query."""
    from playwright.sync_api import expect

    expect(page).to_have_title(f"{query} · Tempera")


def column(page: Page, title: str) -> Locator:
    """Return the column with a title."""
    return page.locator(".columns .column").filter(
        has=page.get_by_role("heading", name=title, exact=True)
    )


def titles(column: Locator) -> list[str]:
    """Return the titles of the hits of a column."""
    return column.locator(".hit:visible .title").all_inner_texts()


def fits(page: Page) -> bool:
    """Return True if the page does not scroll sideways."""
    width = page.evaluate("document.documentElement.scrollWidth")
    return bool(width == page.evaluate("innerWidth"))


# ---- Search ----


def test_the_first_look_says_what_the_columns_are(visit: Visit) -> None:
    page = visit.open()
    assert page.locator("h1:visible").inner_text() == f"Search {len(DOCUMENTS)} documents"
    text = page.locator("#columns").inner_text()
    assert "Vectors" in text and "meaning" in text
    assert "Words" in text and "BM25" in text and "Both" in text
    assert page.evaluate("document.activeElement.id") == "query"


def test_a_query_fills_the_columns_side_by_side(visit: Visit, behaviour: Behaviour) -> None:
    page = visit.open()
    page.locator("#query").fill(QUERY)
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    settled(page)
    assert titles(column(page, "Vectors"))[0] == "When the television does not respond"
    assert titles(column(page, "Words"))[0] == "The telly song"
    assert titles(column(page, "Both"))[0] == "The telly song"
    asked = [body["hybrid"] for path, body in behaviour.requests if path == "/v1/search"]
    assert sorted(map(str, asked)) == ["False", "True", "words"]
    tops = [column(page, name).bounding_box()["y"] for name in ("Vectors", "Words", "Both")]  # type: ignore[index]
    assert len(set(tops)) == 1
    assert page.locator("#said").inner_text().startswith("Hits: Vectors 8, Words 4, Both 8")
    assert re.fullmatch(r"[\d.]+ ms", column(page, "Words").locator(".took").inner_text())
    assert "1.5 ms in the server" in str(
        column(page, "Words").locator(".took").get_attribute("title")
    )
    assert page.title() == f"{QUERY} · Tempera" and fits(page)


def test_a_hit_shows_score_probability_columns_and_matches(visited: Page) -> None:
    hit = column(visited, "Vectors").locator(".hit").first
    assert re.fullmatch(r"0\.\d{3}\s*9\d %", hit.locator(".value").inner_text())
    assert "%" not in column(visited, "Words").inner_text()
    shares = (
        column(visited, "Vectors")
        .locator(".bar span")
        .evaluate_all("spans => spans.map(span => Number(span.style.getPropertyValue('--share')))")
    )
    assert shares[0] == 1 and shares == sorted(shares, reverse=True) and shares[-1] < 0.2
    kept = dict(
        zip(
            hit.locator("dt").all_inner_texts(),
            hit.locator("dd").all_inner_texts(),
        )
    )
    assert kept == {"url": "help.example.org/television/respond", "lang": "en", "year": "2024"}
    link = hit.locator("a")
    assert link.get_attribute("href") == "https://help.example.org/television/respond"
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    assert link.get_attribute("target") == "_blank"
    assert "manual.csv row 1" in hit.inner_text()
    song = column(visited, "Words").locator(".hit").first
    assert song.locator("mark").all_inner_texts() == ["telly", "telly", "stuck"]


def test_the_parts_of_a_name_are_marked_as_one(visit: Visit) -> None:
    page = visit.open("#q=KV-822&in=help:words")
    settled(page)
    assert page.locator(".hit mark").all_inner_texts() == ["KV-822"]


def test_the_whole_text_opens_and_closes(visited: Page) -> None:
    hit = column(visited, "Vectors").locator(".hit").first
    assert "doc-0" not in hit.inner_text()
    hit.get_by_role("button", name="More").click()
    assert "print the label of the order page." in hit.inner_text() and "doc-0" in hit.inner_text()
    assert hit.get_by_role("button", name="Less").get_attribute("aria-expanded") == "true"
    hit.get_by_role("button", name="Less").click()
    assert "doc-0" not in hit.inner_text()


def test_a_hit_is_recognised_in_other_columns(visited: Page) -> None:
    song = column(visited, "Words").locator(".hit").first
    assert song.locator(".also span").all_inner_texts() == ["Vectors 2", "Both 1"]
    assert visited.locator(".twin").count() == 0
    song.hover()
    assert visited.locator(".twin .title").all_inner_texts() == ["The telly song"] * 3
    song.get_by_role("button", name="Why").focus()
    visited.mouse.move(0, 0)
    assert visited.locator(".twin").count() == 3
    visited.locator("#query").focus()
    assert visited.locator(".twin").count() == 0


def test_other_runs_stand_beside(visited: Page, behaviour: Behaviour) -> None:
    visited.get_by_role("group", name="help-large").get_by_label("Vectors").check()
    visited.get_by_role("group", name="help", exact=True).get_by_label("Words").uncheck()
    settled(visited)
    of = visited.locator(".columns .of").all_inner_texts()
    assert of == ["help", "help", "help-large"]
    assert behaviour.requests[-1][1]["model"] in ("help", "help-large")
    first = visited.locator(".columns .column").nth(2).locator(".hit").first
    assert first.locator(".also span").all_inner_texts() == ["help vectors 1", "help both 5"]
    visited.reload()
    settled(visited)
    assert visited.locator(".columns .of").all_inner_texts() == of


def test_the_threshold_hides_hits_and_counts_them(visited: Page) -> None:
    vectors = column(visited, "Vectors")
    before = len(titles(vectors))
    visited.locator("#threshold").focus()
    visited.locator("#threshold").fill("90")
    hidden = vectors.locator(".hit[hidden]").count()
    assert 0 < hidden < before and len(titles(vectors)) == before - hidden
    assert vectors.locator(".left-out").inner_text() == f"{hidden} hits below 90 % left out"
    assert len(titles(column(visited, "Words"))) == 4
    assert visited.locator("#threshold-value").inner_text() == "90 %"
    visited.locator("#threshold").dispatch_event("change")
    assert "from=90" in visited.url
    visited.locator("#threshold").fill("0")
    assert len(titles(vectors)) == before and not vectors.locator(".left-out").is_visible()


def test_the_threshold_is_there_for_calibrated_runs_alone(visit: Visit) -> None:
    page = visit.open("#q=telly&in=help-large:vectors")
    settled(page)
    assert not page.locator("#threshold").is_visible()


def test_the_filter_lists_columns_and_is_sent(visited: Page, behaviour: Behaviour) -> None:
    visited.locator("#filter summary").click()
    assert visited.locator("#column-names button").all_inner_texts() == ["url", "lang", "year"]
    visited.locator("#column-names").get_by_role("button", name="lang").click()
    visited.keyboard.type(" = 'de'")
    visited.keyboard.press("Enter")
    has(visited.locator(".column .hit"), 2)
    assert titles(column(visited, "Vectors")) == ["Schlafmodus"]
    assert "Nothing passes the filter." in column(visited, "Words").inner_text()
    assert behaviour.requests[-1][1]["where"] == "lang = 'de'"
    visited.locator("#where").fill("lang")
    visited.keyboard.press("Enter")
    visited.locator("#columns .trouble").first.wait_for()
    has(visited.locator(".trouble:not([hidden])"), 1)
    assert "'lang' is not a condition" in visited.locator("#columns .trouble").inner_text()


def test_the_number_of_hits_is_chosen(visited: Page, behaviour: Behaviour) -> None:
    visited.locator("#depth").select_option("5")
    has(column(visited, "Vectors").locator(".hit"), 5)
    assert behaviour.requests[-1][1]["k"] == 5 and "k=5" in visited.url


# ---- Reasons ----


def sums_up(table: Locator) -> None:
    """Check that the numbers of a table add up to its last."""
    numbers = [
        float(text.replace("−", "-")) for text in table.locator("td.number").all_inner_texts()
    ]
    assert len(numbers) >= 2
    box = table.bounding_box()
    bar = table.locator("td").first.bounding_box()
    assert box is not None and bar is not None and bar["width"] > box["width"] / 8
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.0005 * len(numbers))


def test_a_reason_of_vectors_adds_up(visited: Page, behaviour: Behaviour) -> None:
    hit = column(visited, "Vectors").locator(".hit").first
    why = hit.get_by_role("button", name="Why")
    why.click()
    hit.locator("table").wait_for()
    assert why.get_attribute("aria-expanded") == "true"
    rows = hit.locator("tbody th").all_inner_texts()
    assert rows == ["telly→television", "stuck→respond", "my→of", "everything else", "score"]
    assert hit.locator(".balance.negative").count() == 1
    sums_up(hit.locator("table"))
    score = hit.locator(".value span").first.inner_text()
    assert hit.locator("tr.sum .number").inner_text() == score
    assert set(hit.locator(".title mark, .text mark").all_inner_texts()) == {
        "television",
        "respond",
    }
    assert behaviour.requests[-1][1]["explain"] is True
    asked = len(behaviour.requests)
    column(visited, "Vectors").locator(".hit").nth(1).get_by_role("button", name="Why").click()
    column(visited, "Vectors").locator(".hit").nth(1).locator("table").wait_for()
    assert len(behaviour.requests) == asked, "one request brings the reasons of a column"
    why.click()
    assert not hit.locator(".reason").is_visible() and hit.locator("mark").count() == 0


def test_a_reason_of_words_names_each_word(visited: Page) -> None:
    hit = column(visited, "Words").locator(".hit").first
    hit.get_by_role("button", name="Why").click()
    hit.locator("table").wait_for()
    assert hit.locator("tbody th").all_inner_texts() == [
        "telly\nin 3 documents",
        "stuck\nin 3 documents",
        "score",
    ]
    assert "Not in this document: my, is" in hit.locator(".reason").inner_text()
    sums_up(hit.locator("table"))


def test_a_reason_of_both_holds_weights_and_both(visited: Page) -> None:
    hit = column(visited, "Both").locator(".hit").first
    hit.get_by_role("button", name="Why").click()
    hit.locator("table").first.wait_for()
    assert hit.locator("table").count() == 3
    assert "0.30 × (0.541 − 0.200) / 0.160" in hit.locator("table").first.inner_text()
    assert hit.locator("table").first.locator("tbody tr").count() == 3, "vectors, words, score"
    for position in range(3):
        sums_up(hit.locator("table").nth(position))


def test_an_approximation_is_called_one(visit: Visit) -> None:
    page = visit.open("#q=my+telly+is+stuck&in=help-large:vectors")
    settled(page)
    hit = page.locator(".hit").first
    hit.get_by_role("button", name="Why").click()
    hit.locator("table").wait_for()
    assert "An approximation" in hit.locator(".reason").inner_text()
    assert "not by one word alone" in hit.locator(".reason").inner_text()
    sums_up(hit.locator("table"))


# ---- Keys ----


def test_keys_alone_do_everything(visit: Visit) -> None:
    page = visit.open()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    settled(page)

    def focused() -> str:
        text = page.evaluate(
            "(hit => hit && hit.closest('.column').querySelector('h2').textContent + ' ' +"
            " hit.querySelector('.rank').textContent)(document.activeElement.closest('.hit'))"
        )
        return str(text)

    page.keyboard.press("ArrowDown")
    assert focused() == "Vectors 1"
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("k")
    assert focused() == "Vectors 2"
    page.keyboard.press("ArrowRight")
    assert focused() == "Words 2"
    page.keyboard.press("l")
    assert focused() == "Both 2"
    page.keyboard.press("h")
    assert focused() == "Words 2"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is seen"
    page.keyboard.press("w")
    page.locator(".reason:visible table").wait_for()
    page.keyboard.press("Escape")
    assert page.locator(".reason:visible").count() == 0
    page.keyboard.press("Enter")
    assert page.locator(".hit.whole").count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".hit.whole").count() == 0
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog").is_visible()
    page.locator(".hit").first.focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.type("?/jw")
    assert page.locator("#query").input_value() == f"{QUERY}?/jw"


# ---- The address ----


def test_back_and_a_shared_link_bring_the_state(visited: Page, visit: Visit) -> None:
    visited.locator("#query").fill("keyboard")
    visited.keyboard.press("Enter")
    titled(visited, "keyboard")
    settled(visited)
    shared = visited.url
    visited.go_back()
    titled(visited, QUERY)
    settled(visited)
    assert visited.locator("#query").input_value() == QUERY
    assert titles(column(visited, "Words"))[0] == "The telly song"
    visited.go_back()
    visited.goto(shared)
    settled(visited)
    assert titles(column(visited, "Words")) == ["Stuck keys"]


def test_an_odd_address_does_no_harm(visit: Visit) -> None:
    page = visit.open("#q=<img src=x>&in=<b>&in=nobody:words&k=banana&from=1e9&where=&user")
    page.locator("main > section:visible").wait_for()
    page = visit.open("#q=telly&k=-3&from=abc&in=help:vectors:words")
    page.reload()
    settled(page)
    assert column(page, "Words").count() == 1


# ---- Refusals ----


def test_an_error_is_one_line(visit: Visit, behaviour: Behaviour) -> None:
    page = visit.open("#q=broken")
    has(page.locator("#columns > .trouble"), 1)
    assert page.locator("#columns").inner_text().strip() == "the model broke; see the log"
    page.locator("#query").fill("telly")
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    settled(page)
    assert page.locator(".trouble:visible").count() == 0


def test_nothing_found_says_so(visit: Visit) -> None:
    page = visit.open("#q=nothing")
    settled(page)
    assert "No hits." in column(page, "Vectors").inner_text()
    assert "No document shares a word" in column(page, "Words").inner_text()


def test_notes_of_the_server_are_shown(visit: Visit) -> None:
    page = visit.open("#q=qqq")
    settled(page)
    assert "knows no word of the query" in column(page, "Vectors").inner_text()


def test_a_token_is_asked_for_and_kept_in_memory_alone(visit: Visit, behaviour: Behaviour) -> None:
    behaviour.token = "secret"
    page = visit.page
    page.goto(f"{visit.address}#q=telly")
    page.get_by_label("This server asks for a token").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("does not know this token").wait_for()
    page.get_by_label("This server asks for a token").fill("secret")
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    settled(page)
    assert (
        not page.locator("#token-form").is_visible() and not page.locator("#trouble").is_visible()
    )
    kept = page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    )
    assert "secret" not in kept and "secret" not in page.url


def test_a_busy_server_is_asked_again_once(visit: Visit, behaviour: Behaviour) -> None:
    behaviour.busy = 1
    page = visit.open("#q=telly&in=help:vectors")
    page.get_by_text("The server is busy; asking again in 1 s.").wait_for()
    page.locator(".hit").first.wait_for()
    assert not page.locator("#waiting").is_visible()
    behaviour.busy = 2
    page.locator("#query").fill("stuck")
    page.keyboard.press("Enter")
    page.locator("#columns").get_by_text("the queue is full").wait_for()
    assert len(behaviour.requests) == 4


def test_a_server_that_is_gone_is_said(visited: Page) -> None:
    visited.route("**/v1/search", lambda route: route.abort())
    visited.locator("#query").fill("stuck")
    visited.keyboard.press("Enter")
    visited.get_by_text("The server does not answer.").first.wait_for()


def test_a_late_answer_to_an_old_query_is_not_shown(visit: Visit, behaviour: Behaviour) -> None:
    page = visit.open()
    behaviour.delay = 0.4
    page.locator("#query").fill("broken")
    page.keyboard.press("Enter")
    assert page.locator(".waiting-hit").count() == 9
    assert page.locator(".column[aria-busy=true]").count() == 3
    behaviour.delay = 0.0
    page.locator("#query").fill("keyboard")
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    page.wait_for_timeout(500)
    assert titles(column(page, "Words")) == ["Stuck keys"]
    assert page.locator(".trouble:visible").count() == 0


# ---- Foreign texts ----


def test_foreign_texts_stay_texts(visit: Visit) -> None:
    page = visit.open("#q=telly")
    page.locator(".hit").first.wait_for()
    settled(page)
    hit = column(page, "Words").locator(".hit").filter(has_text="onerror")
    assert hit.locator("b, i, img, script").count() == hit.locator(".value b").count() == 0
    assert hit.locator(".title").inner_text() == "aU+202E<b>bold</b>"
    hit.get_by_role("button", name="More").click()
    text = hit.inner_text()
    for shown in ("<script>document", "U+202Edesrever", "U+202C", "zeroU+200Bwidth", "bellU+0007"):
        assert shown in text
    assert "&lt;b&gt;" in text and "<i>column</i>" in text and "<script>idU+202E</script>" in text
    assert OVERRIDE not in page.locator("main").inner_text()
    assert hit.locator("a").count() == 0, "javascript:, data: and a hidden host are no links"
    hit.get_by_role("button", name="Why").click()
    hit.locator("table").wait_for()
    assert page.locator("bdi").count() > 50
    assert fits(page)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_long_words_break_no_layout(visit: Visit, size: Any) -> None:
    visit.page.set_viewport_size(size)
    page = visit.open("#q=telly&in=help:vectors")
    page.locator(".hit").first.wait_for()
    hit = page.locator(".hit").filter(has_text="wwwww")
    hit.get_by_role("button", name="More").click()
    assert "i" * 10_000 in hit.inner_text() and "x" * 10_000 in hit.inner_text()
    assert fits(page)
    for part in (hit, hit.locator(".text"), hit.locator(".kept")):
        assert part.evaluate("part => part.scrollWidth <= part.clientWidth"), "nothing is cut off"
    box = hit.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= size["width"]


def test_joiners_stay_where_a_script_needs_them(visit: Visit) -> None:
    page = visit.open("#q=telly&in=help:vectors")
    text = page.locator(".hit").filter(has_text="Schlafmodus").inner_text()
    assert "\U0001f469\u200d\U0001f4bb" in text and "\u0645\u06cc\u200c\u062e" in text
    assert "ver\u200dborgen" not in text and "verU+200Dborgen" in text


def test_foreign_texts_have_no_way_to_become_markup() -> None:
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert way not in script
    markup = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(
        r"\bstyle=|\bon\w+=|<script>|<style|https?:(?!//www\.w3\.org/2000/svg)", markup
    )
    assert "url(" not in (PAGE / "page.css").read_text(encoding="utf-8")


# ---- Narrow and dark ----


def test_columns_become_tabs_on_a_narrow_screen(visit: Visit) -> None:
    visit.page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    page = visit.open("#q=my+telly+is+stuck")
    page.locator(".hit").first.wait_for()
    settled(page)
    tabs = page.get_by_role("tab")
    assert tabs.all_inner_texts() == ["Vectors", "Words", "Both"]
    assert column(page, "Vectors").is_visible() and not column(page, "Words").is_visible()
    tabs.nth(1).click()
    assert column(page, "Words").is_visible() and not column(page, "Vectors").is_visible()
    page.keyboard.press("ArrowRight")
    assert column(page, "Both").is_visible()
    assert tabs.nth(2).get_attribute("aria-selected") == "true"
    page.keyboard.press("j")
    page.keyboard.press("ArrowLeft")
    assert column(page, "Words").is_visible()
    assert page.locator("#column-names").count() == 1 and fits(page)
    page.locator("#filter summary").click()
    assert fits(page)
    page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    assert column(page, "Vectors").is_visible() and not tabs.first.is_visible()


def test_the_colours_follow_the_system_and_the_switch(visited: Page) -> None:
    def is_dark() -> bool:
        colour = visited.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) < 200

    assert not is_dark()
    visited.emulate_media(color_scheme="dark")
    assert is_dark()
    visited.get_by_role("button", name="Colours: as the system").click()
    assert not is_dark()
    visited.reload()
    assert not is_dark(), "the choice is kept"
    visited.get_by_role("button", name="Colours: light").click()
    assert is_dark()
    visited.get_by_role("button", name="Colours: dark").click()
    assert visited.evaluate("localStorage.length") == 0


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_no_barriers(
    browser: Browser, served: tuple[str, Behaviour], size: Any, scheme: Any
) -> None:
    package = pytest.importorskip("axe_core_python", reason="pip install axe-core-python")
    axe = (Path(package.__path__[0]) / "axe.min.js").read_text(encoding="utf-8")
    # The rules are no part of the page, whose policy would refuse them.
    context = browser.new_context(viewport=size, color_scheme=scheme, bypass_csp=True)
    for place in ("", "#q=my+telly+is+stuck", "#q=broken", "#run=shop&user=C0037"):
        page = context.new_page()
        page.goto(served[0] + place)
        page.wait_for_load_state("networkidle")
        for hit in page.locator(".hit:visible").all()[:1]:
            hit.get_by_role("button", name="Why").click()
            hit.locator("table").first.wait_for()
        page.evaluate(axe)
        results = page.evaluate("axe.run()")
        assert [rule["id"] for rule in results["violations"]] == [] and len(results["passes"]) > 30
        page.close()
    context.close()


# ---- Recommend ----


def test_a_user_is_found_by_the_first_letters(visit: Visit, behaviour: Behaviour) -> None:
    page = visit.open()
    page.get_by_role("button", name="Recommend").first.click()
    page.locator("#user").press_sequentially("C")
    options = page.locator("#users").get_by_role("option")
    has(page.locator("#users li"), 2)
    assert options.all_inner_texts() == ["C0037", "C0038"]
    page.keyboard.press("ArrowDown")
    assert options.first.get_attribute("aria-selected") == "true"
    assert page.locator("#user").get_attribute("aria-activedescendant") == "user-0"
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    assert page.locator("#events .name").all_inner_texts() == ["blue lamp", "plain tent"]
    assert page.locator(".hit .title").all_inner_texts()[:2] == ["sleeping bag", "gas stove"]
    assert behaviour.requests[-1][1]["user"] == "C0037" and "user=C0037" in page.url


def test_what_follows_has_its_reason(visit: Visit) -> None:
    page = visit.open("#run=shop&user=C0037")
    hit = page.locator(".hit").first
    hit.get_by_role("button", name="Why").click()
    hit.locator("table").wait_for()
    assert hit.locator("tbody th").all_inner_texts() == [
        "plain tentthe 2nd latest",
        "blue lampthe latest",
        "elapsedfeature of the question",
        "apart from the history",
        "score",
    ]
    sums_up(hit.locator("table"))


def test_a_history_is_edited(visit: Visit, behaviour: Behaviour) -> None:
    page = visit.open("#run=shop&user=C0037")
    page.locator(".hit").first.wait_for()
    page.get_by_role("button", name="Remove plain tent").click()
    page.get_by_text("This history is edited").wait_for()
    has(page.locator("#events li"), 1)
    assert behaviour.requests[-1][1]["history"] == ["A2"]
    page.get_by_role("button", name="Add rucksack to the history").click()
    has(page.locator("#events li"), 2)
    assert page.locator("#events .name").all_inner_texts() == ["rucksack", "blue lamp"]
    page.locator("#event").fill("A4")
    page.keyboard.press("Enter")
    has(page.locator("#events li"), 3)
    assert behaviour.requests[-1][1]["history"] == ["A2", "A5", "A4"]
    page.reload()
    has(page.locator("#events li"), 3)
    page.get_by_role("button", name="Back to the user's own").click()
    has(page.locator("#events li"), 2)
    assert behaviour.requests[-1][1]["user"] == "C0037"
    assert HISTORIES["C0037"] == ["A1", "A2"]


def test_an_item_that_is_not_there_can_be_removed_again(visit: Visit) -> None:
    page = visit.open("#run=shop&user=C0037")
    page.locator(".hit").first.wait_for()
    page.locator("#event").fill("no such item")
    page.keyboard.press("Enter")
    page.get_by_text("no item has the id").first.wait_for()
    has(page.locator("#events li"), 3)
    page.get_by_role("button", name="Remove no such item").click()
    has(page.locator(".hit"), 4)
    assert page.locator("#events .name").all_inner_texts() == ["blue lamp", "plain tent"]


def test_back_leads_from_a_user_to_a_search(visit: Visit) -> None:
    page = visit.open("#q=my+telly+is+stuck")
    settled(page)
    page.get_by_role("button", name="Recommend").first.click()
    page.locator("#user").fill("C0038")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Remove rucksack").wait_for()
    page.go_back()
    page.go_back()
    titled(page, QUERY)
    settled(page)
    assert titles(column(page, "Words"))[0] == "The telly song"
    page.go_forward()
    page.go_forward()
    titled(page, "C0038")
    page.get_by_role("button", name="Remove rucksack").wait_for()
    assert page.locator("#recommend .title").first.inner_text() in ITEMS.values()


def test_an_unknown_user_is_answered_with_a_note(visit: Visit) -> None:
    page = visit.open("#run=shop&user=<b>nobody</b>")
    page.locator(".hit").first.wait_for()
    assert "<b>nobody</b>" in page.locator(".note:visible").inner_text()
    assert "Nothing was taken yet." in page.locator("#events").inner_text()
    page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    assert fits(page)


# ---- The real server ----


def test_the_page_asks_the_real_server(context: BrowserContext, start: Any, tiny_run: Path) -> None:
    with start(tiny_run) as running:
        visit = Visit(context, f"{running.address}/")
        page = visit.open("#k=3")
        page.locator("#query").fill("kaban locel the")
        page.keyboard.press("Enter")
        page.locator(".hit").first.wait_for()
        settled(page)
        for name in ("Vectors", "Words", "Both"):
            assert 1 <= len(titles(column(page, name))) <= 3
            hit = column(page, name).locator(".hit").first
            hit.get_by_role("button", name="Why").click()
            hit.locator("table").first.wait_for()
            sums_up(hit.locator("table").first)
            score = hit.locator(".value span").first.inner_text()
            assert hit.locator("tr.sum .number").first.inner_text() == score
        assert fits(page)
        page.close()
        assert visit.faults == []
        answer = running.get("/")
        policy = answer.headers["content-security-policy"]
        for rule in POLICY.split("; "):
            assert rule in policy
