"""Trains a model: `python -m asr_jax.train --config configs/zipformer.py [--field.name VALUE …]`.

Exit codes: 0 the run is complete; 1 it had begun and could not go on; 2 it could not begin.
"""

from collections.abc import Sequence

from asr_jax.command_line import parse_experiment, run_command


def main(arguments: Sequence[str]) -> None:
    experiment = parse_experiment(arguments, prog="python -m asr_jax.train")

    from asr_jax.core.processes import is_main, join  # after parsing: --help and mistakes need not wait for it
    from asr_jax.training.loop import train
    from asr_jax.training.run import CURVES, EVENTS

    join()
    summary = train(experiment)
    if not is_main():
        return
    if "continues" in summary:
        print(summary["continues"])
        return
    folder = summary["folder"]
    if summary.get("already"):
        print(f"already trained: {summary['update']} updates in {folder}; a longer run: --training.num-updates N")
    print(f"validation WER {summary['wer']:.2%}, best {summary['best_wer']:.2%}; checkpoint {summary['checkpoint']}")
    print(f"events {folder}/{EVENTS}; curves {folder}/{CURVES}; evaluate: python -m asr_jax.evaluate {folder} --data …")


if __name__ == "__main__":
    run_command(main)
