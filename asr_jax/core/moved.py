"""Former names of modules: configs and run folders that were written with them still load.

Only modules that a config file imports, an experiment.json names, or a command line runs are listed.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import CodeType, ModuleType

MOVED = {
    "asr_jax.audio.augment": "asr_jax.audio.augmentation",
    "asr_jax.data.buckets": "asr_jax.data.batching.buckets",
    "asr_jax.data.dataset": "asr_jax.data.batching.dataset",
    "asr_jax.data.filters": "asr_jax.data.batching.filters",
    "asr_jax.data.mixing": "asr_jax.data.batching.mixing",
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
        """The module of the present name itself, so that its classes exist once."""
        module = importlib.import_module(MOVED[spec.name])
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Executes nothing: the module has been executed under its present name, which its `__spec__` keeps."""
        module.__spec__ = self._own_spec

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        spec = importlib.util.find_spec(MOVED[fullname])
        assert spec
        assert isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_code(MOVED[fullname])

    def get_source(self, fullname: str) -> str | None:
        """None: the source is that of the present name."""
        return None


def find_moved_modules() -> None:
    """Lets `import` find modules by their former names."""
    # First of all finders: another one would execute asr_jax/search/ctc.py again as asr_jax.decoding.ctc.
    sys.meta_path.insert(0, _Finder())
