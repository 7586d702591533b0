#!/bin/sh
# Makes .env (or the file that is named): .env.example with random secrets in place of the development values. Never
# overwrites: the passwords of engines are fixed when their volumes are made.
set -eu
target=${1:-$(dirname "$0")/../.env}
example=$(dirname "$0")/../.env.example

random() { # bytes, as hexadecimal digits
  od -An -v -tx1 -N"$1" /dev/urandom | tr -d ' \n'
}

umask 077
set -C # a redirection does not overwrite
sed \
  -e "s/^POSTGRES_PASSWORD=.*/POSTGRES_PASSWORD=$(random 24)/" \
  -e "s/^BROKER_PASSWORD=.*/BROKER_PASSWORD=b$(random 24)/" \
  -e "s/^S3_ACCESS_KEY_ID=.*/S3_ACCESS_KEY_ID=GK$(random 12)/" \
  -e "s/^S3_SECRET_ACCESS_KEY=.*/S3_SECRET_ACCESS_KEY=$(random 32)/" \
  -e "s/^GARAGE_RPC_SECRET=.*/GARAGE_RPC_SECRET=$(random 32)/" \
  -e "s/^#METRICS_TOKEN=.*/METRICS_TOKEN=$(random 32)/" \
  -e "s/^# DEVELOPMENT VALUES.*/# Made by deploy\/secrets.sh. Keep a copy where you keep secrets./" \
  -e "/^# else\. deploy\/secrets\.sh/d" \
  "$example" > "$target"
echo "Wrote $target"
