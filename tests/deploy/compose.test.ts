/**
 * The files that containers are run by, read as text: what `deploy/verify.sh` shows with Docker is shown there; what must
 * hold in every one of them, also where there is no Docker, is held here.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, test } from 'node:test';
import { type ComposeSetting, composeSettings } from '../../scripts/compose-settings.ts';
import { readContract } from '../../scripts/validate.ts';
import { roles } from '../../src/roles.ts';
import type { Setting } from '../../src/setting.ts';
import { table } from '../../src/settings.ts';
import {
  type ComposeFile,
  type Container,
  onTop,
  readCompose,
  readText,
  variablesOf,
} from '../support/compose-files.ts';

const root = resolve(import.meta.dirname, '../..');
const base = readCompose('compose.yaml');
const overrides = readdirSync(resolve(root, 'deploy'))
  .filter((name) => /^compose\..*\.yaml$/.test(name))
  .map((name) => readCompose(`deploy/${name}`));
const cluster = readCompose('deploy/nats-cluster/compose.yaml');
const stack = readCompose('deploy/stack.yaml');
const files = [base, ...overrides, cluster, stack];

const settings = new Map<string, Setting>(Object.values(table).map((setting) => [setting.env, setting]));
const composeOnly = new Map<string, ComposeSetting>(composeSettings.map((setting) => [setting.env, setting]));

/** Every service that a file runs, with what it has from the file below. */
const running = files.flatMap((file) => {
  const all = overrides.includes(file) ? onTop(base, file) : file.services;
  return Object.entries(all)
    .filter(([name]) => file.services[name]?.image !== undefined)
    .map(([name, service]) => ({ file, name, service, title: `${name} of ${file.path}` }));
});

