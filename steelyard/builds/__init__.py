"""Builds: the buildspec that CodeBuild runs, run on this machine."""
