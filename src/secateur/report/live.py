"""A running training in the browser: its report page on localhost, drawn again whenever the run has moved on."""

from __future__ import annotations

import errno
import html
import threading
from collections.abc import Callable
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from secateur.experiments.rundir import RunDirectory, RunError

HOST = "127.0.0.1"  # this machine only: a run is nobody else's business

# Asks every two seconds whether the run has moved on; a reload keeps the reader's place on the page.
_SCRIPT = """
<script>
(() => {
  const known = "%s";
  setInterval(async () => {
    try {
      const answer = await fetch("state", {cache: "no-store"});
      if (answer.ok && (await answer.text()) !== known) location.reload();
    } catch { /* the server has gone: the page stays as it is */ }
  }, 2000);
})();
</script>
"""
_WAITING = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>%s</title></head><body style="font: 1rem sans-serif; margin: 2rem"><h1>%s</h1>
<p>There is no page of this run yet: %s</p><p>It will appear here by itself.</p></body></html>"""


def serve(
    directory: RunDirectory, port: int = 0, *, render: Callable[[list[RunDirectory]], str] | None = None
) -> ThreadingHTTPServer:
    """Return a server of a run's page, listening on localhost; port 0 is any free one. `serve_forever` starts it.

    `render` draws the page of a list of runs; without it `secateur report` draws.
    """
    if not directory.path.is_dir():
        raise RunError(f"{directory.path} does not exist: give the directory of a run, begun or finished")
    if render is None:
        from secateur.report.page import render_page

        render = render_page
    pages = _Pages(directory, render)
    pages.page()  # a library that is missing shows now, not to the first reader

    class Handler(BaseHTTPRequestHandler):
        """Answers with the page and with the state it belongs to, to readers on this machine."""

        def do_GET(self) -> None:
            name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
            if name not in (HOST, "localhost"):  # a page elsewhere that has itself resolved to this machine
                self.send_error(HTTPStatus.FORBIDDEN, "ask for 127.0.0.1 or localhost")
            elif self.path == "/":
                self._answer("text/html; charset=utf-8", pages.page())
            elif self.path == "/state":
                self._answer("text/plain; charset=utf-8", state_of(directory))
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, kind: str, text: str) -> None:
            content = text.encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Keep silent: a line every two seconds helps nobody."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise RunError(f"port {port} is taken: --port 0 finds a free one") from error
        raise


class _Pages:
    """Draws the page when it is asked for and the run has moved on since, one reader at a time."""

    def __init__(self, directory: RunDirectory, render: Callable[[list[RunDirectory]], str]) -> None:
        self._directory, self._render = directory, render
        self._lock = threading.Lock()
        self._state, self._page = "", ""

    def page(self) -> str:
        with self._lock:
            state = state_of(self._directory)  # before the page is drawn: what comes meanwhile is seen by the next look
            if state != self._state:
                self._page = with_updates(self._draw(), state)
                self._state = state
            return self._page

    def _draw(self) -> str:
        try:
            return self._render([self._directory])
        except (RunError, OSError, ValueError) as error:  # a file may change under the reader's hands
            name = html.escape(self._directory.path.name)
            return _WAITING % (name, name, html.escape(str(error)))


def with_updates(page: str, state: str) -> str:
    """Return a page that reloads itself when the state is no longer this one."""
    before, end, after = page.rpartition("</body>")
    return f"{before}{_SCRIPT % state}{end}{after}" if end else page + _SCRIPT % state


def state_of(directory: RunDirectory) -> str:
    """Return a text that changes whenever a file of the run does."""
    files = []
    for path in sorted(directory.path.glob("**/*")):
        try:
            if path.is_file() and not path.name.startswith(".") and path.suffix != ".html":
                facts = path.stat()
                files.append((str(path.relative_to(directory.path)), facts.st_mtime_ns, facts.st_size))
        except FileNotFoundError:  # renamed between the two looks
            continue
    return sha256(repr(files).encode()).hexdigest()[:16]
