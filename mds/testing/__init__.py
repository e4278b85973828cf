"""Contract tests for stores, encodings, shuffles and inputs of your own, and stores that fail.

`store_contract.StoreContract` is what every store must do, `shuffle_contract.ShuffleContract` every
shuffle, `input_contract.InputContract` every input, `format_contracts.EncodingContract` and
`CodecContract` the same for encodings and compressions. `stores` has slow and flaky stores.
"""

from __future__ import annotations
