"""Pages of the model zoo: one for each config, from its docstring and the figures in benchmarks/results."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import jax
from markdown_text import code, markdown, table, toctree
from results_tables import DEVICES, RESULTS, compiled, hours_per_hour, read

from asr_jax.cli.benchmark.systems import tokenizer_without_data
from asr_jax.cli.command_line import load_config
from asr_jax.core.pytrees import num_elements
from asr_jax.core.targets import ACCELERATORS
from asr_jax.inference.model import example_batch, make_model

CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
NEEDED = ("Data", "Command", "Expected", "Time")
"""Sections that the docstring of each config has."""
TRAINED = {
    "an4": "an4",
    "digits": "other-corpora",
    "quickstart": "other-corpora",
    "read_speech": "other-corpora",
    "wav2vec2_tiny": "other-corpora",
}
"""Configs that were trained with this package, with the section of docs/results.md that has their error rates."""
STEPS_OF = {
    "quartznet": "quartznet_librispeech",
    "wav2vec2_base_ctc": "wav2vec2_finetune",
    "wav2vec2_base_hourglass": "wav2vec2_pretrain",
}
"""Configs of the measured steps that are named otherwise in benchmarks/results."""
ABOUT = """# Model zoo

A recipe is a config with its data, its command, and the error rate that is expected with its source. **Trained here**
means that [results](/results.md) has error rates that this package reached. All other error rates are those of the
authors of the recipe. This package publishes no weights of these recipes; [published models](/published-models.md) are
those of other systems."""
DERIVED = """**Derived** from programs that were compiled for these devices and not run: the largest batch of the
durations of LibriSpeech that fits, and the hours of audio in an hour if products ran at the peak of bfloat16 or bytes
at that of the memory, whichever takes longer. Training takes longer
([results](/results.md#programs-for-accelerators-compiled-and-not-run)). The A100 is computed from the program of the
H100."""
STEPS = "**Measured** training steps in float32 on two CPU cores, of this or another size (the files have the details):"
SMOKE = "**Measured** smoke runs on two CPU cores, without caches: 20 updates, a validation and a checkpoint."


def sections(config: str) -> tuple[str, dict[str, str]]:
    """Returns the first line of the docstring of a config, and its sections, such as Data and Command."""
    text = ast.get_docstring(ast.parse((CONFIGS / f"{config}.py").read_text(encoding="utf-8"))) or ""
    summary, _, rest = text.partition("\n\n")
    pairs = re.findall(r"^([A-Z]\w+) {2,}(.*(?:\n(?: .*)?$)*)", rest, re.MULTILINE)
    return summary, {name: re.sub(r"^ {10}", "", lines, flags=re.MULTILINE).strip() for name, lines in pairs}


def pages() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each page."""
    names, rows = sorted(path.stem for path in CONFIGS.glob("*.py")), []
    for name in names:
        summary, parts = sections(name)
        size, status = f"{parameters(name) / 1e6:.1f} M", "not trained yet"
        if name in TRAINED:
            status = f"[trained here](/results.md#{TRAINED[name]})"
        data = re.split(r"(?<=\.)\s+(?=[A-Z])", parts["Data"])[0]
        expected = re.split(r"\s*(?:Not yet measured|Differences:)", parts["Expected"])[0]
        cells = [markdown(" ".join(each.split())) for each in (summary, data, expected)]
        rows.append([f"[{name}]({name}.md)", cells[0], size, *cells[1:], status])
        computed = f"{size} parameters (computed from its shapes; 29 labels if they are letters or words)"
        text = [f"# {name}", markdown(summary), f"`configs/{name}.py`, {computed}, {status}."]
        for title, section in parts.items():
            is_code = title in ("Command", "LM") or section.startswith("python")
            text += [f"## {title}", f"```\n{section}\n```" if is_code else markdown(section)]
        yield f"zoo/{name}.md", "\n\n".join([*text, *figures(name)])
    header = "recipe | model | parameters | data | expected | status"
    yield "zoo/index.md", "\n\n".join([ABOUT, table(header, rows), toctree(names)])


def parameters(config: str) -> int:
    experiment, key = load_config(str(CONFIGS / f"{config}.py")), jax.random.key(0)
    model = make_model(experiment, tokenizer_without_data(experiment.data.tokenizer, None))
    keys = dict.fromkeys(("params", "mask", "dropout"), key)
    return num_elements(jax.eval_shape(lambda: model.init(keys, example_batch(model), step=None))["params"])


def figures(config: str) -> Iterator[str]:
    """Yields what is known of time and memory, and whether it was measured or derived."""
    of = {target: programs for name, target, *programs in compiled() if name == config and programs[1]}
    rows = []
    for device, target in DEVICES.items():
        if target in of:
            gradient, update = of[target]
            batch = f"{gradient['rows']} × {gradient['seconds']:.1f} s"
            hours = hours_per_hour(gradient, update, ACCELERATORS[device])
            rows.append(
                [
                    "TPU v5e" if device == "v5e" else device.upper(),
                    batch,
                    f"{gradient['memory GB']:.1f} GB",
                    f"{hours:,.0f}",
                ]
            )
    yield "## Time and memory by device"
    if rows:
        yield DERIVED
        yield table("device | batch | memory of the program | audio-hours per hour, at most", rows)
    steps = []
    for path in sorted(RESULTS.glob("model_*_cpu.json")):
        step = read(path.stem)
        if STEPS_OF.get(step["config"], step["config"]) == config:
            size, seconds = step["cost"]["parameters"] / 1e6, median(step["times_s"]["step"])
            steps.append(
                [f"{size:.1f} M", f"{step['rows']} × {step['seconds']:g} s", f"{seconds:.2f} s", code(path.name)]
            )
    if steps:
        yield STEPS
        yield table("parameters | batch | median | in benchmarks/results", steps)
    smoke = [
        [each["variant"] or "–", f"{each['wall_s']:.0f}"] for each in read("smoke_runs_cpu") if each["config"] == config
    ]
    if smoke:
        yield SMOKE
        yield table("variant | seconds", smoke)
    if not rows and not steps and not smoke:
        yield "Nothing is measured or derived yet."
