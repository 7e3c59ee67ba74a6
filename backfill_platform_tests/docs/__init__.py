"""The documentation is tested: it builds, its commands and code run, and what it promises to list is complete."""
