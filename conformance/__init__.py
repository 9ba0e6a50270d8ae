"""The same methods in other libraries: `python -m conformance` measures posx and its peers against float64 definitions."""
