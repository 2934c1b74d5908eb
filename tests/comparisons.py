"""Prints the comparisons with a tolerance that came close to their limits.

The tests record them in the file named by the environment variable ASR_JAX_COMPARISONS (`tests/support.py`), one JSON
object per line: the id of the test, the line and name of the comparison, and `share`, the difference divided by its
limit.
"""

import argparse
import json
from pathlib import Path


def main() -> None:
    """Prints comparisons with a share above `--above` in any of several files, largest first, one column per file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="recorded files, NAME.jsonl")
    parser.add_argument("--above", type=float, default=0.5)
    options = parser.parse_args()
    names = [path.stem for path in options.files]
    shares: dict[tuple[str, str], dict[str, float]] = {}
    for path in options.files:
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            in_files = shares.setdefault((entry["test"], entry["what"]), {})
            in_files[path.stem] = max(entry["share"], in_files.get(path.stem, 0.0))
    near = {place: each for place, each in shares.items() if max(each.values()) > options.above}
    print(f"{len(shares)} comparisons, {len(near)} of them above {options.above} of their limits in a run:")
    print("  ".join(f"{name:>8}" for name in names))
    for (test, what), each in sorted(near.items(), key=lambda row: -max(row[1].values())):
        columns = [f"{each[name]:8.3f}" if name in each else f"{'–':>8}" for name in names]
        print("  ".join(columns) + f"  {test}  {what}")


if __name__ == "__main__":
    main()
