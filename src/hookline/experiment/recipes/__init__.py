"""What trains in an arm, a file for each kind."""
