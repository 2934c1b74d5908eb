"""The page in Chromium with answers that the test gives: what a person keeps when the server refuses a recording."""

import http.server
import json
import re
import threading
from importlib import resources

import pytest

from tests.browser import api, browsing, needs_browser
from tests.support import assert_within

pytestmark = [pytest.mark.slow, needs_browser]
SIZE = "the body has more than 100 bytes"
WATCHED = """
const given = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
window.media = [];
navigator.mediaDevices.getUserMedia = async (wanted) => { media.push(await given(wanted)); return media.at(-1); };
window.WebSocket = class {
  static OPEN = 1; readyState = 0; isClosed = false;
  constructor() { window.socket = this; }
  close() { this.isClosed = true; }
};
"""
"""Script that keeps the microphones and the socket of a page; the socket never opens."""


@pytest.fixture(scope="module")
def browser():
    with browsing("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream") as found:
        yield found


class Answers(http.server.BaseHTTPRequestHandler):
    """The page's files, and answers that the test has given to its server."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.strip("/") or "index.html"
        if name == "ready":
            self.send(200, {"model": "tiny", "streams": "model", "needs_token": True, **self.server.limits})
        elif name in self.server.missing:
            self.send(404, {})
        else:
            kind = {"html": "text/html", "css": "text/css", "js": "text/javascript"}[name.rpartition(".")[2]]
            self.send(200, resources.files("asr_jax.serving.page").joinpath(name).read_bytes(), kind)

    def do_POST(self):
        self.server.uploads.append(self.rfile.read(int(self.headers["content-length"])))
        if self.server.status:
            self.send(self.server.status, self.server.answer)
        else:  # the connection breaks
            self.close_connection = True

    def send(self, status, answer, kind="application/json"):
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server that recognises no word in any file."""
    with http.server.ThreadingHTTPServer(("localhost", 0), Answers) as found:
        found.status, found.answer = 200, {"words": [], "segments": [], "duration": 1.0}
        found.uploads, found.missing, found.daemon_threads = [], [], True
        found.limits = {"max_bytes": 25_000_000}
        thread = threading.Thread(target=found.serve_forever, args=(0.02,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def refuse(server, status, kind):
    server.status, server.answer = status, {"error": {"type": kind, "message": SIZE}}


@pytest.fixture
def page(browser, server):
    page = browser.new_page(accept_downloads=True)
    page.set_default_timeout(10_000)
    page.add_init_script(WATCHED)
    page.goto(f"http://localhost:{server.server_port}/")
    api.expect(page.locator("#status")).to_have_text("Ready")
    yield page
    page.close()


def record(page):
    page.click("#record")
    page.wait_for_function("document.getElementById('elapsed').textContent === '00:00:01'")
    page.click("#record")


def num_live(page):
    return page.evaluate("media.flatMap((each) => each.getTracks()).filter((it) => it.readyState === 'live').length")


def test_a_refused_recording_is_kept(page, server, tmp_path):
    refuse(server, 413, "invalid_request_error")
    record(page)
    api.expect(page.locator("#status")).to_have_text(SIZE)
    page.wait_for_function("document.getElementById('player').duration >= 1")
    with page.expect_download() as found:
        page.get_by_role("link", name="Save recording").click()
    found.value.save_as(tmp_path / "saved.wav")
    saved = (tmp_path / "saved.wav").read_bytes()
    assert saved in server.uploads[0]
    assert int.from_bytes(saved[24:28], "little") == 16000  # samples per second
    seconds = (len(saved) - 44) / 32000
    assert_within(abs(seconds - 1.5), 1.2, what="seconds of the recording, less 1.5")
    server.status, server.answer = 200, {"words": [], "segments": [], "duration": seconds}
    page.get_by_role("button", name="Try again").click()
    api.expect(page.locator("#words")).to_have_text("No word was recognised.")
    assert saved in server.uploads[1]
    assert not page.get_by_role("button", name="Try again").is_visible()


def test_a_recording_stops_at_the_limit_of_the_server(page, server):
    server.limits["max_bytes"] = 1000 + 2 * 16000
    page.reload()
    page.click("#record")
    api.expect(page.locator("#status")).to_have_text(
        "The recording was stopped after 00:00:01: this server takes at most 0.03 MB. 0 words in 1.0 s of audio",
        timeout=20_000,
    )
    assert num_live(page) == 0
    [upload] = server.uploads
    wav = upload[upload.index(b"RIFF") :]
    assert int.from_bytes(wav[40:44], "little") == 2 * 16000  # bytes of samples
    assert len(upload) <= server.limits["max_bytes"]
    page.wait_for_function("document.getElementById('player').duration === 1")
    page.click("#record")
    api.expect(page.locator("#status")).to_have_text("Recording … It stops by itself after 00:00:01.")


def test_a_file_above_the_limit_of_the_server_is_not_sent(page, server, tmp_path):
    server.limits["max_bytes"] = 1_000_000
    page.reload()
    api.expect(page.locator("#status")).to_have_text("Ready")
    page.evaluate("""() => {
        const dropped = new DataTransfer();
        dropped.items.add(new File([new Uint8Array(1000001)], "a.wav"));
        document.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped }));
    }""")
    api.expect(page.locator("#status")).to_have_text(
        "a.wav has 1.01 MB, and this server takes at most 1 MB. Choose a shorter file, or one that is compressed, such "
        "as FLAC."
    )
    api.expect(page.locator("#status")).to_have_class("error")
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    page.set_input_files("#file", tmp_path / "a.wav")
    api.expect(page.locator("#status")).to_have_text("0 words in 1.0 s of audio")
    assert len(server.uploads) == 1


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (401, "authentication_error", "Enter the server's token above."),
        (429, "rate_limit_error", SIZE),
        (0, "", "The server cannot be reached."),
    ],
)
def test_errors_have_a_remedy(page, server, tmp_path, status, kind, message):
    refuse(server, status, kind)
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    page.set_input_files("#file", tmp_path / "a.wav")
    api.expect(page.locator("#status")).to_have_text(message)
    assert page.get_by_role("button", name="Try again").is_enabled()
    assert not page.get_by_role("link", name="Save recording").is_visible()  # the file is there already


