"""The engine. Standard library only; imports nothing else of hookline."""
