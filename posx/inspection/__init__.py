"""What an encoding is, in words, figures and pictures: for `experiments.inspect`, the gallery and the tables of the README."""
