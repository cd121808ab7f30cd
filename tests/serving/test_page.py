"""The page, as a reader uses it: in a real browser, before a real server."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from retro.generation.sampler import Sampler
from retro.model.retro import Retro
from retro.pages.colours import VARIABLES
from retro.serving.asking import Served
from retro.serving.page_files import FOLDER, page_files
from retro.workspace import Workspace
from tests.serving.browser import NAMES, Browser, Tab, find_program
from tests.serving.live import KEY, Live, live, served

WITHOUT = "RETRO_WITHOUT_BROWSER"
DONE = "document.querySelector('#stop').hidden && document.querySelector('#on .word') !== null"
PROMPT = "The licence permits anyone to use, copy, modify and share this software"
NASTY = (
    "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'> <b>bold</b> &amp; "
    "\u202eback to front\u202c, a bell \x07 and nothing\u200bness. The licence permits anyone to share this."
)


def program(names: tuple[str, ...], variable: str, package: str) -> str:
    """A program that these tests cannot do without, unless somebody says that they should."""
    found = find_program(names, variable)
    if found is None and os.environ.get(WITHOUT):
        pytest.skip(f"{WITHOUT} is set, and there is no {names[0]}")
    assert found, f"there is no {names[0]}; run: apt-get install {package}, or set {WITHOUT}=1 to go without"
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(program(NAMES, "RETRO_BROWSER", "chromium"), tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    """A page; at its end it must have reported no error, and asked only its own server."""
    opened = Tab(browser)
    opened.look()
    yield opened
    opened.settle()
    opened.close()
    assert not opened.problems
    assert len(opened.hosts) <= 1


def ask(tab: Tab, url: str, prompt: str = PROMPT, **settings: object) -> None:
    """Opens a link that asks, and waits until everything is written."""
    link = "&".join(
        f"{name}={quote(str(value))}" for name, value in {"p": prompt, "n": 40, **settings}.items()
    )
    tab.open(f"{url}/#{link}")
    tab.wait(DONE)


def squeezed(text: str) -> str:
    """A text without white space, with control characters as the page shows them."""
    shown = (
        f"U+{ord(letter):04X}" if ord(letter) < 32 or 127 <= ord(letter) < 160 else letter
        for letter in text.replace("\r\n", "\n")
        if letter not in "\n\t"
    )
    return "".join(letter for letter in shown if not letter.isspace())


def choose_word(tab: Tab) -> str:
    """Clicks the first word that has read something."""
    tab.click("#evidence .row .origin button")
    return tab.wait("document.querySelector('#on .word[aria-current]')?.innerText")


# Without a browser


def test_the_parts_of_the_page_that_need_no_browser(tmp_path: Path) -> None:
    node = program(("node", "nodejs"), "RETRO_NODE", "nodejs")
    # Older versions of node take a .js for a module only where a package says so.
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copytree(FOLDER, tmp_path / "src/retro/serving/page")
    tests = shutil.copytree(Path(__file__).parent / "page", tmp_path / "tests/serving/page")
    files = sorted(map(str, tests.glob("*.test.mjs")))
    assert files
    done = subprocess.run([node, "--test", *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_colours_are_those_of_the_other_pages() -> None:
    style = (FOLDER / "style.css").read_text()
    own = dict(re.findall(r"^  --([\w-]+): (light-dark\(.*\));$", style, re.MULTILINE))
    assert own == {name: VARIABLES[name].css for name in own}
    assert {*own} >= {"text", "paper", "on", "off", "shared-5", "better-1", "worse-4"}
    # Besides, no colour is named anywhere but black for shadows.
    rest = re.sub(r"^  --.*$", "", style, flags=re.MULTILINE)
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?![\w-]* [{,.])", rest)


def test_the_page_holds_to_its_content_policy_and_to_text() -> None:
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?:", html)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", html))
    for file in FOLDER.glob("*.js"):
        code = file.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", code
        )
        assert not re.search(r"https?://", code)


def test_every_file_is_served_and_small(server: Live) -> None:
    for name, (file, kind) in page_files().items():
        answer = server.client.get(f"/page/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert answer.content == file.read_bytes()
    assert sum(file.stat().st_size for file, _ in page_files().values()) < 200_000


# In a browser


def test_both_texts_are_written_and_coloured(tab: Tab, server: Live) -> None:
    tab.open(f"{server.url}/")
    tab.wait("document.querySelector('#prompt-note button') !== null")
    assert "reading nothing" in tab.text("#off")
    tab.write("#prompt", PROMPT)
    tab.write("#tokens", "40")
    tab.click("#go")
    tab.wait(DONE)
    fields = {"max_tokens": 40, "temperature": 0.7, "top_p": 0.9, "seed": 0}
    for name, on in (("on", True), ("off", False)):
        told = server.text(PROMPT, **fields, retro={"retrieval": on})
        assert squeezed(told) in squeezed(tab.text(f"#{name} .text"))
    coloured = tab.ask("document.querySelectorAll('#on .word [class^=b], #on .word [class^=w]').length")
    assert coloured > 5
    assert "bits" in tab.text("#on .meta")
    assert "Written" in tab.ask("document.querySelector('#status').textContent")


def test_a_word_leads_to_its_neighbours_and_these_to_the_document(tab: Tab, server: Live) -> None:
    ask(tab, server.url)
    word = choose_word(tab)
    assert word in tab.text("#evidence h2")
    cards = tab.texts("#evidence .neighbour")
    assert len(cards) == 2
    assert all("distance" in card and "on this part" in card for card in cards)
    assert tab.ask("document.querySelectorAll('#on .word.outside').length") > 0
    tab.click("#evidence .neighbour h3 a")
    place = tab.wait("document.querySelector('dialog .place')?.innerText")
    passage = tab.ask("document.querySelector('#evidence .passage').textContent.replace(' ┃ ', '')")
    assert passage.split() == place.split()
    link = tab.ask("document.querySelector('dialog .json').href")
    assert tab.ask(f"fetch({json.dumps(link)}).then((answer) => answer.json()).then((row) => row.text)")
    tab.press("Escape")
    tab.wait("!document.querySelector('dialog').open")


def test_a_word_shows_what_each_neighbour_saved_on_it(tab: Tab, server: Live) -> None:
    fields = {"max_tokens": 40, "temperature": 0.7, "top_p": 0.9, "seed": 0}
    choice = server.complete(PROMPT, **fields, retro={"explain": True})["choices"][0]
    ask(tab, server.url)
    # Which tokens are a word is the page's business; what they are worth is the server's.
    module = f"import('/page/reading.js').then((own) => own.readWords({json.dumps(choice)}))"
    words = [word for word in tab.ask(module) if word.get("part") is not None and word["text"].strip()]
    most = 0.0
    for word in words[:: max(1, len(words) // 4)]:
        tab.click(f"#on [data-word='{word['number']}']")
        part = choice["retro"]["chunks"][word["part"]]
        first = max(0, word["firstToken"] - part["first_token"])
        stop = word["firstToken"] + len(word["tokens"]) - part["first_token"]
        saved = [sum(neighbour["saved"][first:stop]) for neighbour in part["neighbours"]]
        cards = tab.texts("#evidence .neighbour")
        shown = [re.search(r"([\d.]+) bits( saved| lost|) on this word", card) for card in cards]
        told = [float(one[1]) * (-1 if "lost" in one[2] else 1) for one in shown if one]
        # The one that was worth most on this word comes first.
        assert told == pytest.approx(sorted(saved, reverse=True), abs=0.051)
        assert all("on this part" in card for card in cards)
        most = max(most, *map(abs, told))
    assert most > 0.2


def test_a_source_is_taken_out_and_put_back(tab: Tab, server: Live) -> None:
    ask(tab, server.url)
    before = tab.text("#on .text")
    row = "document.querySelector('#evidence .take').dataset"
    document, name = tab.ask(f"{row}.document"), tab.ask(f"{row}.name")
    tab.click("#evidence .take")
    tab.wait(f"document.querySelector('#taken-out button') !== null && {DONE}")
    assert name in tab.text("#taken-out")
    assert document not in tab.ask(
        "[...document.querySelectorAll('#evidence .take')].map((one) => one.dataset.document)"
    )
    fields = {"max_tokens": 40, "temperature": 0.7, "top_p": 0.9, "seed": 0}
    told = server.text(PROMPT, **fields, retro={"exclude": [document]})
    kept = tab.ask(
        """(() => {
        const text = document.querySelector("#on .text").cloneNode(true);
        text.querySelectorAll("del, .given").forEach((gone) => gone.remove());
        return text.textContent;
        })()"""
    )
    assert squeezed(kept) == squeezed(told)
    assert tab.ask("document.querySelectorAll('#on del').length") > 0
    assert tab.ask("document.querySelectorAll('#on .word.added').length") > 0
    # Whoever opens the link sees the same, changes and all.
    link, marked = tab.ask("location.href"), tab.text("#on .text")
    tab.open(link)
    tab.wait(f"document.querySelector('#on del') !== null && {DONE}")
    assert tab.text("#on .text") == marked
    tab.click("#taken-out button")
    tab.wait(f"document.querySelector('#taken-out').hidden && {DONE} && !document.querySelector('#on del')")
    assert tab.text("#on .text") == before


def test_back_in_the_history_puts_a_source_back(tab: Tab, server: Live) -> None:
    ask(tab, server.url)
    before = tab.text("#on .text")
    tab.click("#evidence .take")
    tab.wait(f"!document.querySelector('#taken-out').hidden && {DONE}")
    tab.ask("history.back()")
    tab.wait(f"document.querySelector('#taken-out').hidden && {DONE}")
    assert tab.text("#on .text") == before


def test_a_link_holds_the_settings_and_the_word(tab: Tab, server: Live) -> None:
    ask(tab, server.url, k=3, seed=2, t=1, w=2)
    assert tab.wait("document.querySelector('#on .word[aria-current]')?.dataset.word") == "2"
    values = {
        name: tab.ask(f"document.querySelector('#{name}').value")
        for name in ("neighbours", "seed", "temperature")
    }
    assert values == {"neighbours": "3", "seed": "2", "temperature": "1"}
    tab.click("#next-seed")
    tab.wait(f"location.hash.includes('seed=3') && {DONE}")
    assert "w=" not in tab.ask("location.hash")


def test_a_document_is_added_read_asked_for_and_deleted(tab: Tab, writable: Live, tmp_path: Path) -> None:
    ask(tab, writable.url)
    tab.write("#add-title", "<i>Nasty</i> \u202egnp.exe")
    tab.write("#add-text", f"{PROMPT} {NASTY}")
    tab.write("#add-key", "not the key of this server")
    tab.click(".adding button[type=submit]")
    tab.wait("document.querySelector('.adding .notice.bad')?.innerText.includes('key')")
    tab.write("#add-key", KEY)
    tab.click(".adding button[type=submit]")
    tab.click("#ask-with-it")
    tab.wait(f"{DONE} && document.querySelector('#evidence').innerText.includes('Nasty')")
    # A refused key is an error for the browser's own log, and expected here.
    tab.settle()
    tab.problems = [problem for problem in tab.problems if "401" not in problem]
    # Opened again, so that the first text of this page is one that has read it.
    tab.open(tab.ask("location.href"))
    tab.wait(DONE)
    tab.click("#evidence h3 a", "Nasty")
    shown = tab.wait("document.querySelector('dialog .whole')?.textContent")
    assert "<script>window.hurt = 1</script>" in shown
    assert "<i>Nasty</i> U+202Egnp.exe" in tab.text("dialog h2")
    assert tab.texts("dialog .whole .unseen") == ["U+202E", "U+202C", "U+0007", "U+200B"]
    assert tab.ask("document.querySelectorAll('dialog b, dialog i, dialog img, dialog script').length") == 0
    assert tab.ask("window.hurt") is None
    tab.click("dialog button", "Delete")
    tab.click("dialog .danger")
    tab.wait("!document.querySelector('dialog').open")
    tab.wait(f"!document.querySelector('#evidence').innerText.includes('Nasty') && {DONE}")
    assert tab.ask("document.querySelectorAll('#on del').length") == 0
    file = tmp_path / "dropped.txt"
    file.write_text("A text from a file.")
    tab.give_file("#add-file", file)
    tab.wait("document.querySelector('#add-text').value === 'A text from a file.'")


def test_the_datastore_is_searched(tab: Tab, server: Live) -> None:
    tab.open(f"{server.url}/")
    tab.wait("document.querySelectorAll('.documents li').length > 5")
    tab.write("#search", "warranty of fitness")
    tab.press("Enter")
    tab.wait("document.querySelectorAll('.results .neighbour').length > 1")
    tab.click(".results .neighbour h3 a")
    tab.wait("document.querySelector('dialog .place') !== null")


def test_everything_can_be_done_by_keyboard(tab: Tab, server: Live) -> None:
    tab.open(f"{server.url}/")
    tab.wait("document.querySelector('#served').innerText !== ''")
    tab.write("#prompt", PROMPT)
    tab.press("Enter", ctrl=True)
    tab.wait(DONE)
    # From the prompt to the text: by the tab key alone.
    for _ in range(40):
        tab.press("Tab")
        if tab.ask("document.activeElement.classList.contains('word')"):
            break
    first = tab.ask("document.activeElement.dataset.word")
    assert float(tab.ask("getComputedStyle(document.activeElement).outlineWidth").removesuffix("px")) >= 2
    tab.press("ArrowRight")
    assert tab.ask("document.activeElement.dataset.word") != first
    tab.press("ArrowDown")
    word = tab.ask("document.activeElement.dataset.word")
    tab.press("Enter")
    assert tab.ask("document.activeElement.id") == "evidence-title"
    tab.press("Escape")
    assert tab.ask("document.activeElement.dataset.word") == word
    assert tab.ask("document.querySelector('.word[aria-current]')") is None


@pytest.mark.parametrize("dark", [False, True])
def test_a_telephone_shows_one_column_and_a_sheet(tab: Tab, server: Live, dark: bool) -> None:
    tab.look(390, 844, dark=dark)
    ask(tab, server.url)
    assert tab.ask("document.documentElement.scrollWidth") == 390
    assert tab.ask("document.querySelector('#off').offsetHeight") == 0
    tab.click("#on [data-word='2']")
    sheet = tab.ask("document.querySelector('#evidence').getBoundingClientRect().bottom")
    assert sheet == 844
    tab.click("#evidence .close")
    tab.click("#show-off")
    assert tab.ask("document.querySelector('#on').offsetHeight") == 0
    paper = VARIABLES["paper"]
    assert colour(tab) == (paper.dark if dark else paper.light)


def test_the_sheet_is_closed_by_a_button_that_covers_no_text(tab: Tab, server: Live) -> None:
    tab.look(390, 844)
    ask(tab, server.url)
    tab.click("#on [data-word='2']")
    close, *others = tab.ask(
        """["#evidence .close", "#evidence h2 bdi", "#evidence .sum"].map((name) => {
        const box = document.querySelector(name).getBoundingClientRect();
        return [box.left, box.top, box.right, box.bottom];
        })"""
    )
    assert close[2] <= 390
    for other in others:
        assert other[2] <= close[0] or other[0] >= close[2] or other[3] <= close[1] or other[1] >= close[3]


def colour(tab: Tab) -> str:
    numbers = re.findall(r"\d+", tab.ask("getComputedStyle(document.body).backgroundColor"))
    return "#" + "".join(f"{int(number):02x}" for number in numbers)


def test_the_reader_chooses_light_or_dark(tab: Tab, server: Live) -> None:
    tab.open(f"{server.url}/")
    tab.wait("document.querySelector('#theme').innerText === 'Theme: auto'")
    seen = []
    for _ in range(3):
        tab.click("#theme")
        seen.append((tab.text("#theme"), colour(tab)))
    paper = VARIABLES["paper"]
    assert seen == [("Theme: light", paper.light), ("Theme: dark", paper.dark), ("Theme: auto", paper.light)]


def test_a_citation_leads_to_the_document(tab: Tab, server: Live) -> None:
    answer = server.complete(PROMPT, max_tokens=40, temperature=0)
    cited = answer["choices"][0]["annotations"][0]["url_citation"]
    tab.open(cited["url"])
    tab.wait("document.querySelector('dialog .place') !== null")
    tab.press("Escape")
    tab.wait("location.pathname === '/'")


def test_a_short_prompt_and_an_answer_that_read_nothing_say_so(tab: Tab, server: Live) -> None:
    ask(tab, server.url, prompt="Any", n=2)
    assert "nothing was retrieved" in tab.text("#on").lower()
    ask(tab, server.url, prompt="Any", n=30)
    assert "less than a chunk" in tab.text("#on")


def test_a_server_without_a_datastore_says_so(tab: Tab, small_work: Workspace, small_model: Retro) -> None:
    sampler = Sampler(small_model, tokenizer=small_work.datastore().tokenizer)
    bare = Served(name="small", sampler=sampler, memory=None, created=1)
    with live(bare) as running:
        tab.open(f"{running.url}/#p={quote(PROMPT)}&n=10")
        tab.wait("document.querySelector('#off .meta')?.innerText.includes('10 tokens')")
        assert "no datastore" in tab.text("#on")
        assert "no datastore" in tab.text("#datastore")


def test_a_busy_server_is_asked_again(tab: Tab, small_work: Workspace, small_model: Retro) -> None:
    long = {"prompt": PROMPT, "max_tokens": 1000, "min_tokens": 1000, "stream": True}
    with (
        live(served(small_work, small_model), max_sequences=1, max_waiting=1) as running,
        ExitStack() as others,
    ):
        # One is written, and one waits: there is no room for a third.
        for _ in range(2):
            others.enter_context(running.client.stream("POST", "/v1/completions", json=long))
        tab.open(f"{running.url}/#p={quote(PROMPT)}&n=20")
        tab.wait("document.querySelector('#on').innerText.includes('Trying again in 1 second')")
        others.close()
        tab.wait(DONE)
    # The refusals are in the browser's own log, and expected here.
    tab.settle()
    tab.problems = [problem for problem in tab.problems if "429" not in problem]


def test_a_key_on_every_route_is_asked_for_by_the_browser(
    tab: Tab, small_work: Workspace, small_model: Retro
) -> None:
    settings = {"host": "0.0.0.0", "hosts": ("127.0.0.1",)}
    with live(served(small_work, small_model), KEY, **settings) as running:
        place = f"127.0.0.1:{urlsplit(running.url).port}"
        tab.open(f"http://reader:{KEY}@{place}/#p={quote(PROMPT)}&n=20")
        tab.wait(DONE)
        assert KEY not in tab.ask("document.body.innerText")
        tab.allow("clipboardReadWrite", "clipboardSanitizedWrite")
        tab.click("#share")
        tab.wait("document.querySelector('#share').innerText === 'Copied'")
        link = tab.ask("navigator.clipboard.readText()")
        assert link.startswith(f"http://{place}/#p=The+licence")
        choose_word(tab)
        tab.click("#evidence .neighbour h3 a")
        tab.wait("document.querySelector('dialog .place') !== null")


def test_a_reader_stops_the_text_and_the_server_stops_writing(tab: Tab, server: Live) -> None:
    tab.open(f"{server.url}/#p={quote(PROMPT)}&n=1000&t=1")
    tab.wait("document.querySelector('#on .caret') !== null")
    tab.click("#stop")
    tab.wait("document.querySelector('#on').innerText.includes('Stopped here')")
    assert tab.ask("document.querySelector('#stop').hidden")
    tab.wait("fetch('/health').then((answer) => answer.json()).then((health) => health.running === 0)")
    tab.click("#off .notice button", "Ask again")
    tab.wait("!document.querySelector('#stop').hidden")


def test_an_error_is_told_in_the_server_s_words(tab: Tab, server: Live) -> None:
    tab.open(f"{server.url}/#p={quote('word ' * 6000)}")
    tab.wait("document.querySelector('#on .notice.bad') !== null")
    assert "expected at most 4,096" in tab.text("#on .notice.bad")
    tab.settle()
    tab.problems = [problem for problem in tab.problems if "400" not in problem]
