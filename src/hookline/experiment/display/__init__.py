"""What an experiment shows in a terminal."""
