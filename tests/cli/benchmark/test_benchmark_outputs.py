"""An output file that cannot be written is refused before any measurement."""

import pytest

from asr_jax.cli.benchmark.command import main
from asr_jax.core.errors import UserError


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "--data", "none.jsonl"],
        ["inference", "--config", "tests/toy_config.py"],
        ["train", "--config", "tests/toy_config.py", "--synthetic"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_json_that_cannot_be_written(arguments, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/out\.json cannot be written") as caught:
        main([*arguments, "--json", str(tmp_path / "file" / "out.json")])
    assert caught.value.exit_code == 2
