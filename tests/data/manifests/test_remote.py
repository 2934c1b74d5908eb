"""Manifests and audio behind URLs, with the memory and the local file system of fsspec."""

import json
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pytest
from recordings import noise, signal, write

from asr_jax.core.errors import UserError
from asr_jax.data.manifests import remote
from asr_jax.data.manifests.audio_inputs import listed
from asr_jax.data.manifests.checking import check_audio
from asr_jax.data.manifests.items import shards_of
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import read_utterances


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """Bucket in memory with two recordings and a manifest, of which one path is relative."""
    monkeypatch.setattr(remote, "CACHES", str(tmp_path / "caches"))
    system = fsspec.filesystem("memory")
    for number in range(2):
        content = write(tmp_path / f"{number}.flac", noise(number)).read_bytes()
        system.pipe_file(f"/bucket/set/audio/{number}.flac", content)
    lines = [
        {"audio_path": "audio/0.flac", "text": "a", "duration": 0.1875},
        {"audio_path": "memory://bucket/set/audio/1.flac", "text": "b"},
    ]
    system.pipe_file("/bucket/set/train.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    yield system
    system.rm("/bucket", recursive=True)


def test_a_manifest_and_its_audio(bucket, tmp_path):
    for pattern in ("train.jsonl", "*.jsonl"):
        utterances = read_utterances([f"memory://bucket/set/{pattern}"], cache=str(tmp_path / "index"))
        assert [each.location for each in utterances] == [f"memory://bucket/set/audio/{n}.flac" for n in range(2)]
        assert [each.duration_s for each in utterances] == [0.1875, 3000 / 16000]
        for number, each in enumerate(utterances):
            np.testing.assert_array_equal(signal(each), noise(number))
    (check,) = check_audio(utterances, ["memory://bucket/set/train.jsonl"])
    assert (check.num_opened, check.unreadable, check.differing) == (2, (), ())
    names = [each.id for each in listed(["memory://bucket/set/audio/0.flac", "memory://bucket/set/train.jsonl"],
                                        read_stdin=lambda num: b"", folder=str(tmp_path))]  # fmt: skip
    assert len(names) == 3


def test_a_changed_manifest_is_fetched_again(bucket, tmp_path):
    first = read_utterances(["memory://bucket/set/train.jsonl"], cache=str(tmp_path / "index"))
    assert len(first) == 2
    line = bucket.cat_file("/bucket/set/train.jsonl").splitlines()[0]
    bucket.pipe_file("/bucket/set/train.jsonl", line + b"\n")
    assert len(read_utterances(["memory://bucket/set/train.jsonl"], cache=str(tmp_path / "index"))) == 1


def test_parts_of_files(bucket, tmp_path):
    content = bucket.cat_file("/bucket/set/audio/0.flac")
    bucket.pipe_file("/bucket/set/shard.bin", b"before" + content + b"after")
    where = Location("memory://bucket/set/shard.bin", 6, len(content), name="0.flac")
    assert Location.parse(str(where)) == where
    np.testing.assert_array_equal(where.audio(rate_hz=16000), noise(0))
    with pytest.raises(remote.StorageError, match=rf"truncated: the storage sent {len(content)} of 9999 bytes"):
        replace(where, first_byte=11, num_bytes=9999).content()


def test_the_local_file_system(tmp_path):
    path = write(tmp_path / "a.flac", noise(3))
    np.testing.assert_array_equal(Location(f"local://{path}").audio(rate_hz=16000), noise(3))


def test_errors_name_the_url(bucket, tmp_path):
    with pytest.raises(remote.AudioError, match=r"memory://bucket/none.flac: no such file"):
        Location("memory://bucket/none.flac").content()
    for url, reason in (("memory://bucket/none.jsonl", "cannot be read"), ("memory://bucket/*.wav", "no file matches")):
        with pytest.raises(UserError, match=reason):
            read_utterances([url], cache=str(tmp_path))
    assert remote.why_not_read("memory://a") == ""
    assert "ASR_JAX_EXTRAS=remote " in remote.why_not_read("none://a")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Writes nothing."""


@pytest.fixture
def server(tmp_path):
    """Address of an HTTP server on this machine for the files of `tmp_path/served`."""
    (tmp_path / "served").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "served"))) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_signed_urls(server, tmp_path, monkeypatch):
    pytest.importorskip("aiohttp", reason="needs the extra remote")
    monkeypatch.setattr(remote, "CACHES", str(tmp_path / "caches"))
    write(tmp_path / "served/a.flac", noise(0))
    query = "?X-Signature=a/b*c&expires=9"
    lines = [{"audio_path": name, "text": "a", "duration": 0.1875} for name in ("a.flac", f"{server}/a.flac{query}")]
    (tmp_path / "served/train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    utterances = read_utterances([f"{server}/train.jsonl{query}"], cache=str(tmp_path / "index"))
    assert [each.location for each in utterances] == [f"{server}/a.flac", f"{server}/a.flac{query}"]
    for each in utterances:
        np.testing.assert_array_equal(signal(each), noise(0))
    assert remote.matching(f"{server}/0.tar{query}") == list(shards_of([f"{server}/0.tar{query}"], ReadOptions()))
    assert remote.without_query("s3://bucket/a?b=*.flac") == "s3://bucket/a?b=*.flac"


def test_sources():
    assert remote.source_of("s3://bucket/a/b.flac") == "s3://bucket"
    assert remote.source_of("https://host:80/a") == "https://host:80"
    assert Path(remote.source_of(__file__)).is_mount()
    assert not remote.is_url("file:///a")
    assert not remote.is_url("/a/b://c")
