"""The GRPO learner: its loss, its training data, training in this process and on Ray."""
