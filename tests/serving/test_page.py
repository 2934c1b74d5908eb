"""The page in Chromium, with a fake microphone: recording, a dropped file, words, and subtitles."""

import re
import time

import pytest

from tests.browser import api, browsing, needs_browser
from tests.serving.servers import content, running, sound, transcribed

TOKEN = "a-secret"

pytestmark = [pytest.mark.slow, needs_browser]


@pytest.fixture(scope="module", params=[2, 0], ids=["streaming", "segments"])
def server(request):
    with running(num_streams=request.param, token=TOKEN) as found:
        yield found


@pytest.fixture(scope="module")
def audio(tmp_path_factory):
    path = tmp_path_factory.mktemp("audio") / "speech.wav"
    path.write_bytes(content(sound(3.5, 1)))
    return path


@pytest.fixture
def page(server, audio):
    flags = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with browsing(*flags, f"--use-file-for-fake-audio-capture={audio}") as browser:
        page = browser.new_page(accept_downloads=True)
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        outside = []
        page.on("request", lambda sent: sent.url.startswith((server.url, "blob:", "data:")) or outside.append(sent.url))
        page.goto(server.url)
        page.fill("#token", TOKEN)
        api.expect(page.locator("#status")).to_have_text("Ready", timeout=20_000)
        yield page
        assert not errors
        assert not outside


def test_a_file(page, audio, tmp_path):
    [(expected, duration_s)] = transcribed(audio)
    page.set_input_files("#file", audio)
    api.expect(page.locator("#status")).to_have_text(
        f"{len(expected['words'])} words in {duration_s:.1f} s of audio", timeout=20_000
    )
    assert page.locator("#words button").all_inner_texts() == [word["text"] for word in expected["words"]]
    colours = {button.get_attribute("class") for button in page.locator("#words button").all()}
    assert colours <= {"high", "middle", "low"}
    label = page.locator("#words button").first.get_attribute("aria-label")
    assert re.fullmatch(r"\w+, \d+\.\d\d to \d+\.\d\d s, confidence \d+ %", label)
    page.locator("summary").click()
    assert page.locator("#rows tr").count() == len(expected["words"])
    for kind, start in (("srt", "1\n00:00:0"), ("vtt", "WEBVTT\n\n00:00:0")):
        with page.expect_download() as found:
            page.click(f"#{kind}")
        path = tmp_path / f"a.{kind}"
        found.value.save_as(path)
        assert found.value.suggested_filename == f"speech.{kind}"
        assert path.read_text().startswith(start)
        assert path.read_text().split()[-1] == expected["words"][-1]["text"]
    page.locator("#words button").first.click()  # plays from there
    page.wait_for_function("() => document.getElementById('player').currentTime > 0", timeout=20_000)


def test_a_recording(page, server):
    """The fake microphone plays the file; the stream shows texts, and the whole is recognised at the end."""
    page.click("#record")
    page.wait_for_function("() => document.getElementById('partial').textContent.length > 3", timeout=20_000)
    time.sleep(1.0)
    page.click("#record")
    api.expect(page.locator("#result")).to_be_visible(timeout=20_000)
    assert page.locator("#words button").count()
    [seconds] = re.findall(r"words? in (\d+\.\d) s of audio", page.locator("#status").inner_text())
    assert float(seconds) > 1.0
    end = time.monotonic() + 20
    while server.service.num_streams and time.monotonic() < end:
        time.sleep(0.05)
    assert not server.service.num_streams


def test_errors_are_shown(server, audio):
    with browsing() as browser:
        page = browser.new_page()
        page.goto(server.url)
        api.expect(page.locator("#status")).to_have_text("Ready", timeout=20_000)
        page.set_input_files("#file", audio)
        api.expect(page.locator("#status")).to_have_text("Enter the server's token above.", timeout=20_000)
