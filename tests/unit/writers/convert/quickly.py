"""`convert` and `prepare` that do not wait for the disk: no test of this folder cuts the power."""

import functools

from mds.writers import convert as package

convert = functools.partial(package.convert, durable=False)
prepare = functools.partial(package.prepare, durable=False)
