"""Former names of modules, with which old configs and run folders still load.

Modules that a config file or a script imports, an experiment.json refers to, or a command line runs are listed.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import CodeType, ModuleType

MOVED = {
    "asr_jax.audio.augment": "asr_jax.audio.augmentation",
    "asr_jax.command_line": "asr_jax.cli.command_line",
    "asr_jax.data.buckets": "asr_jax.data.batching.buckets",
    "asr_jax.data.dataset": "asr_jax.data.batching.dataset",
    "asr_jax.data.downloads": "asr_jax.data.corpora.downloads",
    "asr_jax.data.filters": "asr_jax.data.batching.filters",
    "asr_jax.data.locations": "asr_jax.data.manifests.locations",
    "asr_jax.data.manifest": "asr_jax.data.manifests.manifest",
    "asr_jax.data.mixing": "asr_jax.data.batching.mixing",
    "asr_jax.data.reading": "asr_jax.data.manifests.reading",
    "asr_jax.data.speeds": "asr_jax.data.batching.speeds",
    "asr_jax.data.synthetic": "asr_jax.data.corpora.synthetic",
    "asr_jax.decoding": "asr_jax.search",
    "asr_jax.decoding.ctc": "asr_jax.search.ctc",
    "asr_jax.decoding.hypotheses": "asr_jax.search.hypotheses",
    "asr_jax.decoding.rerank": "asr_jax.search.rerank",
    "asr_jax.decoding.word_scores": "asr_jax.search.word_scores",
    "asr_jax.text.tokenizer": "asr_jax.text.tokenizers",
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, _Loader()) if fullname in MOVED else None


class _Loader(importlib.abc.InspectLoader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Returns the module of the present name. Its classes therefore exist only once."""
        module = importlib.import_module(MOVED[spec.name])
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's own `__spec__`; the module was executed under its present name."""
        module.__spec__ = self._own_spec

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the code of the module of the present name; `python -m` needs it."""
        spec = importlib.util.find_spec(MOVED[fullname])
        assert spec
        assert isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_code(MOVED[fullname])

    def get_source(self, fullname: str) -> str | None:
        """Returns None: there is no source under the former name."""
        return None


def find_moved_modules() -> None:
    """Makes `import` find modules by their former names."""
    # Ours must come first: other finders would execute asr_jax/search/ctc.py again as asr_jax.decoding.ctc.
    sys.meta_path.insert(0, _Finder())
