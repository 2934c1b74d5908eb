"""Duration of smoke runs of the small configs with empty caches: `python benchmarks/smoke_runs.py [--json OUT]`.

Each run is the command `python -m asr_jax.train --config CONFIG --smoke`. Processor time is the sum over all cores, and
contains imports, reading, compilation, training, validation and the checkpoint. Without waiting, the wall time is
between half and all of the processor time on two cores. The load is the number of running processes before and after
the run; both times grow with it.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from asr_jax.core.run_folder import EVENTS
from asr_jax.observe.events import read_events
from asr_jax.observe.tables import print_table
from asr_jax.training.smoke import SUFFIX

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("zipformer", "conformer", "fastconformer", "squeezeformer", "quartznet")
CASES: tuple[tuple[str, dict[str, str]], ...] = (
    ("quickstart", {}),
    *(("read_speech", {"MODEL": model}) for model in MODELS),
    *(("digits", {"MODEL": model}) for model in (*MODELS, "rnnt", "zipformer_transducer")),
    *(("wav2vec2_tiny", {"STAGE": stage}) for stage in ("pretrain", "finetune")),
)
"""Name of the config and variables of its environment."""


def processor_s() -> float:
    """Processor time of all ended child processes, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def smoke_run(config: str, variables: dict[str, str], data: list[str]) -> dict[str, Any]:
    """Runs a command with empty caches in a temporary folder and measures it.

    Args:
        config: Name of the config.
        variables: Variables of its environment.
        data: Manifests for training and for validation.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [
            *(sys.executable, "-m", "asr_jax.train", "--config", ROOT / f"configs/{config}.py", "--smoke"),
            *("--run-dir", folder / "run", "--data.train", data[0], "--data.validation", data[1]),
        ]
        caches = {"XDG_CACHE_HOME": str(folder / "cache"), "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
        load, used, began = os.getloadavg()[0], processor_s(), time.monotonic()
        subprocess.run(command, env=os.environ | variables | caches, check=True, stdout=subprocess.DEVNULL)
        wall_s, used = time.monotonic() - began, processor_s() - used
        (compiled,) = read_events(folder / f"run{SUFFIX}" / EVENTS, "compile")
    return {
        "config": config, "variant": " ".join(variables.values()), "processor_s": round(used, 1),
        "wall_s": round(wall_s, 1), "compilation_wall_s": compiled["data"]["seconds"],
        "load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for config in ("quickstart", "read-speech", "digits"):
        manifests = [f"data/{config.replace('-', '_')}/manifests/{name}.jsonl" for name in ("train", "validation")]
        parser.add_argument(f"--{config}", nargs=2, metavar=("TRAIN", "VALIDATION"), default=manifests)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for config, variables in CASES:
        rows.append(smoke_run(config, variables, getattr(given, config.replace("wav2vec2_tiny", "read_speech"))))
        print(rows[-1], flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))
    print_table(rows, title="Smoke runs with empty caches")


if __name__ == "__main__":
    main()
