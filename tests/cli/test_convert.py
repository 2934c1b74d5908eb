"""The convert command: its messages, rejected utterances, and refused arguments. Tests of the readers convert too."""

import json
from pathlib import Path

import pytest
from recordings import check_signals, jsonl, noise, read, write

from asr_jax.cli.convert import main
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.locations import Location


def test_several_inputs_become_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs have different formats; rejected files are reported and counted."""
    for i in range(12):
        write(tmp_path / "set" / f"{i:02}.wav", noise(i, 1600)).with_suffix(".txt").write_text(f"text {i}")
    write(tmp_path / "set" / "lonely.wav", noise(1))
    manifest = jsonl(tmp_path / "m.jsonl", {"features": [[0.5, 1]], "tokens": "1 2", "id": "f"})
    out = tmp_path / "new" / "out.jsonl"
    main([str(tmp_path / "set"), str(manifest), str(out)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0] == {"id": "00.wav", "audio_path": "../set/00.wav", "text": "text 0", "duration": 0.1}
    assert lines[12] == {
        "id": "f", "features_path": "out.jsonl.bytes#bytes=0+8&features=1x2.f32", "rows": 1, "cols": 2, "text": "",
        "duration": 0.01, "tokens": [1, 2],
    }  # fmt: skip
    check_signals(read(tmp_path, out).select(slice(12)), [noise(i, 1600) for i in range(12)])
    rejected, summary = capsys.readouterr().out.splitlines()
    assert rejected.startswith(f"rejected lonely.wav: {tmp_path}/set/lonely.wav: no text beside the audio")
    assert summary == f"13 utterances, 0.00 h, to {out}; embedded data in {out}.bytes; 1 rejected"


def test_a_folder_of_several_sets(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        jsonl(tmp_path / f"{name}.jsonl", {"audio_path": "/a.wav", "text": name, "duration": 1})
    for role, text in (("train", "train"), ("validation", "dev")):
        main([str(tmp_path), str(tmp_path / "out" / "m.jsonl"), "--role", role, "--force"])
        assert [utterance.text for utterance in read(tmp_path, tmp_path / "out" / "m.jsonl")] == [text]


def test_a_converted_set_can_be_moved_with_its_audio(tmp_path: Path) -> None:
    write(tmp_path / "set" / "audio" / "a.wav", noise(1))
    path = jsonl(tmp_path / "set" / "m.jsonl", {"audio_path": "audio/a.wav", "text": "a", "offset": 0.05})
    main([str(path), str(tmp_path / "set" / "manifests" / "m.jsonl")])
    (tmp_path / "set").rename(tmp_path / "moved")
    check_signals(read(tmp_path, tmp_path / "moved" / "manifests" / "m.jsonl"), [noise(1)[800:]])


def test_nothing_that_is_there_is_lost(tmp_path: Path) -> None:
    """Neither an existing OUT, nor an input, nor the embedded data of a manifest is overwritten."""
    a, b = (jsonl(tmp_path / f"{name}.jsonl", {"features": [[i, 1]], "text": "x"}) for i, name in enumerate("ab"))
    out = tmp_path / "out.jsonl"
    main([str(a), str(out)])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments, message in (
        (
            [a, out],
            r"OUT, the last argument, is .*out\.jsonl, which already exists: choose another name, or .* with --force",
        ),
        ([a, b, b, "--force"], r"b\.jsonl is also an input"),
        ([b], r"b\.jsonl is the only path: expected inputs and then the output, IN … OUT"),
        ([b, tmp_path / "out.tsv"], "out.tsv.bytes#"),
    ):
        with pytest.raises(UserError, match=message):
            main(list(map(str, arguments)))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    main([str(b), str(out), "--force"])
    assert (tmp_path / "out.jsonl.bytes").read_bytes() == before["out.jsonl.bytes"]
    (utterance,) = read(tmp_path, out)
    assert Location.parse(utterance.location).features().tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.jsonl", "out.parquet"], r"out.parquet: expected a name that ends in .jsonl, or in .tsv"),
        (["none.jsonl", "out.jsonl"], "none.jsonl: no such file or folder"),
    ],
)
def test_what_cannot_be_done_is_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main([str(tmp_path / name) for name in arguments])
    assert not list(tmp_path.iterdir())
