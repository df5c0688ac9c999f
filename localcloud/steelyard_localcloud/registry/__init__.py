"""A registry of container images before the emulated ECR: pushes, pulls, and what ministack's ECR lacks for them."""
