"""The contract of encodings as code: measures what an encoding claims, whoever wrote it.

    python -m posx.testing my_pkg.my_file:MyEncoding

`posx.testing.suite.run(encoding)` gives the same results as a list, `posx.testing.textbook.Bound` the slow and plain use of an
encoding that its formulas can be compared with.
"""
