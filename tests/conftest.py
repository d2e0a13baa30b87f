"""Makes ``tests`` a package that pytest imports from the repository's root, as ``tests.builders``."""
