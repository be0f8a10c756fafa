"""The report page of a run in progress, served on localhost and updated in place whenever the run has changed."""

from __future__ import annotations

import errno
import html
import threading
from collections.abc import Callable
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from secateur.experiments.directory import RunDirectory
from secateur.report.page.markup import with_code
from secateur.results import RunError

HOST = "127.0.0.1"  # this machine only

# Asks every two seconds whether the run has changed, and puts the changes into the page.
_SCRIPT = """
<script>
(() => {
  let known = "%s";
  const asked = async (path) => {
    const answer = await fetch(path, {cache: "no-store"});
    return answer.ok ? answer.text() : null;
  };
  const look = async () => {
    try {
      const state = await asked("state");
      if (state !== null && state !== known) {
        const page = await asked("./");
        if (typeof updatePage !== "function" || !(await updatePage(page))) return location.reload();
        known = state;
      }
    } catch { /* the server has ended: the page stays as it is */ }
    setTimeout(look, 2000);
  };
  setTimeout(look, 2000);
})();
</script>
"""
_WAITING = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>%s</title></head><body style="font: 1rem sans-serif; margin: 2rem"><h1>%s</h1>
<p>This run has no page yet: %s</p><p>The page will appear here by itself.</p></body></html>"""


def serve(
    directory: RunDirectory, port: int = 0, *, render: Callable[[list[RunDirectory]], str] | None = None
) -> ThreadingHTTPServer:
    """Return a server of a run's page, listening on localhost; port 0 is any free one. `serve_forever` starts it.

    `render` draws the page of a list of runs; the default is `render_page`.
    """
    if not directory.path.is_dir():
        raise RunError(f"{directory.path} does not exist: give the directory of a run, begun or finished")
    if render is None:
        from secateur.report.page.render import render_page

        render = render_page
    pages = _Pages(directory, render)
    pages.page()  # a missing library is reported now, not at the first request

    class Handler(BaseHTTPRequestHandler):
        """Answers with the page and with its state, to requests from this machine."""

        def do_GET(self) -> None:
            name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
            if name not in (HOST, "localhost"):  # another site's name may resolve to this machine (DNS rebinding)
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
            """Print nothing: the page asks every two seconds."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise RunError(f"port {port} is taken: --port 0 finds a free one") from error
        raise


class _Pages:
    """Draws the page at a request if the run has changed since the last one, one request at a time."""

    def __init__(self, directory: RunDirectory, render: Callable[[list[RunDirectory]], str]) -> None:
        self._directory, self._render = directory, render
        self._lock = threading.Lock()
        self._state, self._page = "", ""

    def page(self) -> str:
        with self._lock:
            state = state_of(self._directory)  # before drawing: later changes are seen at the next request
            if state != self._state:
                self._page = with_updates(self._draw(), state)
                self._state = state
            return self._page

    def _draw(self) -> str:
        try:
            return self._render([self._directory])
        except (RunError, OSError, ValueError) as error:  # a file may change while it is read
            name = html.escape(self._directory.path.name)
            return _WAITING % (name, name, with_code(str(error)))


def with_updates(page: str, state: str) -> str:
    """Return a page that updates itself when the state is no longer this one."""
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
        except FileNotFoundError:  # renamed meanwhile
            continue
    return sha256(repr(files).encode()).hexdigest()[:16]
