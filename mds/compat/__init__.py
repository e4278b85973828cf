"""Names of mosaicml-streaming, so that code written for it runs on mds unchanged.

``import mds.compat.streaming`` makes ``import streaming`` and the modules below it mean this
package; the docs call that the door. docs/migrating.md describes it and its two other forms, and
docs/door.md lists every name. The modules here adapt names, arguments and errors to those of
mosaicml-streaming 0.13. The rest of mds does the work and never imports this package.

Read `names` first, the table of all names, and then `overrides`, which decides for each name what
happens if code replaces it.
"""
