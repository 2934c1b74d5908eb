"""Models at URLs: downloaded once into the cache, also from a zip file with one model."""

import functools
import hashlib
import http.server
import io
import shutil
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from asr_jax.cli import import_model
from asr_jax.core.errors import RunError, UserError
from asr_jax.inference import importing
from asr_jax.pretrained import downloads
from asr_jax.pretrained.downloads import downloaded

FILE = Path(__file__).parent / "files" / "quartznet.pt"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serves `tmp_path/served`, and yields the URL of the server, followed by the paths of its requests."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(downloads, "CACHES", str(tmp_path / "cache"))
    (tmp_path / "served").mkdir()
    found: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            found.append(self.path)

    handler = functools.partial(Handler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        found.append(f"http://127.0.0.1:{server.server_port}/")
        yield found
        server.shutdown()
        thread.join()


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_a_file_is_downloaded_once(tmp_path: Path, asked: list[str]) -> None:
    shutil.copy(FILE, tmp_path / "served/a.pt")
    checksum = hashlib.sha256(FILE.read_bytes()).hexdigest()
    for _ in range(2):
        path = downloaded(f"{asked[0]}a.pt?download=true", checksum)
        assert (path.name, path.read_bytes()) == ("a.pt", FILE.read_bytes())
    assert len(asked) == 2
    assert tmp_path / "cache" in path.parents


def test_the_model_of_a_zip_is_unpacked_into_the_cache_alone(tmp_path: Path, asked: list[str]) -> None:
    content = {"../../../outside.pt": FILE.read_bytes(), "README.md": b"text"}
    (tmp_path / "served/zip").write_bytes(zipped(**content))
    path = downloaded(f"{asked[0]}zip")
    assert (path.name, path.read_bytes()) == ("outside.pt", FILE.read_bytes())
    assert tmp_path / "cache" in path.parents
    assert downloaded(f"{asked[0]}zip") == path
    assert len(asked) == 2
    assert not [*tmp_path.glob("outside.pt"), *(tmp_path / "cache").glob("**/README.md")]


def test_what_is_no_model_is_refused(tmp_path: Path, asked: list[str]) -> None:
    served = tmp_path / "served"
    (served / "two.zip").write_bytes(zipped(**{"a.pt": b"1", "b.nemo": b"2"}))
    (served / "page").write_bytes(b"<html>")
    damaged = zipped(**{"a.pt": FILE.read_bytes()})
    (served / "damaged.zip").write_bytes(damaged.replace(damaged[200:220], bytes(20), 1))
    for name, error, message in (
        ("two.zip", UserError, r"has 2 models \(a.pt, b.nemo\): expected a zip with one"),
        ("page", UserError, "is not a model: expected a file that ends in .safetensors .nemo"),
        ("damaged.zip", RunError, "is damaged"),
        ("none.pt", RunError, "404 File not found"),
    ):
        with pytest.raises(error, match=message):
            downloaded(asked[0] + name)
    assert not [*(tmp_path / "cache").glob("*/*/model/a.pt")]
    with pytest.raises(UserError, match="expected a URL that begins with https"):
        downloaded("http://example.org/a.pt")
    shutil.copy(FILE, served / "a.pt")
    with pytest.raises(RunError, match=f"its sha256 is {hashlib.sha256(FILE.read_bytes()).hexdigest()}, expected 000"):
        downloaded(f"{asked[0]}a.pt", "0" * 64)


def test_a_full_disk_is_named(tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(FILE, tmp_path / "served/a.pt")
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(RunError, match=rf"{FILE.stat().st_size:,} more bytes, and the disk of .* 10: free space"):
        downloaded(f"{asked[0]}a.pt")


def test_the_command_imports_the_file(tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(FILE, tmp_path / "served/a.pt")
    imported: list[Path] = []
    monkeypatch.setattr(importing, "import_model", lambda source, out, *, given: imported.append(source) or [])
    import_model.main([f"{asked[0]}a.pt", "--out", str(tmp_path / "run")])
    assert [path.read_bytes() for path in imported] == [FILE.read_bytes()]
    with pytest.raises(UserError, match="already exists"):  # before the download
        import_model.main([f"{asked[0]}other.pt", "--out", str(tmp_path)])
    with pytest.raises(UserError, match=r"--sha256 with .*which is a path: expected a URL"):
        import_model.main([str(FILE), "--out", str(tmp_path / "run"), "--sha256", "0" * 64])
    assert len(asked) == 2
