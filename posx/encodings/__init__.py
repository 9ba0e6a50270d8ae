"""The catalogue of positional encodings. File name = catalogue name = config name = test name."""
