"""Container images without a Docker daemon: buildah and podman, behind the words of ``docker``."""
