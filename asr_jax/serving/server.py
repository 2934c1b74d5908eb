"""Runs a service until SIGTERM or Ctrl-C: open requests are answered, and new ones are refused."""

import asyncio
import socket
import sys
from types import FrameType

import uvicorn

from asr_jax.serving.routes import app_of
from asr_jax.serving.service import Service

MAX_MESSAGE = 1 << 20
"""Largest message of a stream in bytes."""
MAX_CONNECTIONS = 1024
CLOSING_S = 5
"""Longest time in seconds for the connections that are open after the open requests are answered."""
READY_POLL_S = 0.1


class Server(uvicorn.Server):
    """A server that refuses requests with status 503 before it ends. A second signal ends it at once."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            app_of(service),
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            ws="websockets-sansio",
            ws_max_size=MAX_MESSAGE,
            ws_per_message_deflate=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=CLOSING_S,
            lifespan="on",
            loop="asyncio",  # uvloop forks the process to start others, which is not safe with the threads of JAX
        )
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to drain. The signal is not repeated at the end, so that the exit code is 0."""
        if self._service.is_draining:
            self.should_exit = self.force_exit = True
        self._service.is_draining = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        watch = asyncio.create_task(self._watch())
        try:
            await super().serve(sockets)
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        """Says when the service is ready, and ends the server when it is drained or has failed."""
        device, is_known = self._service.device, False
        while not self._service.is_draining and not device.failure:
            if device.is_ready.is_set() and not is_known:
                is_known = True
                print("ready", file=sys.stderr, flush=True)
            await asyncio.sleep(READY_POLL_S)
        if not device.failure:
            print("ending: open requests are answered, and new ones are refused", file=sys.stderr, flush=True)
            await self._service.drained()
        self.should_exit = True


def serve(service: Service, *, host: str, port: int) -> None:
    """Serves until a signal.

    Args:
        host: Address to listen at.
        port: Port to listen at. 0: any free one, which is printed.

    Raises:
        OSError: If the address is not free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        shown = f"[{host}]" if ":" in host else host
        print(f"listening at http://{shown}:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
        Server(service).run(sockets=[listening])
