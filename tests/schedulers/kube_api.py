"""A small API server of Kubernetes for one test process: real TLS, real verbs and status codes, objects in memory, three controllers.

It speaks what the adapter leans on: get, list (labels, pages), watch, create, merge patch, delete with preconditions, Status
objects, SelfSubjectAccessReview; tokens with rights. Job, JobSet and garbage collection go on after each write, as far as tests need them.
"""

import json
import re
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

import trustme
from kube_controllers import GROUPS, Controllers, Refused, Store

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>status|binding))?)?"
)
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class ApiServer:
    """Listens on 127.0.0.1. `rights`: for each token what it may do ((verb, plural) pairs), or None for all."""

    def __init__(self, folder: Path) -> None:
        self.store = Store()
        self.controllers = Controllers(self.store)
        self.rights: dict[str, set[tuple[str, str]] | None] = {"admin": None}
        self.asked: list[str] = []
        self.fault: Callable[[str, str], bytes | None] | None = None
        self.before: Callable[[str, str], None] | None = None
        self.folder = folder
        authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.server = _Server(("127.0.0.1", 0), _handler(self))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"
        self.thawed = threading.Event()
        self.thawed.set()
        self.closing = False
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing = True
        self.thawed.set()
        with self.store.change:
            self.store.change.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)

    def kubeconfig(self, token: str = "admin") -> Path:
        path = self.folder / f"kubeconfig-{token}"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                }
            )
        )
        return path

    def handle(self, token: str, verb: str, path: str, query: dict[str, str], body: dict | None) -> tuple[int, object]:
        if token not in self.rights:
            raise Refused(401, "Unauthorized", "Unauthorized")
        if path == _REVIEW and verb == "create":
            asked = body["spec"]["resourceAttributes"]
            return 201, {**body, "status": {"allowed": self._may(token, asked["verb"], asked["resource"])}}
        where = _PATH.fullmatch(path)
        if where is None or where["plural"] not in GROUPS.get((where["group"] or "", where["version"]), {}):
            return 404, "404 page not found\n"
        plural, namespace, name = where["plural"], unquote(where["namespace"]), unquote(where["name"] or "")
        if not self._may(token, verb, plural):
            words = f'{plural} "{name}" is forbidden: User "{token}" cannot {verb} resource "{plural}" in the namespace "{namespace}"'
            raise Refused(403, "Forbidden", words, name)
        with self.store.change:
            if verb == "list":
                return 200, self._list(plural, namespace, query)
            if verb == "create" and not name:
                return 201, self.controllers.settle(
                    self.store.add(plural, {**body, "metadata": {**body["metadata"], "namespace": namespace}})
                )
            thing = self.store.objects.get((plural, namespace, name))
            if thing is None:
                raise Refused(404, "NotFound", f'{plural} "{name}" not found', name)
            if where["sub"] == "binding":
                thing["spec"]["nodeName"] = body["target"]["name"]
                return 201, self.controllers.settle(self.store.put(plural, thing))
            return 200, getattr(self, f"_{verb}")(plural, thing, body)

    def _may(self, token: str, verb: str, plural: str) -> bool:
        allowed = self.rights[token]
        return allowed is None or (verb, plural) in allowed

    def _list(self, plural: str, namespace: str, query: dict[str, str]) -> dict:
        wanted = [part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part]
        found = [
            thing
            for thing in self.store.listed(plural, namespace)
            if all(thing["metadata"].get("labels", {}).get(key) == value for key, value in wanted)
        ]
        first, most = int(query.get("continue", "0")), int(query.get("limit", "0") or 0) or len(found)
        more = str(first + most) if first + most < len(found) else ""
        metadata = {"resourceVersion": str(self.store.version), **({"continue": more} if more else {})}
        return {"kind": "List", "metadata": metadata, "items": found[first : first + most]}

    def _get(self, plural: str, thing: dict, _: object) -> dict:
        return thing

    def _patch(self, plural: str, thing: dict, body: dict) -> dict:
        changed, meta, wanted = json.loads(json.dumps(thing)), thing["metadata"], body.get("metadata", {})
        if wanted.get("uid", meta["uid"]) != meta["uid"]:
            raise Refused(422, "Invalid", f'{plural} "{meta["name"]}" is invalid: metadata.uid: field is immutable', meta["name"])
        if wanted.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{meta["name"]}": modified', meta["name"])
        _merge(changed, body)
        if plural == "jobs" and not self.store.knows_suspend:
            changed["spec"].pop("suspend", None)
        return self.controllers.settle(self.store.put(plural, changed))

    def _delete(self, plural: str, thing: dict, body: dict | None) -> dict:
        options, meta = body or {}, thing["metadata"]
        for field, name in (("uid", "uid"), ("resourceVersion", "resourceVersion")):
            wanted = (options.get("preconditions") or {}).get(field)
            if wanted is not None and wanted != meta[name]:
                words = f"the {field} in the precondition ({wanted}) does not match the {field} in record ({meta[name]})"
                raise Refused(409, "Conflict", words, meta["name"])
        self.controllers.remove(plural, thing, options)
        return self.controllers.settle(thing)


