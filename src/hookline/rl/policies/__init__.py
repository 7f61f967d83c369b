"""Policies, which generate completions: from a Hugging Face model in this process, or from a server."""
