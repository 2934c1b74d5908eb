"""A stand-in of the Hugging Face Hub on this machine: the part of its HTTP API that huggingface_hub uses for models.

Repositories, branches, LFS objects (basic transfers) and commits are kept in memory. `Hub.mode` makes it fail.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_token_of_the_tests"
LFS_ENDINGS = (".safetensors", ".pt", ".model", ".bin")


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(ThreadingHTTPServer):
    """The server. `repositories` has the files of each commit by repository and branch or hash."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: dict[str, bool] = {}
        self.heads: dict[tuple[str, str], str] = {}
        """Hash of the last commit of a branch."""
        self.objects: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.mode = "works"
        """works; fails (500 for everything); loses (500 for commits, after the LFS objects); hangs (no answer)."""
        self.goes_on = threading.Event()

    def commit(self, repository: str, branch: str, changes: dict[str, bytes], message: str) -> str:
        commits = self.repositories[repository]
        files = commits[self.heads[repository, branch]] | changes
        number = hashlib.sha1(f"{len(commits)} {message}".encode()).hexdigest()
        commits[number], self.heads[repository, branch] = files, number
        self.messages.append(message)
        return number

    def resolved(self, repository: str, revision: str) -> str | None:
        number = self.heads.get((repository, revision), revision)
        return number if number in self.repositories.get(repository, {}) else None


class Handler(BaseHTTPRequestHandler):
    """Answers requests by the first matching route."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._route("GET")

    def do_HEAD(self) -> None:
        self._route("HEAD")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PUT(self) -> None:
        self._route("PUT")

    def _route(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        self.content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(f"{method} {path}")
        if self.server.mode == "hangs":
            self.server.goes_on.wait()
        if self.server.mode == "fails":
            return self._answer({"error": "Internal Error - We're working hard to fix this"}, 500)
        if not path.startswith("/lfs/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer({"error": "Invalid username or password."}, 401)
        for pattern, function in ROUTES.items():
            if found := re.fullmatch(pattern, f"{method} {path}"):
                return function(self, *found.groups())
        return self._answer({"error": "Not Found"}, 404)

    def _answer(self, value: object, status: int = 200, **headers: str) -> None:
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json"} | headers)

    def _send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def create(self) -> None:
        given = json.loads(self.content)
        name = f"{given['organization']}/{given['name']}"
        if name in self.server.repositories:
            return self._answer(
                {"error": "You already created this model repo", "url": f"{self.server.url}/{name}"}, 409
            )
        begin = "0" * 40
        self.server.repositories[name], self.server.heads[name, "main"] = {begin: {}}, begin
        self.server.private[name] = given.get("visibility") == "private" or bool(given.get("private"))
        return self._answer({"url": f"{self.server.url}/{name}"})

    def branch(self, repository: str, name: str) -> None:
        if (repository, name) in self.server.heads:
            return self._answer({"error": "Reference already exists"}, 409)
        self.server.heads[repository, name] = self.server.heads[repository, "main"]
        return self._answer({})

    def validate(self) -> None:
        _, metadata, _ = json.loads(self.content)["content"].split("---\n", 2)
        is_valid = isinstance(yaml.safe_load(metadata), dict)
        self._answer(
            {"errors": [] if is_valid else [{"message": "no mapping"}], "warnings": []}, 200 if is_valid else 400
        )

    def preupload(self, repository: str, revision: str) -> None:
        number = self.server.resolved(repository, revision)
        if number is None:
            return self._answer({"error": "Invalid rev id"}, 404)
        there = self.server.repositories[repository][number]
        files = [
            {
                "path": (path := each["path"]), "shouldIgnore": False,
                "uploadMode": "lfs" if path.endswith(LFS_ENDINGS) else "regular",
                **({"oid": self._oid(path, there[path])} if path in there else {}),
            }
            for each in json.loads(self.content)["files"]
        ]  # fmt: skip
        return self._answer({"files": files})

    def batch(self, repository: str) -> None:
        objects = []
        for each in json.loads(self.content)["objects"]:
            action = {"actions": {"upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}}}
            objects.append(each | ({} if each["oid"] in self.server.objects else action))
        self._answer({"transfer": "basic", "objects": objects})

    def put(self, oid: str) -> None:
        if hashlib.sha256(self.content).hexdigest() != oid:
            return self._answer({"error": "hash mismatch"}, 400)
        self.server.objects[oid] = self.content
        return self._answer({})

    def commit(self, repository: str, revision: str) -> None:
        if self.server.mode == "loses":
            return self._answer({"error": "Internal Error"}, 500)
        changes, message = {}, ""
        for line in map(json.loads, self.content.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            else:
                changes[value["path"]] = self.server.objects[value["oid"]]
        number = self.server.commit(repository, revision, changes, message)
        url = f"{self.server.url}/{repository}/commit/{number}"
        return self._answer({"success": True, "commitUrl": url, "commitOid": number})

    def info(self, repository: str, revision: str | None) -> None:
        number = self.server.resolved(repository, revision or "main")
        if number is None:
            return self._answer({"error": "Repository not found"}, 404, **{"X-Error-Code": "RepoNotFound"})
        files = [{"rfilename": path} for path in self.server.repositories[repository][number]]
        return self._answer({"id": repository, "sha": number, "siblings": files})

    def tree(self, repository: str, revision: str) -> None:
        files = self.server.repositories[repository][str(self.server.resolved(repository, revision))]
        self._answer([self._entry(path, content) for path, content in files.items()])

    def resolve(self, repository: str, revision: str, path: str) -> None:
        number = self.server.resolved(repository, revision)
        content = self.server.repositories.get(repository, {}).get(number or "", {}).get(path)
        if content is None:
            return self._answer({"error": "Entry not found"}, 404, **{"X-Error-Code": "EntryNotFound"})
        return self._send(content, 200, {"X-Repo-Commit": str(number), "ETag": f'"{self._oid(path, content)}"'})

    def _oid(self, path: str, content: bytes) -> str:
        return hashlib.sha256(content).hexdigest() if path.endswith(LFS_ENDINGS) else git_oid(content)

    def _entry(self, path: str, content: bytes) -> dict[str, object]:
        found = {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
        is_lfs = path.endswith(LFS_ENDINGS)
        lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return found | ({"lfs": lfs} if is_lfs else {})


REPOSITORY = r"([\w.-]+/[\w.-]+)"
ROUTES = {
    "POST /api/repos/create": Handler.create,
    "POST /api/validate-yaml": Handler.validate,
    rf"POST /api/models/{REPOSITORY}/branch/(.+)": Handler.branch,
    rf"POST /api/models/{REPOSITORY}/preupload/(.+)": Handler.preupload,
    rf"POST /{REPOSITORY}\.git/info/lfs/objects/batch": Handler.batch,
    r"PUT /lfs/(\w{64})": Handler.put,
    rf"POST /api/models/{REPOSITORY}/commit/(.+)": Handler.commit,
    rf"GET /api/models/{REPOSITORY}(?:/revision/(.+))?": Handler.info,
    rf"GET /api/models/{REPOSITORY}/tree/([^/]+)/?": Handler.tree,
    rf"(?:GET|HEAD) /{REPOSITORY}/resolve/([^/]+)/(.+)": Handler.resolve,
}


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Context manager that runs the server in threads."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.goes_on.set()
        hub.shutdown()
        hub.server_close()
        thread.join()
