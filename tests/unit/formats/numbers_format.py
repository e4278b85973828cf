"""A format of the tests' own: files of numbers, a line each, every four lines a shard."""

import dataclasses
import itertools
from typing import ClassVar

from mds.errors import FormatError
from mds.formats import FilePlan, Format, encode_records, register_format

LINES = 4


@register_format("numbers")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers(Format):
    name: ClassVar[str] = "numbers"
    endings: ClassVar[tuple[str, ...]] = (".numbers",)
    omits_underscored: ClassVar[bool] = True

    factor: int = 1

    def plan_file(self, file, files):
        data = files.get(file)
        if not data.endswith(b"\n"):
            raise FormatError(f"{files.url(file)}: the last line does not end.")
        ends = [0]
        for line in data.splitlines(keepends=True):
            ends.append(ends[-1] + len(line))
        cuts = [*ends[:-1:LINES], ends[-1]]
        spans = list(itertools.pairwise(cuts))
        samples = [data.count(b"\n", *span) for span in spans]
        sizes = [200 + end - start for start, end in spans]
        return FilePlan({"number": "int", "text": "str"}, samples, sizes, spans)

    def blocks(self, shard, files):
        lines = files.range(shard.file, *shard.span).decode().splitlines()
        where = f"{files.url(shard.file)}, {self.shard_of(shard)}"
        try:
            records = [{"number": int(line) * self.factor, "text": line} for line in lines]
        except ValueError as error:
            raise FormatError(f"{where}: {error}") from error
        yield from encode_records(shard.columns, records, where)
