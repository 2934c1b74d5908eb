"""Draws the dashboard of a run as it was after an update: `python scripts/draw_dashboard.py RUN UPDATE OUT.svg`."""

import asyncio
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

from asr_jax.core.text_files import json_line
from asr_jax.observe.events import FILE_NAME, read_events
from asr_jax.watching.dashboard import Dashboard

SIZE = (120, 42)


async def picture(path: Path, now_ms: float) -> str:
    app = Dashboard([path], [path.parent.name], now_ms=lambda: now_ms)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await asyncio.to_thread(app.views[0].reader.join)
        await pilot.pause()
        return app.export_screenshot(title="python -m asr_jax.watch")


def main(run: str, update: str, out: str) -> None:
    def is_before(event):
        return event["data"].get("update", 0) <= int(update)

    events = list(takewhile(is_before, read_events(Path(run) / FILE_NAME)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE_NAME
        path.write_text("".join(map(json_line, events)), encoding="utf-8")
        svg = asyncio.run(picture(path, events[-1]["timestamp_ms"]))
    Path(out).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
