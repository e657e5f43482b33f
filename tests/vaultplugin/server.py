"""The plugin stub: an HTTP or HTTPS server in a thread, which can simulate failures."""

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
from tests.vaultplugin.reply import PluginError, PluginRequest, Reply, json_reply

KEY = "plugin-key-51c0ffee"
NOTE_JSON = "application/vnd.olrapi.note+json"


@dataclass
class PluginStub:
    """`version` is 3 to 6; `behaviour` is ok, slow, garbage, truncated, noise, redirect, or the status of each reply.

    `fixed_reply` is the reply to every request. `waiting_requests` counts the requests received while it was slow;
    `release` lets them continue.
    """

    root: Path
    version: int = 5
    behaviour: str = "ok"
    key: str = KEY
    address: str = ""
    requests: list[PluginRequest] = field(default_factory=list)
    fixed_reply: Reply | None = None
    has_root: bool = True
    """Whether the listing of the vault root exists."""
    waiting_requests: int = 0
    connections: int = 0
    release: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def respond(self, request: PluginRequest) -> Reply:
        self.requests.append(request)
        if request.raw_path == "/":
            versions = {"obsidian": "1.0.0", "self": f"{self.version}.0.1"}
            status = {"status": "OK", "service": "stub", "versions": versions}
            return json_reply({**status, "authenticated": self._is_authenticated(request)})
        if not self._is_authenticated(request):
            return PluginError(40101).reply
        try:
            with self.lock:
                return self._respond(request)
        except PluginError as error:
            return error.reply

    def _is_authenticated(self, request: PluginRequest) -> bool:
        return request.headers.get("authorization") == f"Bearer {self.key}"

    def _respond(self, request: PluginRequest) -> Reply:
        if request.raw_path == "/search/simple/" and request.method == "POST":
            return self._search(request)
        if not request.raw_path.startswith("/vault/"):
            raise PluginError(40400)
        if request.raw_path.endswith("/"):
            return self._list(request)
        if self.version >= 5 and self.files.is_below_note(request.segments):
            raise PluginError(40054)
        content = self.files.content(request.segments)
        self._check_conditions(request, content)
        return getattr(self, f"_{request.method.lower()}")(request, content)  # pyrefly: ignore[no-any-return-explicit] - one of the methods below

    @property
    def files(self) -> Files:
        return Files(self.root)

    def _search(self, request: PluginRequest) -> Reply:
        if not request.query.get("query", "").strip():
            raise PluginError(40090)
        default = None if self.version == 3 else 100
        length = int(request.query["contextLength"]) if "contextLength" in request.query else default
        return json_reply(self.files.search(request.query["query"], length, -1 if self.version == 3 else 1))

    def _list(self, request: PluginRequest) -> Reply:
        if request.method != "GET":
            raise PluginError(40510)
        folder = "".join(f"{part}/" for part in request.segments[:-1])
        names = self.files.names(folder)
        if not folder and not self.has_root:
            raise PluginError(40400)
        if not names and (folder or self.version == 3):
            raise PluginError(40400)
        return json_reply({"files": names})

    def _list_without_slash(self, request: PluginRequest) -> Reply:
        """List a folder whose path lacks the trailing slash; versions before 5 do not."""
        names = self.files.names("".join(f"{part}/" for part in request.segments))
        if not names or self.version < 5:
            raise PluginError(40400)
        return json_reply({"files": names})

    def _check_conditions(self, request: PluginRequest, content: bytes | None) -> None:
        """Check the conditional headers; versions before 5 ignore them."""
        if self.version < 5 or request.method == "GET":
            return
        if_match = request.headers.get("if-match")
        if if_match is not None and (content is None or if_match.strip('"') != version_of(content)):
            raise PluginError(41200)
        if request.headers.get("if-none-match") == "*" and content is not None:
            raise PluginError(41200)

    def _get(self, request: PluginRequest, content: bytes | None) -> Reply:
        if content is None:
            return self._list_without_slash(request)
        tag = f'"{version_of(content)}"' if self.version >= 5 else f'W/"{len(content):x}-x"'
        if request.headers.get("accept") == NOTE_JSON:
            return json_reply(self._note(request, content), kind=NOTE_JSON, ETag=tag)
        kind = mimetypes.guess_type(request.segments[-1])[0] or "text/markdown"
        kind = "text/markdown; charset=utf-8" if kind == "text/markdown" else kind
        return Reply(200, content, {"Content-Type": kind, "ETag": tag})

    def _note(self, request: PluginRequest, content: bytes) -> dict[str, Any]:
        file_stat = self.files.resolve_path(request.segments).stat()
        stat = {"ctime": file_stat.st_ctime * 1000, "mtime": file_stat.st_mtime * 1000, "size": file_stat.st_size}
        text = content.decode("utf-8", "replace")
        return {
            "path": "/".join(request.segments),
            "content": text,
            "stat": stat,
            "frontmatter": patch.read_frontmatter(text),
            "tags": [],
        }

    def _put(self, request: PluginRequest, content: bytes | None) -> Reply:
        self.files.write(request.segments, _text(request.body) if request.media.startswith("text/") else request.body)
        return Reply()

    def _post(self, request: PluginRequest, content: bytes | None) -> Reply:
        if not request.media.startswith("text/"):
            raise PluginError(40010)
        before = content or b""
        if content is not None and not before.endswith(b"\n"):
            before += b"\n"
        self.files.write(request.segments, before + _text(request.body))
        return Reply()

    def _patch(self, request: PluginRequest, content: bytes | None) -> Reply:
        if content is None:
            raise PluginError(40400)
        key, value = patch.parse_patch(request, self.version)
        patched = patch.set_key(content.decode(), key, value).encode()
        self.files.write(request.segments, patched)
        return Reply(200, patched, {"Content-Type": "text/markdown; charset=utf-8"})

    def _delete(self, request: PluginRequest, content: bytes | None) -> Reply:
        if content is None:
            raise PluginError(40400)
        self.files.delete(request.segments)
        return Reply()


def _text(body: bytes) -> bytes:
    """Decode like the plugin's body parser: drop a byte order mark and replace invalid UTF-8."""
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
        request = PluginRequest(
            self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body
        )
        behaviour = self.stub.behaviour
        if behaviour == "slow":
            self.stub.waiting_requests += 1
            self.stub.release.wait(30)
        if behaviour == "noise":
            self.stub.requests.append(request)
            self.wfile.write(b"\x00\x01 this is no HTTP\r\n\r\n")
            self.close_connection = True
            return
        reply = self.stub.fixed_reply or self._misbehave(behaviour) or self.stub.respond(request)
        self._send(reply, short=behaviour == "truncated")

    do_PUT = do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _misbehave(self, behaviour: str) -> Reply | None:
        if behaviour == "garbage":
            return Reply(200, b"<html>DETAILS-OF-THE-PLUGIN</html>", {"Content-Type": "text/html"})
        if behaviour == "redirect":
            return Reply(302, b"", {"Location": "https://elsewhere.invalid/"})
        if behaviour.isdigit():
            return json_reply({"message": "DETAILS-OF-THE-PLUGIN", "errorCode": int(behaviour) * 100}, int(behaviour))
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

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the request log."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnect."""


@contextmanager
def plugin(root: Path, version: int = 5, tls: tuple[Path, Path] | None = None, port: int = 0) -> Iterator[PluginStub]:
    """Run the stub until the end of the block; `tls` is (certificate, key)."""
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
        stub.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
