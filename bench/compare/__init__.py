"""Parts of bench/compare_llamacpp and bench/kernel_roofline.py, one subject a file."""


class Failure(Exception):
    """One sentence: why something could not be measured."""
