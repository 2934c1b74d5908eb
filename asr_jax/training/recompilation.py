"""Everything is compiled before the first update; what is compiled later is named, with JAX's reason for it."""

import logging
from collections.abc import Callable
from types import TracebackType

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"


class CompileWatch:
    """While it is open, `tell(function, seconds, reason)` is called for everything that XLA compiles or loads."""

    def __init__(self, tell: Callable[[str, float, str], None]) -> None:
        self._tell = tell
        self._reasons = _Reasons()
        self._explained = False

    def __enter__(self) -> "CompileWatch":
        self._explained = jax.config.jax_explain_cache_misses
        jax.config.update("jax_explain_cache_misses", True)
        logging.getLogger("jax").addHandler(self._reasons)
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        jax.monitoring.unregister_event_duration_listener(self._heard)
        logging.getLogger("jax").removeHandler(self._reasons)
        jax.config.update("jax_explain_cache_misses", self._explained)

    def _heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILED:
            self._tell(str(kwargs.get("fun_name", "a function")), duration_secs, self._reasons.last())


class _Reasons(logging.Handler):
    """Keeps the last explanation that JAX logged."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def emit(self, utterance: logging.LogRecord) -> None:
        message = utterance.getMessage()
        if "TRACING CACHE MISS" in message:
            self._last = " ".join(message.split())

    def last(self) -> str:
        reason, self._last = self._last, ""
        return reason or "seen for the first time"