class CutOff(bytes):
    """A body after which the connection ends, although `promised` bytes were to come."""

    promised = 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up, or does not trust our certificate, is a test's own wish."""


def _handler(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            self.request.settimeout(30)
            super().setup()

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.answer("get")

        def do_POST(self) -> None:
            self.answer("create")

        def do_PATCH(self) -> None:
            self.answer("patch")

        def do_DELETE(self) -> None:
            self.answer("delete")

        def answer(self, verb: str) -> None:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            if verb == "get" and re.search(r"/namespaces/[^/]+/[^/]+$", parts.path):
                verb = "watch" if query.get("watch") in {"1", "true", "True"} else "list"
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length) if length else b""
            api.asked.append(f"{verb} {self.path}")
            try:
                code, answer = self.respond(verb, parts.path, query, raw)
            except Refused as refused:
                code, answer = refused.code, json.dumps(refused.body).encode()
            if code:
                self.reply(code, answer)

        def respond(self, verb: str, path: str, query: dict[str, str], raw: bytes) -> tuple[int, bytes]:
            """Code 0: the answer was given already."""
            if api.before is not None:
                api.before(verb, path)
            api.thawed.wait()
            if api.fault is not None and (odd := api.fault(verb, path)) is not None:
                return 200, odd
            token = re.sub("^[Bb]earer ", "", self.headers.get("Authorization", ""))
            if verb == "watch":
                self.watch(token, path, query)
                return 0, b""
            code, answer = api.handle(token, verb, path, query, _checked(verb, self.headers.get("Content-Type"), raw))
            return code, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()

        def reply(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(getattr(body, "promised", len(body))))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = self.close_connection or isinstance(body, CutOff)

        def watch(self, token: str, path: str, query: dict[str, str]) -> None:
            where = _PATH.fullmatch(path)
            if not api._may(token, "watch", where["plural"]):
                raise Refused(403, "Forbidden", f"cannot watch {where['plural']}")
            self.close_connection = True
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            seen = int(query.get("resourceVersion") or 0)
            while not api.closing:
                with api.store.change:
                    new = [event for event in api.store.events if event[0] > seen and event[2:4] == (where["plural"], where["namespace"])]
                    if not new and not api.store.change.wait(20):
                        return
                for version, kind, _, _, thing in new:
                    seen = max(seen, version)
                    try:
                        self.wfile.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")
                    except OSError:
                        return

    return Handler


def _checked(verb: str, content: str | None, raw: bytes) -> dict | None:
    """A real server says 415 to a patch of a kind that it does not know."""
    if verb == "patch" and content != "application/merge-patch+json":
        raise Refused(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
    return json.loads(raw) if raw else None


def _merge(thing: dict, change: dict) -> None:
    for key, value in change.items():
        if value is None:
            thing.pop(key, None)
        elif isinstance(value, dict) and isinstance(thing.get(key), dict):
            _merge(thing[key], value)
        else:
            thing[key] = value