const commandOf = (service: Container) => (service.command as readonly string[] | undefined)?.[0] ?? '';
const ours = running.filter(({ service }) => /\$\{SKREPKA_IMAGE/.test(service.image ?? ''));
const engines = running.filter((one) => !ours.includes(one));

function each<T extends { title: string }>(all: readonly T[], check: (one: T) => void): void {
  assert.ok(all.length > 0);
  for (const one of all) {
    try {
      check(one);
    } catch (error) {
      throw new Error(`${one.title}: ${(error as Error).message}`, { cause: error });
    }
  }
}

describe('the files of containers', () => {
  test('are a compose file with every role, three on top of it, a cluster and a stack', () => {
    assert.deepEqual(
      overrides.map(({ path }) => path),
      ['deploy/compose.ceph.yaml', 'deploy/compose.rabbitmq.yaml', 'deploy/compose.valkey.yaml'],
    );
    for (const file of [base, stack]) {
      const commands = Object.values(file.services).map(commandOf);
      for (const role of [...roles, 'migrate']) assert.ok(commands.includes(role), `${file.path} runs no ${role}`);
    }
  });

  test('read nothing from .env that .env.example does not explain, and say the same default', () => {
    for (const { path, text } of files) {
      for (const { name, fallback } of variablesOf(text)) {
        const known = composeOnly.get(name) ?? settings.get(name);
        assert.ok(known, `${path} reads ${name}`);
        const stands = composeOnly.get(name)?.fallback;
        if (stands !== undefined && fallback !== null) assert.equal(fallback, stands, `${name} in ${path}`);
      }
    }
    const read = new Set(files.flatMap(({ text }) => variablesOf(text).map(({ name }) => name)));
    for (const name of composeOnly.keys()) assert.ok(read.has(name), `nothing reads ${name}`);
  });

  test('name images with a version', () => {
    each(running, ({ service }) => {
      const [image] = variablesOf(service.image ?? '');
      assert.ok(image, `expected a variable for the image, received ${service.image}`);
      assert.ok(
        image.fallback === null || /:(v?\d+(\.\d+)+(-[a-z0-9-]+)?|\d+|local)$/.test(image.fallback),
        image.fallback ?? '',
      );
    });
    assert.match(readText('Dockerfile'), /^ARG NODE_IMAGE=node:24(\.\d+){2}-[a-z-]+$/m);
    const built = variablesOf(JSON.stringify(base.services.api?.build));
    assert.equal(built[0]?.fallback, /^ARG NODE_IMAGE=(.*)$/m.exec(readText('Dockerfile'))?.[1]);
  });
});

describe('every service', () => {
  test('has a health check, or says why it has none', () =>
    each(running, ({ file, name, service }) => {
      assert.ok(service.healthcheck, 'there is neither');
      if (service.healthcheck.disable !== true) assert.match(service.healthcheck.test?.[0] ?? '', /^CMD/);
      else assert.match(file.commentAbove(name, 'healthcheck'), /^ No health: .{20,}/, 'it does not say why');
    }));

  test('has a limit for processors, memory and processes', () =>
    each(running, ({ service }) => {
      const { cpus, memory, pids } = service.deploy?.resources?.limits ?? {};
      assert.match(String(cpus), /^(\$\{\w+:-)?\d+\}?$/);
      assert.match(String(memory), /^(\$\{\w+:-)?\d+[MG]\}?$/);
      assert.ok(Number(pids) > 0);
    }));

  test('is stopped with patience, and logs into files that do not grow for ever', () =>
    each(running, ({ service }) => {
      assert.match(String(service.stop_grace_period), /^(60s|\$\{STOP_GRACE:-60s\})$/);
      const { options } = service.logging as { options: Record<string, string> };
      assert.deepEqual(Object.keys(options), ['max-size', 'max-file']);
    }));

  test('publishes no port, except the API', () =>
    each(running, ({ name, service }) => {
      if (name !== 'api') assert.equal(service.ports, undefined);
      else assert.match(service.ports?.join() ?? '', /^(\$\{PUBLISH_ADDRESS:-127\.0\.0\.1\}:)?\$\{PORT:-8080\}:8080$/);
      assert.equal(service.network_mode, undefined);
      assert.equal(service.privileged, undefined);
    }));

  test('of compose keeps what it stores in a volume that has a name', () =>
    each(engines, ({ file, service }) => {
      const named = (service.volumes ?? []).map(String).filter((volume) => !volume.startsWith('.'));
      assert.ok(named.length > 0);
      for (const volume of named) assert.ok((volume.split(':')[0] ?? '') in file.volumes, `${volume} is not declared`);
    }));
});

describe('secrets', () => {
  const required = composeSettings.filter(({ development }) => development !== undefined);

  test('are asked for, and have no default', () => {
    for (const { path, text } of files) {
      for (const { name, fallback } of variablesOf(text)) {
        if (required.some(({ env }) => env === name)) assert.equal(fallback, null, `${name} in ${path}`);
      }
      for (const { env, development = '' } of required) {
        if (development !== 'development') assert.ok(!text.includes(development), `${path} has the example's ${env}`);
      }
      assert.doesNotMatch(
        text.replace(/\$\{\w+:\?[^}]*\}/g, ''),
        /:\/\/[^\s/:]*:[^\s$<>@/]+@/,
        `${path} has a password in a URL`,
      );
    }
    each(running, ({ service }) => {
      for (const [name, value] of Object.entries(service.environment ?? {})) {
        if (!/PASS|SECRET|ACCESS_KEY|TOKEN|AUTH$/.test(name) || value === null) continue;
        assert.match(value, /^(\$\{\w+:\?[^}]+\}|\/run\/secrets\/\w+)$/, name);
      }
    });
  });

  test('of the example are marked as known to everyone', () => {
    const example = readText('.env.example');
    const marked = example.indexOf('# DEVELOPMENT VALUES');
    assert.ok(marked > 0);
    const given = [...example.matchAll(/^([A-Z][A-Z0-9_]*)=/gm)].map(({ 1: name, index }) => ({ name, index }));
    assert.deepEqual(
      given.map(({ name }) => name),
      required.map(({ env }) => env),
    );
    for (const { index } of given) assert.ok(index > marked);
  });

  test('of a stack come as files, each for a setting that may be given so', () => {
    const names = Object.keys(stack.secrets);
    each(
      ours.filter(({ file }) => file === stack),
      ({ service }) => {
        for (const [name, value] of Object.entries(service.environment ?? {})) {
          const setting = settings.get(name.replace(/_FILE$/, ''));
          assert.ok(setting, `${name} is no setting`);
          if (!name.endsWith('_FILE')) {
            assert.ok(setting.kind !== 'secret', `${name} is given openly`);
            continue;
          }
          assert.ok(setting.kind === 'secret' || setting.kind === 'url', `${name} is not read from a file`);
          const secret = value?.replace('/run/secrets/', '') ?? '';
          assert.ok(names.includes(secret) && service.secrets?.includes(secret), `${secret} is not given to it`);
        }
      },
    );
    for (const secret of Object.values(stack.secrets)) assert.deepEqual(secret, { external: true });
  });
});

