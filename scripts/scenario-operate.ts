/**
 * Level 4 of the scenario: what operators live through, in four acts. Each act is a file of its own; this one sets the scene and
 * looks at the end whether anything was left.
 */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { ensureOperator } from '../src/http/auth.ts';
import { createPeople } from '../src/postgres/people.ts';
import { createPool } from '../src/postgres/pool.ts';
import { shortTimes } from '../tests/support/role.ts';
import type { Checks } from './checks.ts';
import { createHttpClient, expectStatus } from './http-client.ts';
import type { Narration } from './narration.ts';
import { killedAfterTheWrite, lostBeforeThePublish } from './scenario-deaths.ts';
import { hungAndSlow } from './scenario-leases.ts';
import { type OperateScene, within } from './scenario-operator.ts';
import { type Person, register } from './scenario-people.ts';
import { failedAndReplayed } from './scenario-replay.ts';
import type { Stage } from './stage.ts';
import type { Engines } from './stage-engines.ts';

export async function playOperate(stage: Stage, checks: Checks, narration: Narration, engines: Engines): Promise<void> {
  const { chapter } = narration;
  // Short times, so that nobody has to wait for a lease of 45 s; their relations are those of the defaults.
  stage.configure({ ...shortTimes, RETRY_FLOOR: '100ms', RETRY_BASE: '200ms' });

  chapter('The scene: PostgreSQL, an API that is nothing else, a user and an operator');
  const scene = await setScene(stage, checks, narration);

  chapter('Act 1. A crash between COMMIT and publish');
  const undisturbed = await lostBeforeThePublish(scene);

  chapter('Act 2. A worker is killed between its write and its ack');
  await killedAfterTheWrite(scene, undisturbed);

  chapter('Act 3. A job fails, and is replayed');
  await failedAndReplayed(scene, undisturbed);

  chapter('Act 4. A hung worker is told from a slow one');
  await hungAndSlow(scene);

  chapter('The end');
  await nothingLeft(scene, engines);
}

async function setScene(stage: Stage, checks: Checks, narration: Narration): Promise<OperateScene> {
  const { check } = checks;
  const url = await check('PostgreSQL starts, and has the schema of this build', async () => {
    const database = await stage.startDatabase();
    await stage.migrate();
    return { value: database.url, note: `process ${database.pid}` };
  });
  const api = await check('the API starts, without relay, janitor and worker', async () => {
    const role = await stage.play(['api']);
    return { value: role, note: `process ${role.pid}, ${role.url}` };
  });
  const client = createHttpClient(api.url);
  const photo = await readFile(new URL('../examples/photo.jpg', import.meta.url));
  const author = await register(client, checks, 'anna');
  const operator = await check('an operator logs in', async () => {
    const { handle, password } = await makeOperator(url);
    const { json } = expectStatus(await client.ask('POST', '/v1/sessions', { json: { handle, password } }), 201);
    const { user, token } = json as { user: { id: string }; token: string };
    return { value: { id: user.id, handle, token } satisfies Person, note: `user ${user.id}` };
  });
  return { ...client, stage, checks, narration, photo, author, operator, api: { current: api } };
}

/** As `skrepka start` does at its first start. */
async function makeOperator(url: string): Promise<{ handle: string; password: string }> {
  const pool = createPool({ url, max: 1, name: 'scenario' });
  try {
    const made = await ensureOperator(createPeople({ pool }));
    assert.ok(made, 'there was an operator before');
    return made;
  } finally {
    await pool.end();
  }
}

async function nothingLeft({ stage, checks, api }: OperateScene, { blobs }: Engines): Promise<void> {
  await checks.check(
    'once quiet, the storage has one original and one set of variants of each attachment',
    async () => {
      const janitor = await stage.play(['janitor']);
      const sets = await within('the clean-ups are done', async () => {
        const keys = (await blobs.list('')).objects.map(({ key }) => key);
        const prefixes = keys.map((key) => key.slice(0, key.lastIndexOf('/')));
        const counts = new Set(prefixes.map((prefix) => prefixes.filter((other) => other === prefix).length));
        const ids = new Set(prefixes.map((prefix) => prefix.split('/')[1]));
        const isQuiet = counts.size === 1 && counts.has(4) && ids.size === new Set(prefixes).size;
        return isQuiet && !prefixes.includes('staging') && ids.size;
      });
      assert.equal(await janitor.stop(), 0);
      return { value: undefined, note: `${sets} attachments, ${4 * sets} objects, nothing in staging` };
    },
  );
  await checks.check('the API ends in order, with exit code 0', async () => {
    assert.equal(await api.current.stop(), 0);
    return { value: undefined };
  });
}