def test_an_answer_of_a_proxy(page, server, tmp_path):
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    server.status, server.answer = 502, b"<html>"
    page.set_input_files("#file", tmp_path / "a.wav")
    api.expect(page.locator("#status")).to_have_text("The server answers with status 502.")


def test_a_double_click_opens_one_microphone(page, server):
    page.locator("#record").dblclick()
    api.expect(page.locator("#record")).to_have_text("Stop")
    assert page.evaluate("media.length") == 1
    assert page.locator("#elapsed").is_visible()
    assert page.locator("#file").is_disabled()
    page.evaluate("""() => {
        const dropped = new DataTransfer();
        dropped.items.add(new File(["RIFF"], "a.wav"));
        document.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped }));
    }""")
    api.expect(page.locator("#record")).to_have_text("Stop")
    page.click("#record")
    api.expect(page.locator("#record")).to_have_text("Record")
    assert num_live(page) == 0
    assert page.evaluate("socket.isClosed")  # it was still connecting
    assert len(server.uploads) == 1
    assert page.locator("#file").is_enabled()


def test_a_failed_start_closes_the_microphone(page, server):
    server.missing.append("recorder.js")
    page.click("#record")
    api.expect(page.locator("#status")).to_have_class("error")
    assert page.evaluate("media.length") == 1
    assert num_live(page) == 0
    assert page.locator("#record").is_enabled()


def test_a_microphone_that_the_browser_does_not_allow(page):
    page.evaluate("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
    page.click("#record")
    api.expect(page.locator("#status")).to_have_text(re.compile("only on localhost or over https"))
    assert page.locator("#record").is_enabled()


def test_a_microphone_of_its_own_rate(page, server):
    """Some browsers refuse a microphone in a context of another rate."""
    page.evaluate("""() => {
        const made = AudioContext.prototype.createMediaStreamSource;
        AudioContext.prototype.createMediaStreamSource = function (media) {
            if (this.sampleRate === 16000) throw new DOMException("other rate", "NotSupportedError");
            return made.call(this, media);
        };
    }""")
    record(page)
    api.expect(page.locator("#result")).to_be_visible()
    wav = server.uploads[0][server.uploads[0].index(b"RIFF") :]
    assert int.from_bytes(wav[24:28], "little") in (44100, 48000)
