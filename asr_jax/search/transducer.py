"""Settings of transducer searches."""

from dataclasses import dataclass

from asr_jax.core.errors import check_numbers
from asr_jax.search.base import Decoding


@dataclass(frozen=True)
class TransducerDecoding(Decoding):
    """Settings of the search of a transducer: greedy, on the device."""

    max_symbols: int = 10
    """Largest number of labels of one frame."""
    blank_penalty: float = 0.0
    """Number that is subtracted from the logits of the blank."""

    def __post_init__(self) -> None:
        check_numbers(self, "max_symbols", least=1)

    def __str__(self) -> str:
        parts = ["greedy"]
        if self.max_symbols != 10:
            parts.append(f"at most {self.max_symbols} labels per frame")
        if self.blank_penalty:
            parts.append(f"blank penalty {self.blank_penalty:g}")
        return ", ".join(parts)

    def digest(self) -> str:
        return f"transducer greedy {self.max_symbols} {self.blank_penalty:g}"
