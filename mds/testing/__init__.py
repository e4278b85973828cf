"""For tests of stores, of providers of your own, and of programs that use them.

`StoreContract` is what every store must do; `servers` and `httpserver` start real servers;
`FaultProxy` stands between client and server and breaks what you tell it to.
"""

from __future__ import annotations
