"""Inputs of a conversion, one kind a file."""
