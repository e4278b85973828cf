"""Contract tests for stores, encodings, shuffles, inputs, formats of your own; stores that fail.

`store_contract.StoreContract` is what every store must do, `shuffle_contract.ShuffleContract` every
shuffle, `input_contract.InputContract` every input, `format_contracts.EncodingContract` and
`CodecContract` the same for encodings and compressions, `file_format_contract.FormatContract` for
formats of files. `stores` has slow and flaky stores.
"""

from __future__ import annotations
