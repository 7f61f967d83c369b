"""The abuse test: a training with all sinks on, everything around it broken again and again, and an exact audit.

``make soak`` runs it for ten minutes. `session` has the whole story, `faults` what is done to the training,
`audit` what has to hold at the end.
"""