describe('a role', () => {
  test('runs without root file system, capabilities and new privileges, below an init', () =>
    each(ours, ({ file, service }) => {
      assert.equal(service.read_only, true);
      assert.equal(service.init, true);
      assert.deepEqual(service.cap_drop, ['ALL']);
      // A Swarm knows no such option.
      if (file !== stack) assert.deepEqual(service.security_opt, ['no-new-privileges:true']);
    }));

  test('takes over every setting that it reads', async () => {
    const { components } = (await readContract())['infrastructure.json'] as { components: Component[] };
    const known = new Map(components.map((component) => [component.name, component]));
    for (const role of roles) {
      const component = known.get(role);
      const needed = [component, ...(component?.needs ?? []).map((name) => known.get(name))];
      const environment = base.services[role]?.environment ?? {};
      for (const name of needed.flatMap((one) => Object.keys(one?.settings ?? {}))) {
        if (!fixedByImage.includes(name)) assert.ok(name in environment, `${role} does not take over ${name}`);
      }
      for (const name of Object.keys(environment)) assert.ok(settings.has(name), `${name} of ${role} is no setting`);
    }
  });

  test('starts after the migration, and the migration after the engines that it changes', () => {
    for (const role of roles) {
      const waits = base.services[role]?.depends_on ?? {};
      assert.equal(waits.migrate?.condition, 'service_completed_successfully');
      // Uploads are accepted without a broker, and a broker may be exchanged for another.
      if (waits.nats) assert.equal(waits.nats.required, false);
    }
    assert.equal(base.services.api?.depends_on?.nats, undefined);
    assert.deepEqual(base.services.migrate?.depends_on, {
      postgres: { condition: 'service_healthy' },
      s3: { condition: 'service_healthy' },
    });
  });

  test('reaches engines in a network that leads nowhere else', () => {
    assert.deepEqual(base.networks, { inside: { internal: true }, outside: {} });
    for (const [name, { networks }] of Object.entries(base.services)) {
      assert.deepEqual(networks, name === 'api' ? ['inside', 'outside'] : ['inside'], name);
    }
  });

  test('is replaced one by one in a stack, and back again when the new one does not come up', () =>
    each(
      ours.filter(({ file, name }) => file === stack && name !== 'migrate'),
      ({ service }) => {
        const { replicas, update_config, rollback_config } = service.deploy ?? {};
        assert.ok(Number(replicas) >= 1);
        const { parallelism, order, failure_action } = update_config as Record<string, unknown>;
        assert.deepEqual([parallelism, order, failure_action], [1, 'start-first', 'rollback']);
        assert.ok(rollback_config);
      },
    ));
});

/** Set in the image; `PORT` and the address are those inside of the container. */
const fixedByImage = ['HOST', 'PORT', 'DATA_DIR'];

interface Component {
  readonly name: string;
  readonly needs?: readonly string[];
  readonly settings: Readonly<Record<string, string>>;
}

describe('an engine', () => {
  test('confirms what is on its disk', () => {
    for (const path of ['deploy/nats.conf', 'deploy/nats-cluster/nats.conf']) {
      assert.match(readText(path), /^ {2}sync_interval: always$/m, path);
    }
    assert.match(readText('deploy/garage.toml'), /^metadata_fsync = true\ndata_fsync = true$/m);
    assert.match(readText('deploy/valkey.conf'), /^appendonly yes\nappendfsync always$/m);
  });

  test('that is a broker steps aside when another one is put on top', () => {
    for (const [path, scheme] of brokers) {
      const file = overrides.find((one) => one.path === path) as ComposeFile;
      assert.deepEqual(file.services.nats, { profiles: ['nats'] });
      for (const role of [...roles, 'migrate']) {
        const url = file.services[role]?.environment?.BROKER_URL ?? '';
        assert.ok(url.startsWith(`\${BROKER_URL:-${scheme}`), `${role} of ${path} rings at ${url}`);
      }
    }
  });
});

const brokers = [
  ['deploy/compose.rabbitmq.yaml', 'amqp://'],
  ['deploy/compose.valkey.yaml', 'valkey://'],
] as const;
