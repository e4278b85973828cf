"""Contracts: tests to inherit for a store, encoding, shuffle, packer, input or format of your own.

Each contract is a class of pytest tests, such as `StoreContract`; its docstring shows a subclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.testing._file_format_contract import FormatContract
    from mds.testing._format_contracts import CodecContract, EncodingContract
    from mds.testing._input_contract import InputContract
    from mds.testing._packer_contract import PackerContract
    from mds.testing._shuffle_contract import ShuffleContract
    from mds.testing._store_contract import StoreContract

_HOMES = {
    "CodecContract": "_format_contracts",
    "EncodingContract": "_format_contracts",
    "FormatContract": "_file_format_contract",
    "InputContract": "_input_contract",
    "PackerContract": "_packer_contract",
    "ShuffleContract": "_shuffle_contract",
    "StoreContract": "_store_contract",
}

__all__ = [
    "CodecContract",
    "EncodingContract",
    "FormatContract",
    "InputContract",
    "PackerContract",
    "ShuffleContract",
    "StoreContract",
]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
