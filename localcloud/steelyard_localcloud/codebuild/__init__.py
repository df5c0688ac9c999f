"""CodeBuild: builds that really run, in processes of this machine."""
