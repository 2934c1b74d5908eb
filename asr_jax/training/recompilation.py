"""Detection of compilations after the first update, with JAX's explanation of each."""

import logging
from collections.abc import Callable
from types import TracebackType

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"


class CompileWatch:
    """Context manager that calls `tell(function, seconds, reason)` for each program that XLA compiles or loads."""

    def __init__(self, tell: Callable[[str, float, str], None]) -> None:
        self._tell = tell
        self._reasons = _Reasons()
        self._explained = False

    def __enter__(self) -> "CompileWatch":
        self._explained = jax.config.jax_explain_cache_misses
        jax.config.update("jax_explain_cache_misses", True)
        logging.getLogger("jax").addHandler(self._reasons)
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_event)
        logging.getLogger("jax").removeHandler(self._reasons)
        jax.config.update("jax_explain_cache_misses", self._explained)

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILED:
            self._tell(str(kwargs.get("fun_name", "a function")), duration_secs, self._reasons.last())


class _Reasons(logging.Handler):
    """Log handler that keeps JAX's last explanation of a cache miss."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "TRACING CACHE MISS" in message:
            self._last = " ".join(message.split())

    def last(self) -> str:
        reason, self._last = self._last, ""
        return reason or "first call of the function"
