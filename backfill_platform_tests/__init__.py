"""Tests, laid out like the package; `contracts` holds bodies that every implementation of a port must pass."""
