#!/usr/bin/env bash
# Proves compose.yaml where Docker is: builds the image, starts everything, and holds the promise of a 202 against
# containers that stop, are killed and lose their volumes. Ends and removes all that it started.
#
#   deploy/verify.sh                                    compose.yaml as it is
#   deploy/verify.sh deploy/compose.rabbitmq.yaml …     with these files on top
#
# Needs bash and Docker with Compose 2.24 or later. Settings and image names of the environment go before those of .env:
#   POSTGRES_IMAGE=postgres:16 PORT=18080 deploy/verify.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PORT=${PORT:-18080} PUBLISH_ADDRESS=127.0.0.1
project=skrepka-verify-$$
own_image=
[[ -n ${SKREPKA_IMAGE:-} ]] || { export SKREPKA_IMAGE=skrepka:verify-$$; own_image=$SKREPKA_IMAGE; }
folder=$(mktemp -d)
files=(-f compose.yaml)
for file in "$@"; do files+=(-f "$file"); done

compose() { docker compose --project-name "$project" --env-file "$folder/.env" "${files[@]}" "$@"; }
quietly() { "$@" > "$folder/output" 2>&1 || { cat "$folder/output" >&2; fail "$*"; }; }
chapter() { printf '\n[%3d s] %s\n' "$SECONDS" "$1"; }
held() { printf '   ✓ %s\n' "$1"; }
fail() { printf '   ✗ this did not hold: %s\n' "$1" >&2; exit 1; }

finish() {
  local code=$?
  trap - EXIT INT TERM
  if [[ $code -ne 0 ]]; then
    echo "The last lines of the containers:" >&2
    compose logs --no-color --tail 15 >&2 || true
  fi
  chapter "Everything that was started is ended and removed"
  compose down --volumes --remove-orphans --timeout 10 > /dev/null 2>&1 || true
  [[ -z $own_image ]] || docker image rm --force "$own_image" > /dev/null 2>&1 || true
  rm -rf "$folder"
  [[ $code -ne 0 ]] || echo "Everything held, in $SECONDS s."
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

# A client inside: with the scripts of this checkout, beside the API, in the image that is there anyway.
client() {
  compose --progress quiet run --rm --no-deps --no-TTY --volume "$PWD/scripts:/app/scripts:ro" --volume "$PWD/examples:/app/examples:ro" \
    --env BASE_URL=http://api:8080 --entrypoint node migrate "$@"
}

# Asks through the port that the host publishes; prints the first and the last line. Without curl, which not everyone has.
ask() {
  (
    exec 3<> "/dev/tcp/127.0.0.1/$PORT" || exit 1
    printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$1" >&3
    read -r -t 10 first <&3
    while read -r -t 10 line || [[ -n $line ]]; do last=$line; done <&3
    printf '%s\n%s\n' "$first" "$last"
  ) 2> /dev/null
}

until_health() { # what its answer contains
  local deadline=$((SECONDS + 180)) answer
  until answer=$(ask /health/ready) && [[ $answer == "HTTP/1.1 200 "*"$1"* ]]; do
    ((SECONDS < deadline)) || fail "/health/ready answers 200 with $1 within 180 s"
    sleep 1
  done
  held "/health/ready: ${answer##*$'\n'}"
}

exit_code() { docker inspect --format '{{.State.ExitCode}}' "$1"; }

# --------------------------------------------------------------------------------------------------------------------

chapter "The files are understood, with .env copied from .env.example"
cp .env.example "$folder/.env"
docker compose --env-file "$folder/.env" config --quiet && held "compose.yaml"
for file in deploy/compose.*.yaml deploy/nats-cluster/compose.yaml; do
  docker compose --env-file "$folder/.env" -f compose.yaml -f "$file" config --quiet && held "with $file"
done
rm "$folder/.env"
quietly deploy/secrets.sh "$folder/.env"
compose config --quiet && held "with passwords made by deploy/secrets.sh"
broker=$(compose config --services | grep -E '^(nats|rabbitmq|valkey)$' | head -n 1)

chapter "The image is built"
quietly compose build
held "$SKREPKA_IMAGE, $(($(docker image inspect --format '{{.Size}}' "$SKREPKA_IMAGE") / 1000000)) MB with its base"
[[ $(docker image inspect --format '{{.Config.User}}' "$SKREPKA_IMAGE") =~ ^[1-9] ]] || fail "its user is not root"
held "its user is not root"

chapter "Everything starts, with $broker as the broker"
quietly compose up --detach
until_health '"status":"ok"'
if compose exec --no-TTY worker touch /app/trace 2> /dev/null; then fail "the root file system cannot be written"; fi
held "the root file system of a worker cannot be written"
published=$(docker ps --filter "label=com.docker.compose.project=$project" --format '{{.Ports}}' | grep -oE '[0-9.:]+->[0-9]+' | sort -u)
[[ $published == "127.0.0.1:$PORT->8080" ]] || fail "only the API's port is published: $published"
held "only the API's port is published: $published"

chapter "Smoke test"
client scripts/smoke.ts | sed 's/^/   /'

chapter "No worker runs: an upload is accepted, and waits"
quietly compose stop worker
[[ $(exit_code "$project-worker-1") == 0 ]] || fail "the worker drained, with exit code 0"
held "the worker drained, with exit code 0"
first=$(client scripts/outage.ts send)

chapter "Broker and API are killed, and start again with their volumes"
quietly compose kill --signal KILL "$broker" api
held "SIGKILL to both"
quietly compose up --detach --no-deps "$broker" api
until_health '"status":"ok"'
client scripts/outage.ts still <<< "$first"

chapter "The broker and all that it held are deleted; meanwhile another upload is accepted"
quietly compose rm --stop --force "$broker"
quietly docker volume rm "${project}_$broker"
held "the volume of $broker is gone"
# With the database as the broker, nothing is missing.
[[ ${BROKER_URL:-} == postgres:* ]] || until_health '"status":"degraded"'
second=$(client scripts/outage.ts send)
quietly compose up --detach --no-deps "$broker"
client scripts/outage.ts still <<< "$first"

chapter "A worker starts"
quietly compose up --detach --no-deps worker
client scripts/outage.ts ready <<< "$first"
client scripts/outage.ts ready <<< "$second"

chapter "Three workers"
quietly compose up --detach --no-recreate --scale worker=3
[[ $(compose ps --quiet --status running worker | wc -l) -eq 3 ]] || fail "three workers run"
held "three workers run"
client scripts/outage.ts many
compose logs --no-color worker | grep '"outcome":"ready"' | sed -E 's/^.*(worker-[0-9]+) .*/   \1 made/' | sort | uniq -c

chapter "Everything goes down in order, and comes up again with its volumes"
startedAt=$SECONDS
quietly compose stop api worker relay janitor
for container in $(compose ps --all --quiet api worker relay janitor); do
  [[ $(exit_code "$container") == 0 ]] || fail "every role drained, with exit code 0"
done
held "every role drained within $((SECONDS - startedAt)) s, with exit code 0"
quietly compose down
quietly compose up --detach
until_health '"status":"ok"'
client scripts/outage.ts ready <<< "$first"
client scripts/smoke.ts | tail -n 1 | sed 's/^/   ✓ smoke test: /'
