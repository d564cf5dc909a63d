"""Shows a cluster in a browser, and changes it: `ottla console`, `ottla server --console`.

Pages are made here, on the server, from what `ottla.client` reads; so it works with any Kafka. `app.py` puts the parts
together. A request passes `guard.py` (hosts and headers), `access.py` (who asks, and on which connections), and a page
of `pages/`, which reads a `Snapshot` (`snapshot.py`) that requests share for some seconds.
"""
