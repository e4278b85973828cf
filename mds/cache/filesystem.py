"""What kind of file system a folder is on, as far as a cache has to know.

On network file systems locks may be missing or may not reach other machines, and a mapped file is
not the same everywhere at the same time. So the ledger and locks of a cache folder there lie on a
disk of the node itself; what nodes share is then only files that appear by rename.
"""

from __future__ import annotations

import hashlib
import os

from mds.storage.control_files import private_temporary_folder

_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "9p", "lustre", "ceph", "beegfs"),
    *("glusterfs", "gpfs", "panfs", "orangefs", "pvfs2", "wekafs", "ocfs2", "gfs2", "virtiofs"),
}
_LOCAL_FUSE = {"fuseblk", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat", "fuse.fuse-overlayfs"}


def network_kind(folder: str, mounts: str | None = None) -> str | None:
    """Return the type of the network file system of a folder, or None if it is local.

    ``mounts`` is the text of /proc/self/mounts, read when left out. Where there is none, every file
    system counts as local.
    """
    if mounts is None:
        try:
            with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
                mounts = file.read()
        except OSError:
            return None
    path = os.path.realpath(folder)
    best, kind = "", ""
    for line in mounts.splitlines():
        _, point, point_kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        # The last of several mounts on one point is the one that is seen.
        if is_above and len(point) >= len(best):
            best, kind = point, point_kind
    is_network = kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)
    return kind if is_network else None


def control_folder(folder: str, name: str) -> str:
    """Return the folder of the ledger and locks: in a cache folder, or on the node's own disk."""
    if network_kind(folder) is None:
        return os.path.join(folder, name)
    digest = hashlib.blake2s(os.path.realpath(folder).encode(), digest_size=16).hexdigest()
    return os.path.join(private_temporary_folder(), digest)
