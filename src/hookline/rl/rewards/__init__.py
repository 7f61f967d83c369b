"""Reward functions: recorded, ready-made, and configured. Users find them as `hookline.rewards`."""
