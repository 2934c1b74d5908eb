"""Downloads: interrupted ones are resumed, errors are reported."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from asr_jax.core import downloads
from asr_jax.core.downloads import Archive, fetch
from asr_jax.core.errors import RunError

CONTENT = np.random.default_rng(0).bytes(100_000)
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Served:
    """Behaviour of the server, and the ranges of its requests."""

    url: str = ""
    knows_ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """Bytes sent before each of the next connections is cut. Empty: all bytes."""
    failures: list[int] = field(default_factory=list)
    """Statuses of the next responses. Empty: 200."""
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(downloads, "WAITS_S", (0, 0))
    monkeypatch.setenv("no_proxy", "*")
    state = Served()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            state.asked.append(wanted)
            if state.failures or self.path != "/some/a.tgz":
                self.send_error(state.failures.pop() if state.failures else 404)
                return
            first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.knows_ranges else 0
            if first >= len(CONTENT):
                self.send_error(416)
                return
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(CONTENT) - first))
            self.end_headers()
            num = state.cuts.pop(0) if state.cuts else len(CONTENT)
            self.wfile.write(CONTENT[first : first + num])

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}/some/a.tgz"
        yield state
        server.shutdown()
        thread.join()


def test_an_archive_is_fetched_once(tmp_path, served):
    for _ in range(2):
        path = fetch(Archive(served.url, SHA256), tmp_path / "new")
        assert (path.name, path.read_bytes()) == ("a.tgz", CONTENT)
    assert served.asked == [None]
    assert list(path.parent.iterdir()) == [path]


def test_what_breaks_off_goes_on_where_it_stopped(tmp_path, served):
    served.cuts = [30_000, 50_000]
    served.failures = [503]
    path = fetch(Archive(served.url, SHA256), tmp_path)
    assert path.read_bytes() == CONTENT
    assert served.asked == [None, None, "bytes=30000-", "bytes=80000-"]


@pytest.mark.parametrize("there", [40_000, 100_000])
def test_a_second_command_goes_on_with_what_the_first_left(tmp_path, served, there):
    (tmp_path / "a.tgz.partial").write_bytes(CONTENT[:there])
    assert fetch(Archive(served.url, SHA256), tmp_path).read_bytes() == CONTENT
    assert served.asked == [f"bytes={there}-"]


def test_a_server_that_knows_no_ranges_begins_anew(tmp_path, served):
    served.knows_ranges = False
    served.cuts = [30_000]
    assert fetch(Archive(served.url, SHA256), tmp_path).read_bytes() == CONTENT
    assert served.asked == [None, "bytes=30000-"]


def test_what_brings_nothing_is_given_up_and_what_is_there_is_kept(tmp_path, served):
    served.cuts = [30_000, 0, 0, 0, 0]
    with pytest.raises(RunError, match=r"a\.tgz: .* 30000 bytes"):
        fetch(Archive(served.url, SHA256), tmp_path)
    assert len(served.asked) == 4
    served.cuts = []
    assert fetch(Archive(served.url, SHA256), tmp_path).read_bytes() == CONTENT


def test_no_server_and_no_such_file_are_named(tmp_path, served):
    with pytest.raises(RunError, match="404 Not Found; use a mirror"):
        fetch(Archive(f"{served.url}x", SHA256), tmp_path)
    with pytest.raises(RunError, match=r"127.0.0.1:1/a.tgz: .*refused"):
        fetch(Archive("http://127.0.0.1:1/a.tgz", SHA256), tmp_path)


@pytest.mark.parametrize("is_local", [False, True])
def test_another_checksum_is_refused(tmp_path, served, is_local):
    if is_local:
        (tmp_path / "a.tgz").write_bytes(CONTENT)
    with pytest.raises(RunError, match=rf"md5 .*{hashlib.md5(CONTENT).hexdigest()}.* 00ff"):
        fetch(Archive(served.url, "md5:00ff"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == (["a.tgz"] if is_local else [])
