"""The plugin as a real HTTP or HTTPS server in a thread, in a mood of one's choice."""

from __future__ import annotations

import mimetypes
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.vaultplugin import patch
from tests.vaultplugin.files import Files, version_of
from tests.vaultplugin.reply import Asked, Refused, Reply, json_reply

KEY = "plugin-key-51c0ffee"
NOTE_JSON = "application/vnd.olrapi.note+json"


@dataclass
class PluginStub:
    """`version` 3 to 6; `mood` is ok, slow, garbage, truncated, noise, redirect, or the status it answers all with.

    `always` is its one answer to everything. `waiting` requests came while it was slow.
    """

    root: Path
    version: int = 5
    mood: str = "ok"
    key: str = KEY
    address: str = ""
    asked: list[Asked] = field(default_factory=list)
    always: Reply | None = None
    has_root: bool = True
    """Whether the list of the vault itself is found."""
    waiting: int = 0
    connections: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        if asked.raw_path == "/":
            versions = {"obsidian": "1.0.0", "self": f"{self.version}.0.1"}
            known = {"status": "OK", "service": "stub", "versions": versions}
            return json_reply({**known, "authenticated": self._knows(asked)})
        if not self._knows(asked):
            return Refused(40101).reply
        try:
            with self.lock:
                return self._answer(asked)
        except Refused as refused:
            return refused.reply

    def _knows(self, asked: Asked) -> bool:
        return asked.headers.get("authorization") == f"Bearer {self.key}"

    def _answer(self, asked: Asked) -> Reply:
        if asked.raw_path == "/search/simple/" and asked.method == "POST":
            return self._search(asked)
        if not asked.raw_path.startswith("/vault/"):
            raise Refused(40400)
        if asked.raw_path.endswith("/"):
            return self._list(asked)
        if self.version >= 5 and self.files.behind_note(asked.segments):
            raise Refused(40054)
        content = self.files.content(asked.segments)
        self._check_conditions(asked, content)
        return getattr(self, f"_{asked.method.lower()}")(asked, content)  # type: ignore[no-any-return]

    @property
    def files(self) -> Files:
        return Files(self.root)

    def _search(self, asked: Asked) -> Reply:
        if not asked.query.get("query", "").strip():
            raise Refused(40090)
        default = None if self.version == 3 else 100
        length = int(asked.query["contextLength"]) if "contextLength" in asked.query else default
        return json_reply(self.files.search(asked.query["query"], length, -1 if self.version == 3 else 1))

    def _list(self, asked: Asked) -> Reply:
        if asked.method != "GET":
            raise Refused(40510)
        folder = "".join(f"{part}/" for part in asked.segments[:-1])
        names = self.files.names(folder)
        if not folder and not self.has_root:
            raise Refused(40400)
        if not names and (folder or self.version == 3):
            raise Refused(40400)
        return json_reply({"files": names})

    def _list_bare(self, asked: Asked) -> Reply:
        """A folder without its slash, which older versions do not list."""
        names = self.files.names("".join(f"{part}/" for part in asked.segments))
        if not names or self.version < 5:
            raise Refused(40400)
        return json_reply({"files": names})

    def _check_conditions(self, asked: Asked, content: bytes | None) -> None:
        """A plugin of version 3 does not know conditions."""
        if self.version < 5 or asked.method == "GET":
            return
        wanted = asked.headers.get("if-match")
        if wanted is not None and (content is None or wanted.strip('"') != version_of(content)):
            raise Refused(41200)
        if asked.headers.get("if-none-match") == "*" and content is not None:
            raise Refused(41200)

    def _get(self, asked: Asked, content: bytes | None) -> Reply:
        if content is None:
            return self._list_bare(asked)
        tag = f'"{version_of(content)}"' if self.version >= 5 else f'W/"{len(content):x}-x"'
        if asked.headers.get("accept") == NOTE_JSON:
            return json_reply(self._note(asked, content), kind=NOTE_JSON, ETag=tag)
        kind = mimetypes.guess_type(asked.segments[-1])[0] or "text/markdown"
        kind = "text/markdown; charset=utf-8" if kind == "text/markdown" else kind
        return Reply(200, content, {"Content-Type": kind, "ETag": tag})

    def _note(self, asked: Asked, content: bytes) -> dict[str, Any]:
        info = self.files.at(asked.segments).stat()
        stat = {"ctime": info.st_ctime * 1000, "mtime": info.st_mtime * 1000, "size": info.st_size}
        text = content.decode("utf-8", "replace")
        return {
            "path": "/".join(asked.segments),
            "content": text,
            "stat": stat,
            "frontmatter": patch.known(text),
            "tags": [],
        }

    def _put(self, asked: Asked, content: bytes | None) -> Reply:
        self.files.write(asked.segments, _text(asked.body) if asked.media.startswith("text/") else asked.body)
        return Reply()

    def _post(self, asked: Asked, content: bytes | None) -> Reply:
        if not asked.media.startswith("text/"):
            raise Refused(40010)
        before = content or b""
        if content is not None and not before.endswith(b"\n"):
            before += b"\n"
        self.files.write(asked.segments, before + _text(asked.body))
        return Reply()

    def _patch(self, asked: Asked, content: bytes | None) -> Reply:
        if content is None:
            raise Refused(40400)
        key, value = patch.instruction(asked, self.version)
        patched = patch.with_key(content.decode(), key, value).encode()
        self.files.write(asked.segments, patched)
        return Reply(200, patched, {"Content-Type": "text/markdown; charset=utf-8"})

    def _delete(self, asked: Asked, content: bytes | None) -> Reply:
        if content is None:
            raise Refused(40400)
        self.files.delete(asked.segments)
        return Reply()


def _text(body: bytes) -> bytes:
    """As the plugin's body parser decodes texts: without a byte order mark, and with nothing that is no UTF-8."""
    return body.decode("utf-8-sig", "replace").encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    stub: PluginStub

    def setup(self) -> None:
        super().setup()
        self.stub.connections += 1

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = Asked(self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        mood = self.stub.mood
        if mood == "slow":
            self.stub.waiting += 1
            self.stub.released.wait(30)
        if mood == "noise":
            self.stub.asked.append(asked)
            self.wfile.write(b"\x00\x01 this is no HTTP\r\n\r\n")
            self.close_connection = True
            return
        reply = self.stub.always or self._moody(mood) or self.stub.answer(asked)
        self._send(reply, short=mood == "truncated")

    do_PUT = do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _moody(self, mood: str) -> Reply | None:
        if mood == "garbage":
            return Reply(200, b"<html>DETAILS-OF-THE-PLUGIN</html>", {"Content-Type": "text/html"})
        if mood == "redirect":
            return Reply(302, b"", {"Location": "https://elsewhere.invalid/"})
        if mood.isdigit():
            return json_reply({"message": "DETAILS-OF-THE-PLUGIN", "errorCode": int(mood) * 100}, int(mood))
        return None

    def _send(self, reply: Reply, *, short: bool) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status != 204 or short:
            self.send_header("Content-Length", str(len(reply.body) + 1000 * short))
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = self.close_connection or short

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *args: Any) -> None:
        """A client that leaves is no failure of the test."""


@contextmanager
def plugin(root: Path, version: int = 5, tls: tuple[Path, Path] | None = None, port: int = 0) -> Iterator[PluginStub]:
    """The running stub; `tls` is (certificate, key)."""
    root.mkdir(parents=True, exist_ok=True)
    stub = PluginStub(root, version)
    server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"stub": stub}))
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    stub.address = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stub
    finally:
        stub.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
