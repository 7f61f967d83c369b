"""What ``hookline demo`` shows: an experiment of SFT and GRPO on sums, and, without torch, a bare loop."""
