"""The door for code that was written for mosaicml-streaming and cannot be edited.

``import mds.compat.streaming`` makes ``import streaming`` and its sub-modules resolve to this
library; docs/migrating.md tells the other ways. Everything in here is names and small adapters:
the work is done by the library, which knows nothing of this package.
"""
