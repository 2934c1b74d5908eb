"""Order, exit code and figures of scripts/gpu_check.sh, with commands that only write the device to their files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUB = f"""#!/usr/bin/env bash
case "$*" in
    "-m benchmarks.device_results"*) exec {sys.executable} "$@" ;;
    "-m pytest"*) echo "13 passed in 1.00s"; exit ;;
    *"$FAILING"*) exit 3 ;;
esac
command="$*"
while [ $# -gt 0 ]; do
    [ "$1" = --json ] && echo "{{\\"device\\": \\"NVIDIA H200\\", \\"command\\": \\"$command\\"}}" > "$2"
    shift
done
exit 0
"""


@pytest.fixture
def check(tmp_path: Path):
    """Runs the script; a command that contains `failing` fails."""

    def run(failing: str, **variables: str) -> tuple[int, dict, str]:
        for name, content in (("python", STUB), ("nvidia-smi", "#!/usr/bin/env bash\n")):
            (tmp_path / name).write_text(content)
            (tmp_path / name).chmod(0o755)
        changed = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(tmp_path / "python"), "FAILING": failing,
            "OUT": str(tmp_path / "out"), "ASR_JAX_SHARED": str(tmp_path),
        }  # fmt: skip
        done = subprocess.run(
            [ROOT / "scripts/gpu_check.sh"], env=os.environ | changed | variables, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        out = tmp_path / "out/h200.json"
        return done.returncode, json.loads(out.read_text()) if out.exists() else {}, done.stdout

    return run


def test_each_family_is_trained_and_failures_are_named(check) -> None:
    code, content, output = check("--config configs/rnnt_base.py")
    families = {name.removeprefix("train_") for name in content["figures"] if name.startswith("train_")}
    assert len(families) == 10
    assert all((ROOT / f"configs/{name}.py").exists() for name in families)
    assert content["omitted"] == ["train_rnnt_base: exit code 3"]
    assert content["tests"] == ["13 passed in 1.00s"]
    assert {"kernels_f32", "kernels_bf16", "frontend", "inference_conformer"} < content["figures"].keys()
    command = content["figures"]["train_zipformer"]["command"]
    assert "--synthetic 16 --batch 37" in command  # 600 s, since there are no data
    assert "--trace" in command
    assert code == 1
    assert "gpu_check: omitted or failed: train_rnnt_base: exit code 3" in output
    code, content, _ = check("no command", FAMILIES="rnnt_base")
    assert code == 0
    assert content["omitted"] == []
    assert len(content["figures"]) == 16  # with the parts of the first call


def test_parts_without_time_are_named(check) -> None:
    code, content, output = check("no command", SECONDS_LEFT="5")
    assert (code, content) == (1, {})
    assert output.count("no time left") > 15
