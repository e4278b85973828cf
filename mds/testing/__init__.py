"""Contract tests for what you add, such as stores, encodings and shuffles; stores that fail.

Inherit the contract of what you add: `store_contract.StoreContract`,
`format_contracts.EncodingContract` and `CodecContract` (compressions),
`shuffle_contract.ShuffleContract`, `packer_contract.PackerContract`,
`input_contract.InputContract`, or `file_format_contract.FormatContract` for formats of files.
`stores` has slow and flaky stores.
"""

from __future__ import annotations
