"""Small servers with the REST interfaces of clouds without an emulator: OCI, the Hub, Databricks.

`FolderHandler` of the web server sends the bytes. This file adds paths, listings and commits, as
the three providers document them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from devtools.httpserver import FolderHandler
from mds.storage._files import publish, write_file


class Dialect(FolderHandler):
    """Base class of the three: parts of a request, JSON answers, files of the folder."""

    @property
    def query(self) -> dict[str, str]:
        """The query of the request."""
        return {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}

    @property
    def route(self) -> str:
        """The path of the request, unescaped."""
        return unquote(urlsplit(self.path).path)

    def body(self) -> bytes:
        """Return the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, value: Any) -> None:
        """Answer with JSON."""
        self.end(200, json.dumps(value).encode(), Content_Type="application/json")

    def real(self, path: str) -> str:
        """Return the file of a path of the cloud."""
        return os.path.join(self.root, path.lstrip("/"))

    def files(self, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
        """Yield the name and state of each file of the folder whose name starts with ``below``."""
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                key = os.path.relpath(path, self.root)
                if key.startswith(below):
                    yield key, os.stat(path)


class Oci(Dialect):
    """Oracle's object storage: /n/namespace/b/bucket/o/name."""

    def locate(self) -> str:
        """Return the file that the request names."""
        return self.real(self.route.split("/o/", 1)[1])

    def do_GET(self) -> None:
        if self.route.rstrip("/") == "/n":
            self.answer("namespace")
        elif self.route.endswith("/o"):
            self.listing()
        else:
            assert self.headers["Authorization"].startswith("Signature ")
            super().do_GET()

    do_HEAD = do_GET

    def listing(self) -> None:
        """Answer with three objects below a prefix, and the name at which the next page starts."""
        names = sorted(self.files(self.query.get("prefix", "")))
        names = [entry for entry in names if entry[0] >= self.query.get("start", "")]
        page, next_page = names[:3], names[3:]  # small pages, so that the next one matters
        objects = [
            {
                "name": name,
                "size": state.st_size,
                "etag": f'"{state.st_mtime_ns:x}-{state.st_size:x}"',
            }
            for name, state in page
        ]
        self.answer({"objects": objects, "nextStartWith": next_page[0][0] if next_page else None})


def oci_config(folder: pathlib.Path) -> pathlib.Path:
    """Write a configuration file for the SDK, with a new key, and return its path."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(pem)
    (folder / "key.pem").chmod(0o600)
    path = folder / "config"
    path.write_text(
        f"[DEFAULT]\nuser=ocid1.user.oc1..a\ntenancy=ocid1.tenancy.oc1..a\nregion=us-ashburn-1\n"
        f"fingerprint={':'.join(['00'] * 16)}\nkey_file={folder / 'key.pem'}\n"
    )
    path.chmod(0o600)
    return path


class Hub(Dialect):
    """The Hugging Face Hub: revision, resolve, tree, preupload and commit; files are elsewhere.

    ``root`` is the branch main. Below it, a folder ``.commits/SHA`` holds the files of that commit,
    and a file ``.refs/NAME`` the commit of a branch or tag. A file ``.limit`` holds a number of
    requests and seconds; more requests in that time are answered with 429. All are optional.
    """

    page_entries: ClassVar[int] = 3  # small pages, so that the next one matters
    _counts: ClassVar[dict[str, tuple[float, int]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def digest(self, path: str) -> str:
        """Return the etag of a file."""
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()

    def commit_of(self, revision: str) -> str:
        """Return the commit of a branch or tag; that of main is a digest of its files."""
        path = self.real(f".refs/{revision}")
        if os.path.isfile(path):
            return pathlib.Path(path).read_text(encoding="utf-8").strip()
        if revision == "main":
            names = sorted(f"{key} {self.digest(self.real(key))}" for key, _ in self.entries(""))
            return hashlib.sha1("\n".join(names).encode(), usedforsecurity=False).hexdigest()
        return revision

    def folder_of(self, revision: str) -> str | None:
        """Return the folder of a revision below the root; None if there is no such revision."""
        commit = self.commit_of(revision)
        if os.path.isdir(self.real(f".commits/{commit}")):
            return f".commits/{commit}/"
        return "" if commit == self.commit_of("main") else None

    def entries(self, below: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield files below a folder, without the files that configure this server."""
        for key, state in self.files(below):
            if not key[len(below) :].startswith("."):
                yield key, state

    def locate(self) -> str:
        """Return the file that the request names."""
        if self.route.startswith("/cdn/"):
            return self.real(self.route[5:])
        revision, _, name = self.route.split("/resolve/", 1)[1].partition("/")
        return self.real(f"{self.folder_of(revision) or ''}{name}")

    def is_refused(self) -> bool:
        """Whether there were too many requests; if so, answer with 429."""
        path = self.real(".limit")
        if not os.path.isfile(path):
            return False
        limit, seconds = map(float, pathlib.Path(path).read_text(encoding="utf-8").split())
        now = time.monotonic()
        with self._lock:
            since, count = self._counts.get(self.root, (now, 0))
            if now - since >= seconds:
                since, count = now, 0
            self._counts[self.root] = (since, count + 1)
        if count < limit:
            return False
        wait_seconds = math.ceil(since + seconds - now)
        self.end(429, b"{}", RateLimit=f'"api";r=0;t={wait_seconds}')
        return True

    def do_GET(self) -> None:
        if self.route.startswith("/cdn/"):
            assert "Authorization" not in self.headers, "the token left the hub"
            super().do_GET()
        elif self.is_refused():
            return
        elif self.route.startswith("/api/"):
            self.ask()
        elif self.headers.get("Authorization") != "Bearer token":
            self.end(401)
        elif not os.path.isfile(self.locate()):
            self.end(404, b"", X_Error_Code="EntryNotFound")
        else:
            path = self.locate()
            # Another name of this host, as the network that serves the bytes is another host.
            host = self.headers["Host"].replace("127.0.0.1", "localhost")
            self.end(
                302,
                Location=f"http://{host}/cdn/" + quote(os.path.relpath(path, self.root)),
                X_Linked_Size=str(os.path.getsize(path)),
                X_Linked_Etag=f'"{self.digest(path)}"',
            )

    do_HEAD = do_GET

    def ask(self) -> None:
        """Answer a question about a revision."""
        question = re.search(r"/(tree|revision)/([^/]+)/?(.*)", self.route)
        folder = self.folder_of(question[2]) if question else None
        if question is None or folder is None:
            self.end(404, b"{}", X_Error_Code="RevisionNotFound")
        elif question[1] == "revision":
            self.answer({"sha": self.commit_of(question[2])})
        else:
            self.tree(folder, question[3])

    def tree(self, root: str, below: str) -> None:
        """Return a page of the files below a folder of a revision."""
        inside = f"{root}{below}/" if below else root
        every = [
            {
                "type": "file",
                "path": key[len(root) :],
                "size": state.st_size,
                "oid": "0" * 40,
                "lfs": {
                    "oid": self.digest(self.real(key)),
                    "size": state.st_size,
                    "pointerSize": 1,
                },
            }
            for key, state in sorted(self.entries(inside))
        ]
        if not every and below:
            self.end(404, b"{}", X_Error_Code="EntryNotFound")
            return
        start = int(self.query.get("cursor", 0))
        end = start + self.page_entries
        body = json.dumps(every[start:end]).encode()
        headers = {}
        if end < len(every):
            place = f"http://{self.headers['Host']}{urlsplit(self.path).path}"
            headers["Link"] = f'<{place}?recursive=true&cursor={end}>; rel="next"'
        self.end(200, body, Content_Type="application/json", **headers)

    def do_POST(self) -> None:
        body = self.body()
        if "/preupload/" in self.route:
            files = json.loads(body)["files"]
            self.answer(
                {
                    "files": [
                        {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for file in files
                    ]
                }
            )
            return
        for line in body.splitlines():
            step = json.loads(line)
            if step["key"] == "file":
                data = base64.b64decode(step["value"]["content"])
                write_file(self.real(step["value"]["path"]), data)
            elif step["key"] == "deletedFile":
                path = self.real(step["value"]["path"])
                if not os.path.exists(path):
                    self.end(404, b"{}", X_Error_Code="EntryNotFound")
                    return
                os.unlink(path)
        self.answer(
            {
                "commitUrl": "https://huggingface.co/datasets/org/name/commit/1",
                "commitOid": "1",
                "success": True,
            }
        )


class Databricks(Dialect):
    """The Files and DBFS interfaces of a workspace."""

    handles: ClassVar[dict[int, str]] = {}

    def locate(self) -> str:
        """Return the file that the request names."""
        return self.real(self.route.removeprefix("/api/2.0/fs/files"))

    def parse_request(self) -> bool:
        """Refuse requests without the token."""
        good = super().parse_request()
        if good and self.headers.get("Authorization") != "Bearer token":
            self.end(401)
            return False
        return good

    def do_GET(self) -> None:
        call = self.route.removeprefix("/api/2.0/")
        if call.startswith("fs/files"):
            super().do_GET()
        elif call.startswith("fs/directories"):
            self.folder(self.real(call.removeprefix("fs/directories")))
        elif not os.path.exists(self.real(self.query["path"])):
            self.end(404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST"}')
        elif call == "dbfs/get-status":
            self.answer(self.status(self.real(self.query["path"])))
        elif call == "dbfs/list":
            folder = self.real(self.query["path"])
            entries = [self.status(os.path.join(folder, name)) for name in os.listdir(folder)]
            self.answer({"files": entries} if entries else {})
        elif call == "dbfs/read":
            with open(self.real(self.query["path"]), "rb") as file:
                file.seek(int(self.query["offset"]))
                data = file.read(min(1 << 20, int(self.query["length"])))
            self.answer({"bytes_read": len(data), "data": base64.b64encode(data).decode()})

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        if self.route.startswith("/api/2.0/fs/directories"):
            os.makedirs(self.real(self.route.removeprefix("/api/2.0/fs/directories")))
            self.end(204)
        elif not os.path.isdir(os.path.dirname(self.locate())):
            self.body()
            self.end(404, b'{"error_code": "NOT_FOUND"}')
        else:
            super().do_PUT()

    def do_POST(self) -> None:
        call, arguments = self.route.removeprefix("/api/2.0/dbfs/"), json.loads(self.body())
        if call == "create":
            handle = len(self.handles) + 1
            self.handles[handle] = self.real(arguments["path"])
            write_file(self.handles[handle], b"")
            self.answer({"handle": handle})
            return
        if call == "add-block":
            with open(self.handles[arguments["handle"]], "ab") as file:
                file.write(base64.b64decode(arguments["data"]))
        elif call == "delete" and os.path.exists(self.real(arguments["path"])):
            os.unlink(self.real(arguments["path"]))
        elif call == "move":
            with publish(self.real(arguments["destination_path"])) as temporary:
                shutil.move(self.real(arguments["source_path"]), temporary)
        self.answer({})

    def folder(self, path: str) -> None:
        """List a folder of a volume, two entries in a page."""
        if not os.path.isdir(path):
            self.end(404, b'{"error_code": "NOT_FOUND"}')
            return
        names = sorted(os.listdir(path))
        start = int(self.query.get("page_token", 0))
        page: dict[str, Any] = {
            "contents": [self.entry(os.path.join(path, n)) for n in names[start : start + 2]]
        }
        if start + 2 < len(names):
            page["next_page_token"] = str(start + 2)
        self.answer(page)

    def entry(self, path: str) -> dict[str, Any]:
        """Describe a file or folder as the Files interface does."""
        state, is_folder = os.stat(path), os.path.isdir(path)
        shown_path = "/" + os.path.relpath(path, self.root)
        facts: dict[str, Any] = {"path": shown_path, "is_directory": is_folder}
        if not is_folder:
            facts |= {"file_size": state.st_size, "last_modified": state.st_mtime_ns // 10**6}
        return facts

    def status(self, path: str) -> dict[str, Any]:
        """Describe a file or folder as the DBFS interface does."""
        state = os.stat(path)
        return {
            "path": "/" + os.path.relpath(path, self.root),
            "is_dir": os.path.isdir(path),
            "file_size": state.st_size,
            "modification_time": state.st_mtime_ns,
        }
