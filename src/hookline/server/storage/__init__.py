"""Storage beyond one disk: `hookline serve --storage URL` keeps received runs in an object store.

- `objects`: the operations on a store, implemented with obstore.
- `protocol`: the names of objects and what they mean; works on any store, and is simulated in the tests.
- `compaction`: leases, segments, manifests, and when a batch may be deleted.
- `mirror`: the local copy of the runs, from which the page and queries read.
- `received`: the endpoints' way to write to the store instead of a directory.
- `blobs`: images and files in the store.
- `eviction`: keeps the local copy within its size.
- `service`: the threads of a server that keep all of this up to date.
"""
