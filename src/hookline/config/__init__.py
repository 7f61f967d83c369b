"""The configuration system: files, layers, overrides, typed settings, and errors with file and line.

- `sources` reads a YAML, TOML or JSON file into a `Source`: its values, and the line of each. It puts settings on top
  of one another: an arm's on a base's, and overrides of a command line on a file.
- `variables` gives a run the settings that come from the environment, such as ``HOOKLINE_ROOT``.
- `loading` validates values and turns them into typed structs (`load_config`, `to_struct`, `CheckedStruct`), and builds
  the callbacks or hooks that a file lists (`load_callbacks`, `load_hooks`).

What needs no file is in the engine: `_engine.factories` builds objects from names and mappings, and
`_engine.validation` converts values to annotated types. Nothing in a file is run. A message
states the file and line, or the command line; the path; what was given; what is accepted.
"""
