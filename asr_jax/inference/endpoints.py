"""Endpoints: rules by which an utterance of a stream ends."""

from asr_jax.core.settings import NonNegativeFloat, settings


@settings
class Endpoints:
    """Settings of three rules. An utterance ends if one of them holds; 0 switches a rule off.

    Source: `EndpointRule` in csrc/endpoint.h of k2-fsa/sherpa-onnx, with the same defaults.
    """

    silence_s: NonNegativeFloat = 2.4
    """Duration of silence in seconds without any text before it."""
    pause_s: NonNegativeFloat = 1.2
    """Duration of silence in seconds after text."""
    longest_s: NonNegativeFloat = 20.0
    """Duration of an utterance in seconds."""

    def reached(self, *, has_text: bool, silence_s: float, duration_s: float) -> bool:
        """Returns whether an utterance ends.

        Args:
            has_text: Whether a label was found in it.
            silence_s: Duration of the blanks at its end in seconds.
            duration_s: Duration of the utterance so far in seconds.
        """
        rules = [(self.pause_s if has_text else self.silence_s, silence_s), (self.longest_s, duration_s)]
        return any(least and found >= least for least, found in rules)


ENDPOINTS = Endpoints()
"""The rules of sherpa-onnx."""
