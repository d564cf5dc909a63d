"""Verifies whole segments and directories: the scrubber and `ottla log verify`."""
