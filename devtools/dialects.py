"""Small servers that speak as the clouds do for which no emulator exists: OCI, the Hub, Databricks.

The bytes go through the same handler as those of the web server; what is here is the dialect:
paths, listings, commits. They stand for the documented REST interfaces of the three.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from devtools.httpserver import FolderHandler
from mds.storage.files import publish, write_file


class Dialect(FolderHandler):
    """What the three have in common."""

    @property
    def query(self) -> dict[str, str]:
        """The query of the request."""
        return {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}

    @property
    def route(self) -> str:
        """The path of the request, unescaped."""
        return unquote(urlsplit(self.path).path)

    def body(self) -> bytes:
        """What the request brings."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, value: Any) -> None:
        """Answer with JSON."""
        self.end(200, json.dumps(value).encode(), Content_Type="application/json")

    def real(self, path: str) -> str:
        """The file that a path of the cloud means."""
        return os.path.join(self.root, path.lstrip("/"))

    def files(self, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
        """Every file of the folder: name, state."""
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                key = os.path.relpath(path, self.root)
                if key.startswith(below):
                    yield key, os.stat(path)


class Oci(Dialect):
    """Oracle's object storage: /n/namespace/b/bucket/o/name."""

    def locate(self) -> str:
        """The file that the request names."""
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
        """Objects below a prefix, three at a time."""
        names = sorted(self.files(self.query.get("prefix", "")))
        names = [entry for entry in names if entry[0] >= self.query.get("start", "")]
        page, rest = names[:3], names[3:]  # small pages, so that the next one matters
        objects = [
            {
                "name": name,
                "size": state.st_size,
                "etag": f'"{state.st_mtime_ns:x}-{state.st_size:x}"',
            }
            for name, state in page
        ]
        self.answer({"objects": objects, "nextStartWith": rest[0][0] if rest else None})


def oci_config(folder: pathlib.Path) -> pathlib.Path:
    """A configuration file of the SDK with a key of its own."""
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
    """The Hugging Face Hub: resolve, tree, preupload and commit; large files are elsewhere."""

    def digest(self, path: str) -> str:
        """What the hub has for an etag."""
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()

    def locate(self) -> str:
        """The file that the request names."""
        if self.route.startswith("/cdn/"):
            return self.real(self.route[5:])
        return self.real(self.route.split("/resolve/main/", 1)[1])

    def do_GET(self) -> None:
        if self.route.startswith("/api/"):
            self.tree()
        elif self.route.startswith("/cdn/"):
            assert "Authorization" not in self.headers, "the token left the hub"
            super().do_GET()
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
                Location=f"http://{host}/cdn/" + self.path.split("/resolve/main/", 1)[1],
                X_Linked_Size=str(os.path.getsize(path)),
                X_Linked_Etag=f'"{self.digest(path)}"',
            )

    do_HEAD = do_GET

    def tree(self) -> None:
        """Files below a folder."""
        if "/tree/main" not in self.route:
            self.end(404)
            return
        below = self.route.partition("/tree/main")[2].strip("/")
        found = [
            {
                "type": "file",
                "path": key,
                "size": state.st_size,
                "oid": "0" * 40,
                "lfs": {
                    "oid": self.digest(self.real(key)),
                    "size": state.st_size,
                    "pointerSize": 1,
                },
            }
            for key, state in self.files(f"{below}/" if below else "")
        ]
        if not found and below:
            self.end(404, b"{}", X_Error_Code="EntryNotFound")
        else:
            self.answer(found)

    def do_POST(self) -> None:
        said = self.body()
        if "/preupload/" in self.route:
            asked = json.loads(said)["files"]
            self.answer(
                {
                    "files": [
                        {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for file in asked
                    ]
                }
            )
            return
        for line in said.splitlines():
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
        """The file that the request names."""
        return self.real(self.route.removeprefix("/api/2.0/fs/files"))

    def parse_request(self) -> bool:
        """Turn away requests without the token."""
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
        call, told = self.route.removeprefix("/api/2.0/dbfs/"), json.loads(self.body())
        if call == "create":
            handle = len(self.handles) + 1
            self.handles[handle] = self.real(told["path"])
            write_file(self.handles[handle], b"")
            self.answer({"handle": handle})
            return
        if call == "add-block":
            with open(self.handles[told["handle"]], "ab") as file:
                file.write(base64.b64decode(told["data"]))
        elif call == "delete" and os.path.exists(self.real(told["path"])):
            os.unlink(self.real(told["path"]))
        elif call == "move":
            with publish(self.real(told["destination_path"])) as temporary:
                shutil.move(self.real(told["source_path"]), temporary)
        self.answer({})

    def folder(self, path: str) -> None:
        """What is in a folder of a volume, two at a time."""
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
        """A file or folder as the Files interface tells it."""
        state, is_folder = os.stat(path), os.path.isdir(path)
        shown = "/" + os.path.relpath(path, self.root)
        facts: dict[str, Any] = {"path": shown, "is_directory": is_folder}
        if not is_folder:
            facts |= {"file_size": state.st_size, "last_modified": state.st_mtime_ns // 10**6}
        return facts

    def status(self, path: str) -> dict[str, Any]:
        """A file or folder as the DBFS interface tells it."""
        state = os.stat(path)
        return {
            "path": "/" + os.path.relpath(path, self.root),
            "is_dir": os.path.isdir(path),
            "file_size": state.st_size,
            "modification_time": state.st_mtime_ns,
        }
