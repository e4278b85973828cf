"""The contract of a store under its documented name; it lives in `store_contract.py`."""

from __future__ import annotations

from mds.testing._store_contract import StoreContract, noise

__all__ = ["StoreContract", "noise"]
