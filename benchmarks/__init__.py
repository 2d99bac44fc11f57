"""Measurements. A package, because asyncnsq, with which `client` compares, installs one with this name."""
