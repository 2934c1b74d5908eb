"""Reports in headless Chromium: recordings play, the table is filtered and sorted, all works with the keyboard.

The browser is that of the system: `apt-get install chromium`. Without it or playwright, these tests are skipped.
"""

import io
import json
import re
from urllib.parse import quote

import pytest
from PIL import Image

from asr_jax.cli.report import main
from tests.browser import browsing, needs_browser
from tests.reporting.made import predictions, recording, run
from tests.support import assert_within

pytest.importorskip("jinja2", reason="needs the extra report")
pytestmark = needs_browser
HOSTILE = (
    "</script><script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\"> &amp; {{ 7 * 7 }}"
)


@pytest.fixture(scope="module")
def browser():
    with browsing("--autoplay-policy=no-user-gesture-required") as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Path of a report of two systems with recordings, hostile texts and a run."""
    folder = tmp_path_factory.mktemp("report")
    sound = recording(folder / "sound.flac", duration_s=2)
    files = [predictions(folder / f"{name}.jsonl", rate, num=120, seed=seed, location=str(sound))
             for seed, (name, rate) in enumerate((("a", 0.4), ("b", 0.2)))]  # fmt: skip
    for path in files:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[7]["hypothesis"] = lines[7]["source"] = HOSTILE
        lines[8]["hypothesis"] = "w" * 3000 + " of many other words"  # of a search that repeats a label
        lines[8]["words"] = [{"text": "w" * 3000, "confidence": 0.1}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([str(run(folder / "run")), *map(str, files), "--worst", "6", "--out", str(folder / "report.html")])
    return folder / "report.html"


@pytest.fixture
def page(browser, report):
    """An open report, without an error in its console and without a request at the end of the test."""
    context = browser.new_context(offline=True)
    opened = context.new_page()
    problems = []
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "request", lambda request: problems.append(request.url) if request.url[:5] not in ("file:", "data:") else None
    )
    opened.goto(report.as_uri())
    yield opened
    assert not problems
    context.close()


def rows_of(page):
    return page.locator("#utterances tbody tr")


def test_recordings_play(page):
    audio = page.locator("audio").first
    audio.evaluate("audio => audio.play()")
    for _ in range(100):  # the page's policy forbids Playwright's own wait for a function
        if audio.evaluate("audio => audio.currentTime") > 0.3:
            break
        page.wait_for_timeout(100)
    assert audio.evaluate("audio => audio.currentTime") > 0.3
    page.wait_for_timeout(300)  # for the next `timeupdate`
    assert_within(abs(audio.evaluate("audio => audio.duration") - 2), 0.3, what="seconds of the recording")
    place = page.locator(".spectrogram").first.evaluate("line => parseFloat(line.style.getPropertyValue('--at'))")
    assert 0 < place <= 100
    pictures = page.locator(".spectrogram img").evaluate_all("all => all.map(each => each.naturalWidth)")
    assert min(pictures) > 100
    assert len(pictures) == 6


def test_the_table_is_filtered(page):
    assert page.locator("#count").inner_text() == "120 of 120 utterances"
    assert rows_of(page).count() == 50
    page.get_by_label("Filter").fill("u17")
    assert page.locator("#count").inner_text() == "1 of 120 utterances"
    assert rows_of(page).locator("th").inner_text() == "u17"
    page.get_by_label("Filter").fill("PHONE set0.jsonl")  # in any order and case, all must be there
    assert page.locator("#count").inner_text() == "20 of 120 utterances"
    page.get_by_label("Filter").fill("no such text")
    assert rows_of(page).count() == 0
    page.get_by_label("Filter").fill("")
    page.get_by_label("with errors only").check()
    errors = int(page.locator("#count").inner_text().split()[0])
    assert f"of {errors} utterances with errors" in page.locator("section", has_text="Most errors").inner_text()


def test_the_table_is_sorted_and_has_pages(page):
    page.get_by_role("button", name="Errors A").click()
    head = page.get_by_role("columnheader", name="Errors A")
    assert head.get_attribute("aria-sort") == "descending"
    place = page.locator("#utterances thead th").all_inner_texts().index("Errors A")

    def errors():
        return [int(row[place - 1]) for row in (each.locator("td").all_inner_texts() for each in rows_of(page).all())]

    shown = errors()
    assert shown == sorted(shown, reverse=True)
    assert page.get_by_role("button", name="Previous page").is_disabled()
    page.get_by_role("button", name="Next page").click()
    assert page.locator("#place").inner_text() == "Page 2 of 3"
    assert max(errors()) <= min(shown)
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert errors()[0] == 0
    page.get_by_role("button", name="Id").click()
    assert rows_of(page).locator("th").all_inner_texts()[:3] == ["u0", "u1", "u2"]  # numbers by value: u10 is later


def test_an_utterance_leads_to_its_recording(page):
    page.get_by_role("button", name="Errors A").click()
    link = page.locator("#utterances tbody a").first
    name = link.inner_text()
    link.press("Enter")
    assert page.locator(":target h3").inner_text() == name


def test_hostile_texts_are_shown(page):
    assert "ran" not in page.title()
    page.get_by_label("Filter").fill("onerror")
    assert HOSTILE in rows_of(page).first.inner_text()
    assert page.locator("script").count() == 2


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_it_is_accessible(browser, report, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(report.as_uri())
    for each in page.locator("details").all():
        each.evaluate("details => { details.open = true }")
    found = axe.run(page).response["violations"]
    context.close()
    assert not [(each["id"], each["nodes"][0]["html"][:200]) for each in found]


def test_colours_follow_the_scheme(browser, report):
    found = []
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(report.as_uri())
        colours = page.evaluate("""() => {
            const style = (name) => getComputedStyle(document.querySelector(name));
            const ofLines = style("figure svg path[style*='stroke: var(--line1)']").stroke;
            return [style("body").backgroundColor, style("figure svg text").fill, ofLines];
        }""")
        found.append([sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours])
        page.close()
    (ground, text, line), (dark_ground, light_text, light_line) = found
    assert ground > 700 > 300 > text
    assert light_text > 600 > 150 > dark_ground
    assert light_line > line + 100


@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_the_window(browser, report, width):
    page = browser.new_page(viewport={"width": width, "height": 640})
    page.goto(report.as_uri())
    assert any("wwww" in text for text in page.locator("article").all_inner_texts())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_tables_and_charts_use_the_width(browser, report):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(report.as_uri())
    assert page.locator("#utterances").evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    for chart in page.locator("figure .whole").all():
        assert chart.evaluate("box => box.firstElementChild.clientWidth > 0.98 * box.clientWidth")
    page.close()


def test_a_shadow_shows_that_a_table_scrolls(browser, report):
    page = browser.new_page(viewport={"width": 500, "height": 800})
    page.goto(report.as_uri())
    box = page.locator(".wide:has(#utterances)")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    right = int(box.bounding_box()["width"]) - 2
    colours = []
    for place in ("0", "box.scrollWidth"):
        box.evaluate(f"box => {{ box.scrollLeft = {place}; }}")
        with Image.open(io.BytesIO(box.screenshot())) as picture:
            colours.append(picture.convert("RGB").getpixel((right, 4)))
    assert min(colours[0]) < 220
    assert min(colours[1]) > 240
    page.close()


@pytest.mark.slow
def test_ten_thousand_utterances_open_at_once(browser, tmp_path):
    """The time of the page's thread on the processor, which other work on the machine does not change."""
    path = predictions(tmp_path / "a.jsonl", 0.1, num=10_000, num_words=12)
    main([str(path), "--out", str(tmp_path / "report.html")])
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_s():
        return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}[
            "TaskDuration"
        ]

    page.goto("file://" + quote(str(tmp_path / "report.html")))
    assert rows_of(page).count() == 50
    assert_within(busy_s(), 2, what="seconds until the table of 10,000 utterances is there")
    for text, number in (("u", 10_000), ("u9", 1_111), ("u99", 111), ("no such word", 0)):
        before_s = busy_s()
        page.get_by_label("Filter").fill(text)
        assert page.locator("#count").inner_text() == f"{number:,} of 10,000 utterances"
        assert_within(busy_s() - before_s, 1, what="seconds of a search in 10,000 utterances")
    page.get_by_label("Filter").fill("")
    before_s = busy_s()
    page.get_by_role("button", name="Reference").click()
    texts = [row.locator("td").first.inner_text() for row in rows_of(page).all()]
    assert texts == sorted(texts)
    assert_within(busy_s() - before_s, 2, what="seconds of sorting 10,000 utterances")
    page.close()
