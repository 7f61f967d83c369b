"""What comes of an experiment: tables, differences, curves, reports."""
