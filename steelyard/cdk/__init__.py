"""The pinned CDK command line and the Node.js that runs it."""
