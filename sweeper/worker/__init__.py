"""The side of the wall that measures.  It imports torch, never decides, and exits."""
