"""Where runs are made: in this process, in several, on Ray."""
