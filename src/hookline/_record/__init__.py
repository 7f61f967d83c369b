"""The record of a run: records, the journal they are written to, and its reader."""
