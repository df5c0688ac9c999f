# Sourced by stage.buildspec.yml: the profiles "to" and "from", each a role in the account of an environment.
# A build has its own role's credentials from the container; where they are in variables, they would go before a profile.
config=$(mktemp)
own="credential_source = EcsContainer"
if [ -n "${AWS_ACCESS_KEY_ID:-}" ]; then
  own="source_profile = build"
  printf '[profile build]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n' \
    "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" "$AWS_SESSION_TOKEN" >> "$config"
  unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
fi
printf '[profile to]\nrole_arn = %s\n%s\n' "$TO_ROLE" "$own" >> "$config"
if [ -n "$FROM_ROLE" ]; then
  printf '[profile from]\nrole_arn = %s\n%s\n' "$FROM_ROLE" "$own" >> "$config"
fi
export AWS_CONFIG_FILE="$config" AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_PROFILE=to
