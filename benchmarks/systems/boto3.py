"""boto3 by itself, for the price of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from benchmarks.systems.base import Data, System


class Boto3(System):
    """A client of the SDK with as many connections as the store has."""

    name = "boto3"
    label = "boto3"
    packages = ("boto3",)
    module = "boto3"
    workloads = ("tokens",)
    answers: ClassVar = {"requests": ("",)}
    note = "One client, max_pool_connections=64, signature and everything else at its defaults."
    stored_as = "mds"

    def ranges(self, data: Data, name: str, url: str) -> Callable[[int, int], bytes]:
        import boto3
        from botocore.config import Config

        config = Config(max_pool_connections=64)
        client = boto3.client("s3", endpoint_url=url, config=config)

        def get(start: int, end: int) -> bytes:
            byte_range = f"bytes={start}-{end - 1}"
            body: bytes = client.get_object(Bucket="mds", Key=name, Range=byte_range)["Body"].read()
            return body

        return get


SYSTEM = Boto3()
