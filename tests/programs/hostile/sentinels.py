"""A user's home folder with files of his own around the cache folder, and a look at them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat

FILES = {
    ".ssh/id": b"-----BEGIN PRIVATE KEY-----\n",
    ".ssh/shard.00000.mds": b"no shard\n",
    ".ssh/.id.4194303-0123456789ab.mds-part": b"no temporary file\n",
    ".bashrc": b"alias ll='ls -l'\n",
    "work/train.py": b"print('training')\n",
    "work/index.json": b"{}\n",
    "work/notes/notes.txt": b"notes\n",
    "work/neighbour/shard.00000.mds": b"of another dataset\n",
    "work/cache/mine.txt": b"his own, in the cache folder\n",
    "work/cache/mine/too.txt": b"his own, below\n",
}
MODES = {".ssh/id": 0o600, "work/train.py": 0o755}


class Home:
    """The folders of one user; ``cache`` is the local folder of his datasets."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.home = os.path.join(root, "home")
        self.remote = os.path.join(root, "remote")
        self.cache = os.path.join(self.home, "work", "cache")
        self.temporary = os.path.join(root, "tmp")
        for folder in (self.home, self.remote, self.temporary):
            os.makedirs(folder)
        for name, data in FILES.items():
            path = pathlib.Path(self.home, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(MODES.get(name, 0o644))
        os.symlink("../.ssh", os.path.join(self.home, "work", "link"))
        os.symlink("../../.ssh/id", os.path.join(self.cache, "his-link"))
        os.environ |= {"HOME": self.home, "XDG_CACHE_HOME": "", "MDS_CACHE_DIR": ""}
        self._before: dict[str, object] = {}
        self._before = self._look()

    def touched(self) -> list[str]:
        """What of the user's own differs from the beginning, or is there and was not."""
        now = self._look()
        changed = [path for path in self._before if now.get(path) != self._before[path]]
        return sorted(changed + [path for path in now if path not in self._before])

    def is_own(self, path: str) -> bool:
        """Whether a path is one of the user's own."""
        return path in self._before

    def clear(self) -> None:
        """Empty the folders that are the library's to write to."""
        keep = {os.path.dirname(path) for path in self._before} | set(self._before)
        for top in (self.cache, self.remote, self.temporary, os.path.join(self.home, ".cache")):
            for folder, folders, names in os.walk(top, topdown=False):
                for name in names + folders:
                    path = os.path.join(folder, name)
                    # Threads of a dataset that was let go of may still write or remove something.
                    with contextlib.suppress(OSError):
                        if os.path.islink(path) or name in names:
                            if path not in self._before:
                                os.unlink(path)
                        elif not any(p == path or p.startswith(path + "/") for p in keep):
                            os.rmdir(path)

    def _look(self) -> dict[str, object]:
        seen: dict[str, object] = {}
        for folder, folders, names in os.walk(self.home):
            if folder == self.home:
                folders[:] = [name for name in folders if name != ".cache"]
            for name in names + [f for f in folders if os.path.islink(os.path.join(folder, f))]:
                path = os.path.join(folder, name)
                is_ours = folder.startswith(self.cache) and path not in self._before
                if is_ours and self._before:
                    continue  # in the cache folder all other names are the library's
                state = os.lstat(path)
                what: object = None
                if stat.S_ISREG(state.st_mode):
                    what = pathlib.Path(path).read_bytes()
                elif stat.S_ISLNK(state.st_mode):
                    what = os.readlink(path)
                facts = (state.st_mode, state.st_ino, state.st_size, state.st_mtime_ns)
                seen[path] = (*facts, state.st_nlink, what)
        return seen
