"""`hookline exec`: runs a script unedited and records it.

- `command`: the process that the user starts. It runs the script as a child, passes signals on and reports its status.
- `start`: a directory on the child's ``PYTHONPATH``, whose ``sitecustomize`` calls `process.attach` when Python starts.
- `process`: decides which process of a script records: the first one, or rank zero where there are several ranks.
- `script_run`: the run, from the start of the script to its end, and everything that trackers write to it.
- `hosts`: attaches the trainers in the script, each when it starts to train.

Everything records into one run (`Recording.join`). No library is imported that the script does not import itself.
"""
